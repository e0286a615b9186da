"""Ties: methods that cannot be distinguished from the best one in a column."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import mean, stdev

import torch

from uqgan.evaluation import Outputs, raw_digest
from uqgan.metrics import paired_ood
from uqgan.paper.results import Result

PAIRED = "paired bootstrap of raw scores"
OVERLAP = "overlap of mean ± standard deviation over the seeds, or of a single run's 95 % interval"
RESAMPLES, LEVEL = 200, 0.05


@dataclass(frozen=True)
class Contender:
    """Results of a method, and their values in the column."""

    results: tuple[Result, ...]
    values: tuple[float, ...]

    def interval(self, metric: str, sets: Sequence[str], score: str) -> tuple[float, float]:
        if len(self.values) > 1:
            reach = stdev(self.values)
            return mean(self.values) - reach, mean(self.values) + reach
        return self.results[0].interval(metric, sets, score) or (self.values[0], self.values[0])


def tied(
    best: Contender, other: Contender, metric: str, sets: tuple[str, ...], score: str, resamples: int
) -> tuple[bool, str]:
    """Whether two methods are tied, and the criterion that was used.

    Values with disjoint intervals differ. Others are compared on the same resamples, if raw scores of runs with
    the same seeds exist: they differ if every pair does. All others are tied.
    """
    (low, high), (other_low, other_high) = (each.interval(metric, sets, score) for each in (best, other))
    if max(low, other_low) > min(high, other_high):
        return False, OVERLAP
    theirs = {result.seed: result for result in other.results}
    pairs = [(result, theirs[result.seed]) for result in best.results if sets and resamples and result.seed in theirs]
    raw = [(a.raw, b.raw) for a, b in pairs if a.raw and b.raw and own_raw_scores(a) and own_raw_scores(b)]
    if not raw:
        return True, OVERLAP
    column = "epistemic" if score == "sets" else score
    return any(p_values_of(str(a), str(b), sets, column, resamples)[metric] > LEVEL for a, b in raw), PAIRED


def own_raw_scores(result: Result) -> bool:
    """Whether the raw scores beside a record match its digest."""
    return digest_of(str(result.raw)) == result.record.get("raw_sha256")


@cache
def digest_of(file: str) -> str:
    return raw_digest(Outputs.read(Path(file)))


@cache
def p_values_of(first: str, second: str, sets: tuple[str, ...], column: str, resamples: int) -> dict[str, float]:
    """P-values of "no difference" for each OoD metric of two files of raw scores, of these sets together."""
    outputs = [Outputs.read(Path(file)) for file in (first, second)]
    scores = []
    for each in outputs:
        scores.append(torch.cat([getattr(part, column) for part in (each.test, *(each.ood[name] for name in sets))]))
    is_ood = torch.arange(len(scores[0])) >= len(outputs[0].y)
    return paired_ood(scores[0], scores[1], is_ood, resamples)
