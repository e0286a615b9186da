"""Duplicates: samples that equal another one, pixel for pixel."""

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from uqgan.errors import count

Prints = npt.NDArray[np.uint64]
"""Fingerprints, one per sample."""
NAMED, COPIES_NAMED = 20, 4
"""Limits of label conflicts listed by name, and of copies per conflict; further ones are counted."""


def fingerprints(x: Tensor) -> Prints:
    """64-bit hashes: equal for equal samples, and almost surely different for others."""
    rows = _bytes_of(x.cpu())
    return np.frombuffer(b"".join(hashlib.blake2b(row, digest_size=8).digest() for row in rows), "<u8")


def first_copies(sets: Sequence[Tensor]) -> Tensor:
    """Index of the first equal sample per sample, counted over all sets; the sample's own index if it is no duplicate.

    A fast hash finds candidates; only these are compared.
    """
    rows = [_bytes_of(x) for x in sets]
    keys = np.concatenate([_hash(each) for each in rows])
    _, group, sizes = np.unique(keys, return_inverse=True, return_counts=True)
    starts = np.cumsum([0, *(len(each) for each in rows)])
    first = torch.arange(len(keys))
    seen: dict[bytes, int] = {}
    for number in np.flatnonzero(sizes[group] > 1).tolist():
        which = int(np.searchsorted(starts, number, side="right")) - 1
        first[number] = seen.setdefault(rows[which][number - starts[which]].tobytes(), number)
    return first


def in_several_classes(first: Tensor, y: Tensor) -> Tensor:
    """Whether a sample equals one of another class; `first` as from `first_copies`."""
    return torch.isin(first, first[y != y[first]])


def conflict_notes(first: Tensor, in_conflict: Tensor, name_of: Callable[[int], str]) -> list[str]:
    """A warning for each picture that is in several classes, with all its copies by name."""
    copies: dict[int, list[str]] = {}
    for number in in_conflict.nonzero()[:, 0].tolist():
        copies.setdefault(int(first[number]), []).append(name_of(number))
    notes = []
    for names in copies.values():
        more = f" and {len(names) - COPIES_NAMED} more" if len(names) > COPIES_NAMED else ""
        same = f"{' and '.join(names[:COPIES_NAMED])}{more}"
        notes.append(f"warning: label conflict: {same} are the same picture in different classes: all left out")
    if len(notes) > NAMED:
        notes[NAMED:] = [f"warning: label conflicts of {count(len(copies), 'picture')} in all, left out"]
    return notes


def duplicates_notes(of_test: Tensor, foreign: Tensor) -> list[str]:
    """Sentences about the duplicates left out: whether each equals a test picture, and whether it is of an OoD set."""
    notes = []
    for called, chosen in (("pictures for training", ~foreign), ("OoD pictures", foreign)):
        found = {"equal a test picture": of_test & chosen, "equal another one": ~of_test & chosen}
        reasons = " and ".join(f"{int(each.sum()):,} {what}" for what, each in found.items() if each.any())
        notes += [f"{called} left out: {reasons}, pixel for pixel"] if reasons else []
    return notes


def _bytes_of(x: Tensor) -> npt.NDArray[np.uint8]:
    """Array with one row of bytes per sample."""
    flat: Any = x.contiguous().flatten(1).numpy()
    return flat.view(np.uint8)  # type: ignore[no-any-return]


def _hash(rows: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint64]:
    """64-bit hash per row: the sum of its words, weighted by odd numbers."""
    rest = -rows.shape[1] % 8
    words = (np.pad(rows, ((0, 0), (0, rest))) if rest else rows).view(np.uint64)
    weights = np.random.default_rng(0).integers(0, 2**63, words.shape[1], dtype=np.uint64) * 2 + 1
    return words @ weights
