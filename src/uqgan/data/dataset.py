"""Data sets as two tensors on a device, without loaders (decision 0002), and the batches drawn from them."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from uqgan.errors import UsageError
from uqgan.shapes import Images, Labels, Prior

CHUNK = 2048
"""Batch size outside of training."""
Say = Callable[[str], None]
"""Receiver of progress messages, such as `print`."""


def silent(_: str) -> None:
    """Ignore a progress message."""


@dataclass(frozen=True)
class Decoded:
    """Decoded pictures of a split, with labels."""

    x: Tensor
    y: Tensor
    class_names: tuple[str, ...]
    left_out: tuple[str, ...] = ()
    """Pictures that could not be decoded, with the reason."""
    notes: tuple[str, ...] = ()
    """Further remarks, which are not cached."""
    sources: tuple[str, ...] = ()
    """Origin of each sample, for messages; not cached, and empty where only the row is known."""


def without_rows(x: Any, y: Any, class_names: tuple[str, ...], left_out: Mapping[int, str]) -> Decoded:
    """Decoded pictures from two arrays, without the rows in `left_out`, which gives a reason for each."""
    kept = np.delete(np.arange(len(y)), list(left_out)) if left_out else slice(None)
    return Decoded(torch.from_numpy(x[kept]), torch.from_numpy(y[kept]), class_names, tuple(left_out.values()))


def refuse_broken(left_out: Sequence[str], place: Path, skip_broken: bool) -> None:
    """Raise a UsageError for pictures that could not be decoded, unless they may be skipped."""
    if left_out and not skip_broken:
        more = f" (and {len(left_out) - 1} more)" if len(left_out) > 1 else ""
        raise UsageError(f"{place}: {left_out[0]}{more}: cannot be read (--skip-broken leaves such pictures out)")


class Batch(NamedTuple):
    """Samples of one training step."""

    x: Images
    y: Labels
    view: Tensor
    """Indices in the data set; an index plus the length of the set means the mirror image."""


@dataclass(frozen=True)
class Dataset:
    """Samples and their labels."""

    x: Tensor
    """uint8 images (N, channels, height, width), or float32 points (N, 2)."""
    y: Tensor
    """int64 labels (N,), from 0."""

    def __len__(self) -> int:
        return len(self.y)

    def to(self, device: torch.device) -> "Dataset":
        return Dataset(self.x.to(device), self.y.to(device))

    def __getitem__(self, index: Tensor) -> "Dataset":
        rows = index.nonzero()[:, 0] if index.dtype == torch.bool else index
        return Dataset(self.x.index_select(0, rows), self.y[rows])  # several times faster than x[rows]

    def keep(self, classes: Iterable[int]) -> "Dataset":
        """Samples of these classes, renumbered from 0 in ascending order."""
        chosen = torch.tensor(sorted(set(classes)), device=self.y.device)
        kept = self[torch.isin(self.y, chosen)]
        return Dataset(kept.x, torch.searchsorted(chosen, kept.y))

    def split(self, share: float, seed: int) -> tuple["Dataset", "Dataset"]:
        """Random split into the rest and the share; the same seed splits alike on every platform."""
        rest, part = split_indices(len(self), share, seed)
        return self[rest], self[part]

    def class_frequencies(self, n_classes: int) -> Prior:
        """Relative frequencies of the classes, p̂(y)."""
        return self.y.cpu().bincount(minlength=n_classes).double().div(len(self)).float().to(self.y.device)

    def steps_per_epoch(self, batch_size: int, drop_last: bool) -> int:
        whole, rest = divmod(len(self), min(batch_size, len(self)))
        return whole if drop_last or not rest else whole + 1

    def batches(
        self, batch_size: int, steps: range, seed: int, drop_last: bool = True, flip: bool = False
    ) -> Iterator[Batch]:
        """Batches of these steps, each sample mirrored with probability 1/2 if `flip`.

        The samples of a step depend on seed and step alone, so that a run can be resumed anywhere.
        """
        batch_size = min(batch_size, len(self))
        epoch_steps = self.steps_per_epoch(batch_size, drop_last)
        epoch, order = -1, torch.empty(0)
        for step in steps:
            if step // epoch_steps != epoch:
                epoch = step // epoch_steps
                order = epoch_views(len(self), seed, epoch, flip).to(self.y.device)
            start = step % epoch_steps * batch_size
            yield self.batch_at(order[start : start + batch_size], flip)

    def batch_at(self, view: Tensor, flip: bool = True) -> Batch:
        """Samples at these indices; from index len(self) on, mirror images."""
        place = view % len(self) if flip else view
        x = as_input(self.x[place])
        if flip:
            x = torch.where((view >= len(self))[:, None, None, None], x.flip(3), x)
        return Batch(x, self.y[place], view)


def outlier_batches(sets: Sequence[Tensor], batch_size: int, steps: range, seed: int) -> Iterator[Images]:
    """Batches of these steps as network input, with equal numbers (up to one) from each set.

    Each set is shuffled anew every epoch. The samples of a step depend on seed and step alone, so that a run can be
    resumed anywhere. Empty sets are skipped.
    """
    sets = [x for x in sets if len(x)]

    @lru_cache(2 * len(sets))
    def order(k: int, epoch: int) -> Tensor:
        return permutation(len(sets[k]), seed, epoch).to(sets[k].device)

    def take(k: int, start: int, stop: int) -> Tensor:
        """Samples `start` to `stop` of the endless sequence of set k."""
        n = len(sets[k])
        epochs = range(start // n, -(-stop // n))
        rows = [order(k, epoch)[max(0, start - epoch * n) : stop - epoch * n] for epoch in epochs]
        return sets[k][torch.cat(rows)] if rows else sets[k][:0]

    for step in steps:
        # Sample j of all batches is number j // len(sets) of set j % len(sets).
        ends = [
            [-((k - j) // len(sets)) for j in (step * batch_size, (step + 1) * batch_size)] for k in range(len(sets))
        ]
        yield as_input(torch.cat([take(k, start, stop) for k, (start, stop) in enumerate(ends)]))


def evenly(x: Tensor, n: int) -> Tensor:
    """n rows of x at equal distances, so that consecutive groups keep their shares."""
    return x if n == len(x) else x[torch.arange(n, device=x.device) * len(x) // n]


def as_input(x: Tensor) -> Images:
    """Samples as network input: pixels in [0, 1], points unchanged."""
    return x.float() / 255 if x.dtype == torch.uint8 else x


def equal_chunks(x: Tensor, size: int = CHUNK) -> Iterator[Images]:
    """Samples in chunks of one size, the last padded with zeros, so that a compiled network gets a single shape."""
    for chunk in x.split(size):  # type: ignore[no-untyped-call]
        missing = size - len(chunk) if len(x) > size or x.is_cuda else 0
        yield as_input(torch.cat([chunk, chunk.new_zeros(missing, *chunk.shape[1:])]) if missing else chunk)


def permutation(n: int, seed: int, epoch: int = 0) -> Tensor:
    """Random permutation drawn on the CPU, so that it is the same for every device."""
    return torch.randperm(n, generator=_drawn_for(seed, epoch))


def epoch_views(n: int, seed: int, epoch: int, flip: bool) -> Tensor:
    """Indices of all samples in random order; with `flip`, n is added to about half of them, to mirror these."""
    generator = _drawn_for(seed, epoch)
    order = torch.randperm(n, generator=generator)
    return order + n * torch.randint(2, (n,), generator=generator) if flip else order


def _drawn_for(seed: int, epoch: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed * 1_000_003 + epoch)


def split_indices(n: int, share: float, seed: int) -> tuple[Tensor, Tensor]:
    """Random split of the indices 0 … n-1, the second part of size ⌊share · n⌋."""
    order = permutation(n, seed)
    part = int(share * n)
    return order[: n - part], order[n - part :]
