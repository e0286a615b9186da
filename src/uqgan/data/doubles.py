"""Samples that are there more than once, pixel for pixel."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor


def first_copies(sets: Sequence[Tensor]) -> list[Tensor]:
    """For each sample of these sets, all numbered through, the number of the first one equal to it: mostly its own.

    A fast hash finds the few that may be equal; only those are compared.
    """
    rows = [_rows(x) for x in sets]
    keys = np.concatenate([_hash(each) for each in rows])
    _, group, sizes = np.unique(keys, return_inverse=True, return_counts=True)
    first = torch.arange(len(keys))
    starts = np.cumsum([0, *(len(each) for each in rows)])
    seen: dict[bytes, int] = {}
    for number in np.flatnonzero(sizes[group] > 1).tolist():
        which = int(np.searchsorted(starts, number, side="right")) - 1
        first[number] = seen.setdefault(rows[which][number - starts[which]].tobytes(), number)
    return list(first.split([len(each) for each in rows]))  # type: ignore[no-untyped-call]


def _rows(x: Tensor) -> np.ndarray:
    """A sample's bytes in a row."""
    return x.contiguous().numpy().reshape(len(x), -1).view(np.uint8)


def _hash(rows: np.ndarray) -> np.ndarray:
    """64 bits a row: its words, weighed by odd numbers drawn once."""
    rest = -rows.shape[1] % 8
    words = (np.pad(rows, ((0, 0), (0, rest))) if rest else rows).view(np.uint64)
    weights = np.random.default_rng(0).integers(0, 2**63, words.shape[1], dtype=np.uint64) * 2 + 1
    return words @ weights
