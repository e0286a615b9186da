"""Streamed prediction: files to rows, in order, decoded concurrently."""

import heapq
import os
import time
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count, islice
from typing import Any

import numpy as np
import torch
from torch import Tensor

from uqgan.data.decode import Piece
from uqgan.decisions import WORDS, Decisions
from uqgan.drift import drift
from uqgan.run import Run
from uqgan.tables import Row
from uqgan.uncertainty import Prediction

PIECE = 128
"""Least number of files predicted in one batch."""
CHUNK, CHUNK_ON_GPU = 512, 2048
"""Number of files predicted in one batch on a CPU, fewer for several passes or members, and on a GPU."""
DECODING = 5e-5
"""Approximate time to decode a small picture, in seconds."""
SAMPLE = 32
"""Number of samples for measuring the speed of a network."""
DRIFT_FROM = 20
"""Least number of pictures for a comparison of all of them with the calibration pictures."""
NAMED = 20
"""Limit of broken files that are listed by name; further ones are counted."""
PICTURES = 48
"""Limit of pictures per decision on a page."""
SCORES = ("aleatoric", "epistemic", "foreignness")


def columns_of(class_names: Sequence[str], probabilities: bool) -> list[str]:
    """Column names of a row."""
    each = [f"probability_{name}" for name in class_names] if probabilities else []
    return ["path", "label", "probability", *each, *SCORES, "p_value", "decision", "reason", "set", "error"]


def chunk_size(run: Run) -> int:
    """Number of files predicted in one batch."""
    predictor = run.record.predictor
    if predictor.prior.device.type != "cpu":
        return CHUNK_ON_GPU
    return max(PIECE, CHUNK // (predictor.passes * len(predictor.members)) // PIECE * PIECE)


def piece_size(run: Run) -> int:
    """Number of files decoded in one batch: a chunk, or a part of a large one."""
    return min(CHUNK, chunk_size(run))


def threads_beside(run: Run, cores: int) -> int:
    """Number of threads for prediction while other cores decode: few for a small network, most for a large one."""
    most, best = torch.get_num_threads(), float("inf")
    x = torch.zeros(SAMPLE, *run.record.plan.shape, dtype=torch.uint8)
    torch.set_num_threads(1)
    try:
        for _ in range(3):
            start = time.perf_counter()
            run.record.predictor.predict(x, 0)
            best = min(best, (time.perf_counter() - start) / SAMPLE)
    finally:
        torch.set_num_threads(most)
    return max(1, min(most, round(cores * best / (best + DECODING))))


def score(
    run: Run,
    pieces: Iterable[Piece],
    seed: int = 0,
    probabilities: bool = False,
    decides: bool = True,
    first: int = 0,
) -> Iterator[list[Row]]:
    """Rows of consecutive chunks; `first` is the index of the first chunk, if earlier ones were done before.

    The draws of a stochastic method depend on the seed and the index of the chunk. Random weights are the
    same for all chunks, so that pictures are compared under the same networks.
    """
    pieces, step = iter(pieces), chunk_size(run) // piece_size(run)
    fixed = any(nets.draws_weights for nets in run.record.predictor.networks)
    for number in count(first):
        group = list(islice(pieces, step))
        if not group:
            return
        files = [file for batch, _ in group for file in batch]
        starts = np.cumsum([0, *(len(batch) for batch, _ in group)]).tolist()
        broken = {start + k: why for start, (_, (_, bad)) in zip(starts, group, strict=False) for k, why in bad.items()}
        readable = np.delete(np.concatenate([x for _, (x, _) in group]), list(broken), axis=0)
        draws = seed if fixed else (seed + number) % 2**31
        found = run.predict(readable, draws) if len(readable) else None
        decisions = run.decide(found, draws) if found and decides else None
        yield rows_of(files, broken, found, decisions, run.class_names, probabilities)


def rows_of(
    files: Sequence[str],
    broken: dict[int, str],
    found: Prediction | None,
    decisions: Decisions | None,
    class_names: Sequence[str],
    probabilities: bool,
) -> list[Row]:
    """Row per file, in order; for a file that could not be read only path and reason."""
    known: Iterator[tuple[Any, ...]] = iter(())
    width = len(columns_of(class_names, probabilities)) - 2
    if found:
        cells: list[Iterable[Any]] = [[class_names[k] for k in found.labels.tolist()], numbers(found.probs.amax(1))]
        cells += [numbers(column) for column in found.probs.T] if probabilities else []
        cells += [numbers(getattr(found, name)) for name in SCORES]
        known = zip(*cells, *decision_cells(decisions, len(found.probs), class_names), strict=True)
    rows: list[Row] = []
    for row, file in enumerate(files):
        path = printable(file)
        if row in broken:
            rows.append([path, *[None] * width, broken[row]])
        else:
            rows.append([path, *next(known), None])
    return rows


def printable(file: str) -> str:
    """Path as valid text, whatever bytes it consists of."""
    return os.fsencode(file).decode("utf-8", "replace")


def decision_cells(decisions: Decisions | None, n: int, class_names: Sequence[str]) -> list[Sequence[Any]]:
    """p-values, words, reasons and sets of classes; all None without decisions."""
    if decisions is None:
        return [[None] * n] * 4
    sets = [[name for name, inside in zip(class_names, row, strict=True) if inside] for row in decisions.shown.tolist()]
    reasons = [reason or None for reason in decisions.reasons]
    return [decisions.p_value.tolist(), decisions.words, reasons, sets]


def numbers(column: Tensor) -> list[float]:
    """Values as the shortest decimals that identify the float32 numbers."""
    values: list[float] = column.float().numpy().astype(str).astype(float).tolist()
    return values


@dataclass
class Summary:
    """Summary of any number of rows: counts, and a few rows of each kind."""

    columns: Sequence[str]
    score: str
    """Column by which samples are flagged."""
    shown: int = 20
    """Number of first rows that are kept."""
    pictures: int = 0
    """Number of rows kept per decision: those closest to the threshold, or with the highest uncertainty."""
    n: int = 0
    broken: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    first: list[Row] = field(default_factory=list)
    named: list[str] = field(default_factory=list)
    scores: "array[float]" = field(default_factory=lambda: array("d"))
    best: dict[str, list[tuple[float, int, Row]]] = field(default_factory=lambda: {word: [] for word in WORDS})

    def add(self, rows: Sequence[Row]) -> None:
        place = {name: k for k, name in enumerate(self.columns)}
        score, word, error = place[self.score], place["decision"], place["error"]
        keys = {"accept": score, "ambiguous": place["aleatoric"], "unknown": score}
        self.first += rows[: self.shown - len(self.first)]
        for row in rows:
            self.n += 1
            if row[error] is not None:
                self.broken += 1
                if len(self.named) < NAMED:
                    self.named.append(f"{row[0]}: {row[error]}")
                continue
            self.scores.append(row[score])
            if row[word] is None:
                continue
            self.counts[row[word]] += 1
            if self.pictures:
                entry, best = (row[keys[row[word]]], -self.n, row), self.best[row[word]]
                (heapq.heappush if len(best) < self.pictures else heapq.heappushpop)(best, entry)

    def chosen(self, word: str) -> list[Row]:
        """Rows of a decision in descending order of their score."""
        return [row for *_, row in sorted(self.best[word], reverse=True)]

    def drift(self, run: Run) -> str:
        """Comparison of all pictures with the calibration pictures; empty if there are too few."""
        if len(self.scores) < DRIFT_FROM or not self.counts:
            return ""
        return drift(run.calibration, torch.tensor(self.scores).float(), run.rule).verdict
