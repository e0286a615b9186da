"""Ranking metrics of a set of samples and of its bootstrap resamples, from one sort and cumulative sums.

A larger score means more positive; equal scores share one threshold. A resample is given as counts: how often each
positive and each negative was drawn, in their original order. No PyTorch is imported, so that workers start quickly.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

import joblib
import numpy as np
import numpy.typing as npt

Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.intp]
Counts = npt.NDArray[np.intp]


@dataclass(frozen=True)
class Curve:
    """True and false positives at each distinct score of a positive, in descending order."""

    tp: Floats  # (scores + 1,)  starts with 0: nothing accepted
    fp: Floats  # (scores,)
    tied: Indices  # (ties,)  which of the scores negatives have too
    fp_above: Floats  # (ties,)  false positives just above these
    n_negatives: float

    @cached_property
    def steps(self) -> Floats:
        """Positives per score; 0 where none was drawn."""
        return np.diff(self.tp)

    def auroc(self) -> float:
        """P(positive > negative) + P(equal) / 2, exact: the sums are over integers."""
        twice = 2 * self.tp[-1] * self.n_negatives
        lost = 2 * _dot(self.steps, self.fp) - _dot(self.steps[self.tied], self.fp[self.tied] - self.fp_above)
        return float((twice - lost) / twice)

    def areas(self) -> tuple[float, float]:
        """AUPR (trapezoid rule) and average precision (step function).

        A trapezoid is the mean of the two steps through its ends.
        """
        share = _false_share(self.tp[1:], self.fp)
        right = 1 - _dot(self.steps, share) / self.tp[-1]
        share = _false_share(self.tp[:-1], self.fp)
        share[self.tied] = _false_share(self.tp[self.tied], self.fp_above)
        left = 1 - _dot(self.steps, share) / self.tp[-1]
        return float(left + right) / 2, float(right)

    def fpr_at_tpr(self, tpr: float) -> float:
        """False-positive rate at the highest threshold whose true-positive rate is at least `tpr`."""
        # A quotient is rounded as the literal 0.95 is: 19 of 20 reaches it. The product 0.95 * 20 need not.
        first = bisect_left(self.tp, tpr, key=lambda accepted: accepted / self.tp[-1])
        return float(self.fp[first - 1] / self.n_negatives)


@dataclass(frozen=True)
class ClassRanking:
    """Samples of one class in the order in which they are accepted: positives descending, negatives ascending.

    "Below" means later in this order, so that the code is the same for both classes, and the k scores of the other
    class below a sample are the first k of that class's ranking.
    """

    order: Indices  # (samples,)
    ends: Indices  # (scores + 1,)  samples up to each distinct score, starting with 0
    n_below: Indices  # (scores,)  distinct scores of the other class below each
    tied: Indices  # (ties,)  which of the scores the other class has too
    n_at_or_below: Indices  # (ties,)  distinct scores of the other class at or below these

    def cumulative(self, counts: Counts | Floats) -> Floats:
        """Number of draws up to each distinct score."""
        return _cumulative(counts[self.order])[self.ends]

    def curve(self, own: Floats, other: Floats) -> Curve:
        """Curve with this class as positive, from the cumulative counts of both."""
        fp = other[self.n_below]
        np.subtract(other[-1], fp, out=fp)
        return Curve(own, fp, self.tied, other[-1] - other[self.n_at_or_below], other[-1])


@dataclass(frozen=True)
class Ranking:
    """Two classes ranked by a score."""

    positive: ClassRanking
    negative: ClassRanking

    def curves(self, positive: Counts | Floats, negative: Counts | Floats) -> tuple[Curve, Curve]:
        """Curve of the score, and of the negated score with the classes exchanged."""
        tp, tn = self.positive.cumulative(positive), self.negative.cumulative(negative)
        return self.positive.curve(tp, tn), self.negative.curve(tn, tp)

    def ood_scores(self, positive: Counts | Floats, negative: Counts | Floats) -> dict[str, float]:
        """The seven OoD metrics; the positives are the OoD samples."""
        ood_positive, id_positive = self.curves(positive, negative)
        aupr_in, ap_in = id_positive.areas()
        aupr_out, ap_out = ood_positive.areas()
        return {
            "auroc": id_positive.auroc(),
            "aupr_in": aupr_in,
            "aupr_out": aupr_out,
            "ap_in": ap_in,
            "ap_out": ap_out,
            "fpr95_id_positive": id_positive.fpr_at_tpr(0.95),
            "fpr95_ood_positive": ood_positive.fpr_at_tpr(0.95),
        }


@dataclass(frozen=True)
class PairwiseCounts:
    """How many negatives lie below each positive: enough for the AUROC, at a fifth to a half of a ranking's time."""

    order: Indices  # (negatives,)  ascending
    n_below: Indices  # (levels,)  negatives below a positive of this level
    n_at_or_below: Indices  # (levels,)
    level: Indices  # (positives,)

    def auroc(self, positive: Counts, negative: Counts) -> float:
        """P(positive > negative) + P(equal) / 2."""
        drawn = _cumulative(negative[self.order])
        twice = drawn[self.n_below] + drawn[self.n_at_or_below]
        return float(_dot(positive, twice[self.level]) / (2 * len(positive) * len(negative)))


@dataclass(frozen=True)
class Resampling:
    """OoD metrics of one score, and the AUROC of a second score of the same samples, over bootstrap resamples."""

    ranking: Ranking
    second: PairwiseCounts | None
    sizes: tuple[int, int]
    """Number of positives and of negatives."""

    def measure(self, positive: Counts, negative: Counts) -> dict[str, float]:
        """Metrics of one resample."""
        second = {"auroc_second": self.second.auroc(positive, negative)} if self.second else {}
        return self.ranking.ood_scores(positive, negative) | second

    def replicates(self, resamples: int, seed: int, processes: int = 1) -> list[dict[str, float]]:
        """Metrics of every resample, in no fixed order; all processes make the same draws and share the rest."""
        calls = (joblib.delayed(Resampling.share)(self, resamples, seed, k, processes) for k in range(processes))
        try:
            shares = joblib.Parallel(processes, max_nbytes=None)(calls)
        except BrokenProcessPool:  # a worker was killed
            return self.share(resamples, seed)
        return [found for share in shares for found in share]

    def share(self, resamples: int, seed: int, first: int = 0, step: int = 1) -> list[dict[str, float]]:
        """Metrics of every `step`-th resample, beginning with number `first`."""
        drawn = islice(draws(self.sizes, resamples, seed), first, None, step)
        return [self.measure(*draw_counts(draw, self.sizes)) for draw in drawn]


def draws(sizes: Sequence[int], resamples: int, seed: int) -> Iterator[tuple[Indices, ...]]:
    """Indices drawn with replacement from strata of these sizes, one resample at a time to fit the CPU cache."""
    generator = np.random.default_rng(seed)
    for _ in range(resamples):
        yield tuple(generator.integers(0, size, size, dtype=np.intp) for size in sizes)


def draw_counts(draw: Sequence[Indices], sizes: Sequence[int]) -> tuple[Counts, ...]:
    """How often each sample was drawn, per stratum."""
    return tuple(np.bincount(indices, minlength=size) for indices, size in zip(draw, sizes, strict=True))


def rank(score: Floats, positive: Bools) -> Ranking:
    """Ranking by one sort; both classes must be present."""
    order = np.argsort(-score)
    descending = score[order]
    starts = np.flatnonzero(np.append(True, descending[1:] != descending[:-1]))  # of the runs of equal scores
    is_positive = positive[order]
    positives, negatives = (np.add.reduceat(flags, starts, dtype=np.intp) for flags in (is_positive, ~is_positive))
    index = np.where(positive, positive.cumsum(), (~positive).cumsum())[order] - 1  # within the class
    return Ranking(
        _rank_class(index[is_positive], positives, negatives),
        _rank_class(index[~is_positive][::-1].copy(), negatives[::-1], positives[::-1]),
    )


def _rank_class(order: Indices, own: Counts, other: Counts) -> ClassRanking:
    """Ranking of one class, from the number of samples of both in each run of equal scores."""
    has_own, has_other = own > 0, other > 0
    n_below: Indices = (has_other.sum() - has_other.cumsum())[has_own]
    tied = np.flatnonzero(has_other[has_own])
    return ClassRanking(order, np.append(0, own[has_own].cumsum()), n_below, tied, n_below[tied] + 1)


def count_pairs(score: Floats, positive: Bools) -> PairwiseCounts:
    """Pairwise counts by one sort of the negatives; both classes must be present."""
    order = np.argsort(score[~positive])
    ascending = score[~positive][order]
    n_below, n_at_or_below = (np.searchsorted(ascending, score[positive], side=side) for side in ("left", "right"))
    # Both counts grow with the score, so that equal sums mean equal counts.
    _, first, level = np.unique(n_below + n_at_or_below, return_index=True, return_inverse=True)
    return PairwiseCounts(order, n_below[first], n_at_or_below[first], level)


def _cumulative(counts: Counts | Floats) -> Floats:
    """Cumulative sum, starting with 0."""
    sums = np.empty(len(counts) + 1)
    sums[0], sums[1:] = 0, counts.cumsum()
    return sums


def _false_share(tp: Floats, fp: Floats) -> Floats:
    """1 - precision; 0 where nothing is accepted, like scikit-learn's last point at (recall 0, precision 1)."""
    accepted = tp + fp
    accepted[: np.searchsorted(accepted, 1)] = 1
    return np.divide(fp, accepted, out=accepted)


def _dot(a: Counts | Floats, b: Floats) -> np.float64:
    """Dot product without BLAS, whose last digits depend on the number of threads."""
    return np.float64(np.einsum("i,i->", a, b))
