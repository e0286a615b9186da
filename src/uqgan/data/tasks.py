"""Tasks: an in-distribution data set with its splits, and the out-of-distribution sets it is tested against."""

import difflib
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from uqgan.data import digits, own, sources
from uqgan.data.cache import Decoded, Say, silent
from uqgan.data.dataset import Dataset
from uqgan.data.decode import own_limit
from uqgan.data.splits import Task, split_task
from uqgan.data.toy import TOYS, sample_outliers
from uqgan.errors import UsageError
from uqgan.workers import Pool, kept_workers, two_at_a_time

__all__ = ["TASKS", "Outline", "Task", "load_task", "parse_classes", "split_task"]

LARGE = 2**30
"""Bytes of pictures from which on a task says beforehand what it will take."""


@dataclass(frozen=True)
class Outline:
    """A task before its data are loaded."""

    title: str
    known: range = range(0)
    """Classes to train on; all others of the same set are the first OoD set."""
    n_classes: int = 0
    """Of the whole set."""
    ood: tuple[str, ...] = ()
    """Further OoD sets, in the paper's order."""
    size: int = 32
    channels: int = 3
    flip: bool = False


TASKS: dict[str, Outline] = {
    "gaussians": Outline("Two Gaussians, well apart"),
    "gaussians-overlap": Outline("Two Gaussians that overlap"),
    "moons": Outline("Two moons with little noise"),
    "moons-noisy": Outline("Two moons with much noise"),
    "grid-9": Outline("3 × 3 Gaussians, one class each"),
    "grid-3": Outline("3 × 3 Gaussians, three disconnected classes"),
    "digits": Outline("8 × 8 digits: 0-4 known, 5-9 unknown", range(5), 10),
    "mnist": Outline(
        "MNIST: 0-4 known, 5-9 unknown",
        range(5),
        10,
        ("emnist-letters", "fashion-mnist", "svhn", "omniglot", "cifar10"),
        channels=1,
    ),
    "cifar10": Outline(
        "CIFAR10: 0-4 known, 5-9 unknown", range(5), 10, ("lsun", "svhn", "fashion-mnist", "mnist"), flip=True
    ),
    "cifar100": Outline(
        "CIFAR100: 0-49 known, 50-99 unknown", range(50), 100, ("lsun", "svhn", "fashion-mnist", "mnist"), flip=True
    ),
    "tiny-imagenet": Outline(
        "Tiny ImageNet: 0-99 known, 100-199 unknown", range(100), 200, ("svhn", "fashion-mnist", "mnist"), size=64
    ),
}


def load_task(
    source: Any,
    seed: int = 0,
    root: str | Path | None = None,
    image_size: int | None = None,
    channels: int | None = None,
    skip_broken: bool = False,
    say: Say = silent,
) -> Task:
    """A task by name, such as `cifar10` or `cifar10+0,2-4` for other classes than the paper's, or one of own data.

    Own data are a folder of class folders, a .npz file, arrays or tensors (x, y), or any object with `__len__` and
    `__getitem__` → (image, label); `image_size`, `channels` and `skip_broken` are for them. `root` is where the
    paper's data sets are, UQGAN_DATA if not given.
    """
    if not isinstance(source, str | os.PathLike):
        return own.task_of_pairs(source, seed, image_size, channels, skip_broken, say)
    name = os.fspath(source)
    family, _, ranges = name.partition("+")
    if family in TASKS:
        return _known_task(name, family, ranges, seed, root, skip_broken, say)
    path = Path(name)
    if os.path.isdir(name):  # noqa: PTH112  # unlike Path's, false for names that no disk takes
        return own.task_of_folder(path, seed, image_size, channels, skip_broken, say)
    if path.suffix == ".npz" and os.path.isfile(name):  # noqa: PTH113
        return own.task_of_npz(path, seed, image_size, channels, say)
    close = difflib.get_close_matches(family, TASKS, n=1)
    fix = f"did you mean {close[0]}?" if close else f"known: {', '.join(TASKS)}"
    if os.sep in name or path.suffix == ".npz":
        raise UsageError(f"task = {name}: no such folder or .npz file")
    raise UsageError(f"task = {name}: no such task, folder or .npz file ({fix})")


def _known_task(
    name: str, family: str, ranges: str, seed: int, root: str | Path | None, skip_broken: bool, say: Say
) -> Task:
    if family in TOYS:
        if ranges:
            raise UsageError(f"task = {name}: a toy has no other classes to choose from (write {family})")
        return _toy_task(family, seed)
    outline = TASKS[family]
    known = parse_classes(ranges, outline.n_classes) if ranges else outline.known
    if family == "digits":
        return _digits_task(name, known, seed)
    with kept_workers() as workers, own_limit():
        return _Shelf(outline, sources.data_root(root), skip_broken, say, workers).task(name, family, known, seed)


def _title(family: str, known: Sequence[int]) -> str:
    outline = TASKS[family]
    return outline.title if list(known) == list(outline.known) else f"{family}: {class_ranges(known)} known"


def parse_classes(text: str, n_classes: int) -> list[int]:
    """`0,3,6-8` (or `6..8`) → [0, 3, 6, 7, 8]."""
    chosen: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)\s*(?:(?:-|\.\.)\s*(\d+)\s*)?", part)
        if not match:
            raise UsageError(f"classes = {text}: must look like 0,3,6-8")
        first, last = int(match[1]), int(match[2] or match[1])
        if first > last or last >= n_classes:
            raise UsageError(f"classes = {text}: must be within 0-{n_classes - 1}, the smaller number first")
        chosen.update(range(first, last + 1))
    if not 2 <= len(chosen) < n_classes:
        raise UsageError(f"classes = {text}: at least 2 must be known and at least 1 left out, of {n_classes}")
    return sorted(chosen)


def class_ranges(classes: Sequence[int]) -> str:
    """[0, 3, 6, 7, 8] → `0,3,6-8`."""
    runs: list[list[int]] = []
    for k in sorted(classes):
        if runs and k == runs[-1][1] + 1:
            runs[-1][1] = k
        else:
            runs.append([k, k])
    return ",".join(f"{a}-{b}" if b > a else str(a) for a, b in runs)


@dataclass(frozen=True)
class _Shelf:
    """The data sets of one of the paper's tasks, as its network sees them."""

    outline: Outline
    root: Path
    skip_broken: bool
    say: Say
    workers: Pool

    def task(self, name: str, family: str, known: Sequence[int], seed: int) -> Task:
        for part, called in (("train", "training"), ("test", "test")):
            if not sources.splits_of(family, part, self.root):
                how = sources.how_to_get(family, self.root)
                raise UsageError(f"task = {name}: no {called} pictures of {family} in {self.root} ({how})")
        sets = [family, *self.outline.ood]
        self._announce(sets)
        wanted = [(each, part) for each in sets for part in ("train", "test")]
        parts = two_at_a_time(self._part, wanted, self.workers)
        train, test = cast(Decoded, parts[family, "train"]), cast(Decoded, parts[family, "test"])
        self._enough_classes(family, train, test, known)
        others = sorted(set(range(self.outline.n_classes)) - set(known))
        rest = f"{family}+{class_ranges(others)}"
        seen, unseen = Dataset(train.x, train.y), Dataset(test.x, test.y)
        ood_train, ood_test = {rest: seen.keep(others).x}, {rest: unseen.keep(others).x}
        missing: dict[str, str] = {}
        names = tuple(train.class_names[k] for k in known)
        counts = train.y.bincount()[list(known)].tolist()
        notes = [*self._notes(family, train), *_left_out(family, train, test), *own.warnings_of(names, counts)]
        for key in self.outline.ood:
            foreign_train, foreign = parts[key, "train"], parts[key, "test"]
            if foreign is None:
                missing[key] = f"not in {self.root} ({sources.how_to_get(key, self.root)})"
                continue
            ood_test[key] = foreign.x
            if foreign_train is None:
                notes.append(f"{key} has no training pictures here: studies and oracles do without it")
            else:
                ood_train[key] = foreign_train.x
            notes += _left_out(key, foreign, foreign_train)
        return split_task(
            name=name,
            title=_title(family, known),
            class_names=names,
            train=seen,
            test=unseen,
            ood_train=ood_train,
            ood_test=ood_test,
            seed=seed,
            known=known,
            flip=self.outline.flip,
            missing=missing,
            notes=tuple(notes),
        )

    def _part(self, name: str, part: str) -> Decoded | None:
        size, channels = self.outline.size, self.outline.channels
        return sources.load_part(name, part, size, channels, self.root, self.skip_broken, self.say)

    def _announce(self, names: Sequence[str]) -> None:
        """Memory, before it is taken."""
        splits = [(n, s) for n in names for part in ("train", "test") for s in sources.splits_of(n, part, self.root)]
        rows = sum(sources.rows_of(name, split, self.root) for name, split in splits)
        size = rows * self.outline.channels * self.outline.size**2
        if size >= LARGE:
            self.say(f"{rows:,} pictures take {size / 2**30:.1f} GiB of memory")

    def _enough_classes(self, family: str, train: Decoded, test: Decoded, known: Sequence[int]) -> None:
        n = self.outline.n_classes
        for part, decoded in (("training", train), ("test", test)):
            counts = decoded.y.bincount(minlength=n)
            if len(counts) > n or len(decoded.class_names) != n:
                raise UsageError(f"{family} in {self.root}: has {len(decoded.class_names)} classes: must have {n}")
            empty = [decoded.class_names[k] for k in known if not counts[k]]
            if empty:
                raise UsageError(
                    f"{family} in {self.root}: no {part} pictures of {', '.join(empty)} (choose other classes)"
                )

    def _notes(self, family: str, train: Decoded) -> list[str]:
        """Where the training set isn't the official one."""
        if family == "tiny-imagenet" and train.class_names != sources.official_classes():
            return [
                f"{family} here has other class names than wnids.txt, or another order: its halves aren't the paper's"
            ]
        counts = train.y.bincount(minlength=self.outline.n_classes).tolist()
        few = [k for k, count in enumerate(counts) if count < max(counts)]
        if not few or "train_ood" not in sources.splits_of(family, "train", self.root):
            return []
        n = sum(counts[k] for k in few)
        return [f"only {n:,} training pictures of the classes {class_ranges(few)} of {family} are here"]


def _left_out(name: str, *parts: Decoded | None) -> list[str]:
    n = sum(len(part.left_out) for part in parts if part)
    broken = [f"{n} broken pictures of {name} left out"] if n else []
    return [*broken, *(note for part in parts if part for note in part.notes)]


def _toy_task(name: str, seed: int, n: int = 100_000, n_test: int = 10_000) -> Task:
    toy, generator = TOYS[name], torch.Generator().manual_seed(seed)
    train, validation, calibration, test = (toy.sample(k, generator) for k in (n, n_test, n_test, n_test))
    ood, ood_validation, outliers = (
        {"uniform": sample_outliers(toy, test.x, k, generator)} for k in (n_test, n_test, n)
    )
    return Task(
        name=name,
        title=TASKS[name].title,
        class_names=tuple(str(k) for k in range(int(train.y.max()) + 1)),
        train=train,
        validation=validation,
        calibration=calibration,
        test=test,
        ood=ood,
        ood_validation=ood_validation,
        outliers=outliers,
        posterior=toy.posterior,
    )


def _digits_task(name: str, known: Sequence[int], seed: int, test_share: float = 0.3) -> Task:
    train, test = digits.digits().split(test_share, seed)
    others = sorted(set(range(10)) - set(known))
    seen_patches, unseen_patches = digits.photo_patches()

    def foreign(data: Dataset, patches: Tensor, noise_seed: int) -> dict[str, Tensor]:
        return {
            "other-digits": data.keep(others).x,
            "photo-patches": patches,
            "noise": digits.noise(len(data), noise_seed),
        }

    return split_task(
        name=name,
        title=_title("digits", known),
        class_names=tuple(str(k) for k in known),
        train=train.keep(known),
        test=test.keep(known),
        ood_train=foreign(train, seen_patches, 2 * seed),
        ood_test=foreign(test, unseen_patches, 2 * seed + 1),
        seed=seed,
    )
