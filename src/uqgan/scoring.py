"""Files → rows of predictions: streamed, in order, decoded beside the prediction."""

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
from uqgan.decisions import WORDS, Decisions, drift
from uqgan.run import Run
from uqgan.tables import Row
from uqgan.uncertainty import Prediction

PIECE = 128
"""Files that a process decodes at once."""
CHUNK, CHUNK_ON_GPU = 512, 2048
"""Files that are predicted at once; fewer where each goes through the networks often."""
DECODING = 5e-5
"""Seconds that it takes about to decode a small picture."""
SAMPLE = 32
"""Samples by which a network's speed is judged."""
DRIFT_FROM = 20
"""Pictures from which on they are compared with the calibration pictures as a whole."""
NAMED = 20
"""Most broken files that are named; more are counted."""
PICTURES = 48
"""Most pictures of a decision on a page."""
SCORES = ("aleatoric", "epistemic", "foreignness")


def columns_of(class_names: Sequence[str], probabilities: bool) -> list[str]:
    """Names of a row's values."""
    each = [f"probability_{name}" for name in class_names] if probabilities else []
    return ["path", "label", "probability", *each, *SCORES, "p_value", "decision", "set", "error"]


def chunk_size(run: Run) -> int:
    """Number of files that are predicted at once."""
    predictor = run.record.predictor
    if predictor.prior.device.type != "cpu":
        return CHUNK_ON_GPU
    return max(PIECE, CHUNK // (predictor.passes * len(predictor.members)) // PIECE * PIECE)


def threads_beside(run: Run, cores: int) -> int:
    """Threads that predict best while other cores decode: few for a small network, nearly all for a large one."""
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
    """Rows of chunk after chunk; `first` is the number of the first chunk, from 0, when others were done before.

    A stochastic method draws anew for each chunk, the same for the same seed and number. Draws of the weights are the
    same for all chunks, so that pictures are compared under the same networks.
    """
    pieces, step = iter(pieces), chunk_size(run) // PIECE
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
    """A row for each file, in order; of one that could not be read the path and the reason."""
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
    """Path as text that can be written, whatever bytes its name is made of."""
    return os.fsencode(file).decode("utf-8", "replace")


def decision_cells(decisions: Decisions | None, n: int, class_names: Sequence[str]) -> list[Sequence[Any]]:
    """p-values, words and sets of classes; none of them where nothing is decided."""
    if decisions is None:
        return [[None] * n] * 3
    sets = [[name for name, inside in zip(class_names, row, strict=True) if inside] for row in decisions.shown.tolist()]
    return [decisions.p_value.tolist(), decisions.words, sets]


def numbers(column: Tensor) -> list[float]:
    """Values as the shortest decimals that give the same float32 back."""
    values: list[float] = column.float().numpy().astype(str).astype(float).tolist()
    return values


@dataclass
class Summary:
    """Summary of any number of rows: counts, and a few rows of each kind."""

    columns: Sequence[str]
    score: str
    """Column that samples are flagged by."""
    shown: int = 20
    """First rows that are kept."""
    pictures: int = 0
    """Rows of each decision that are kept: those nearest to being flagged, and those of the highest uncertainty."""
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
        """Rows of a decision, those with the largest score first."""
        return [row for *_, row in sorted(self.best[word], reverse=True)]

    def drift(self, run: Run) -> str:
        """How the pictures as a whole compare with the calibration pictures; empty for a few."""
        if len(self.scores) < DRIFT_FROM or not self.counts:
            return ""
        return drift(run.calibration, torch.tensor(self.scores).float(), run.rule).verdict
