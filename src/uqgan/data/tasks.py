"""Tasks: an in-distribution data set with its splits, and the out-of-distribution sets it is tested against.

A task of the paper is made by `paper_task`: its sets are found, decoded, cached, and split.
"""

import difflib
import os
import re
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from uqgan.data import user
from uqgan.data.dataset import Dataset, Decoded, Say, silent
from uqgan.data.digits import digits_task
from uqgan.data.sets import load_part
from uqgan.data.sources import REPOSITORIES, data_root, how_to_get, rows_of, splits_of
from uqgan.data.splits import Task, class_warnings, split_task
from uqgan.data.toy import toy_task
from uqgan.errors import UsageError, count
from uqgan.samples import as_path, brief, check_seed

__all__ = ["TASKS", "Outline", "Task", "is_user_data", "load_task", "parse_classes", "split_task"]

LARGE = 2**30
"""Size of the decoded pictures, in bytes, from which on the memory they need is announced."""


@dataclass(frozen=True)
class Outline:
    """A task before its data are loaded."""

    title: str
    known: range = range(0)
    """Classes to train on; all others of the same set are the first OoD set."""
    n_classes: int = 0
    """Number of classes of the whole set; 0 where there are none to choose from."""
    ood: tuple[str, ...] = ()
    """Further OoD sets, in the paper's order."""
    size: int = 32
    """Pixels per side of the network's input."""
    channels: int = 3
    """Channels of the network's input."""
    flip: bool = False
    """Whether training mirrors pictures at random."""
    make: Callable[[str, str, Sequence[int], int], Task] | None = None
    """Factory for tasks that need no files, from name, title, known classes and seed."""
    near: str = ""
    """OoD set with the other classes of the same set, unless it has the name of the task."""


TASKS: dict[str, Outline] = {
    "gaussians": Outline("Two Gaussians, well apart", make=toy_task),
    "gaussians-overlap": Outline("Two Gaussians that overlap", make=toy_task),
    "moons": Outline("Two moons with little noise", make=toy_task),
    "moons-noisy": Outline("Two moons with much noise", make=toy_task),
    "grid-9": Outline("3 × 3 Gaussians, one class each", make=toy_task),
    "grid-3": Outline("3 × 3 Gaussians, three disconnected classes", make=toy_task),
    "digits": Outline("8 × 8 digits: 0-4 known, 5-9 unknown", range(5), 10, make=digits_task, near="other-digits"),
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
"""All named tasks; those without `make` are the paper's and have the name of their set."""


def is_near(task: str, ood_set: str) -> bool:
    """Whether an OoD set consists of the other classes of the task's data set."""
    family = task.partition("+")[0]
    outline = TASKS.get(family)
    return outline is not None and ood_set.partition("+")[0] == (outline.near or family)


def is_user_data(task: str) -> bool:
    """Whether a task's name stands for user-supplied data rather than one of TASKS."""
    return task.partition("+")[0] not in TASKS


def load_task(
    source: Any,
    seed: int = 0,
    root: str | Path | None = None,
    image_size: int | None = None,
    channels: int | None = None,
    skip_broken: bool = False,
    say: Say = silent,
) -> Task:
    """Task by name, such as `cifar10`, or `cifar10+0,2-4` for other classes than the paper's, or of user-supplied data.

    User-supplied data are a folder of class folders, a .npz file, arrays or tensors (x, y), or any object with
    `__len__` and `__getitem__` → (image, label); `image_size`, `channels` and `skip_broken` are for them. `root` is
    the folder of the paper's data sets, UQGAN_DATA if not given.
    """
    seed = check_seed(seed)
    root = None if root is None else as_path(root, "data_root")
    if channels is not None and channels not in (1, 3):
        raise UsageError(f"channels = {brief(channels)}: must be 1 or 3")
    if not isinstance(source, str | os.PathLike):
        return user.task_of_pairs(source, seed, image_size, channels, skip_broken, say)
    name = os.fspath(source)
    family, _, ranges = name.partition("+")
    if family in TASKS:
        outline = TASKS[family]
        refuse_format(name, image_size, channels)
        if ranges and not outline.n_classes:
            raise UsageError(f"task = {name}: a toy has no other classes to choose from (write {family})")
        known = parse_classes(ranges, outline.n_classes) if ranges else list(outline.known)
        title = outline.title if known == list(outline.known) else f"{family}: {class_ranges(known)} known"
        if outline.make:
            return outline.make(name, title, known, seed)
        return paper_task(name, title, family, known, seed, data_root(root), skip_broken, say)
    path, kind = Path(name), kind_of_place(name)
    if kind == "folder":
        return user.task_of_folder(path, seed, image_size, channels, skip_broken, say)
    if kind and path.suffix == ".npz":
        return user.task_of_npz(path, seed, image_size, channels)
    raise no_such_task(name, kind)


def check_place(name: str) -> None:
    """Refuse a path that is neither a folder nor a .npz file."""
    kind = kind_of_place(name)
    if kind != "folder" and not (kind and Path(name).suffix == ".npz"):
        raise no_such_task(name, kind)


def no_such_task(name: str, kind: str) -> UsageError:
    """Error for a name that is neither a task nor user-supplied data."""
    if kind:
        return UsageError(f"task = {name}: is a file: must be a folder of class folders, or a .npz file")
    if os.sep in name or Path(name).suffix == ".npz":
        return UsageError(f"task = {name}: no such folder or .npz file")
    close = difflib.get_close_matches(name.partition("+")[0], TASKS, n=1)
    fix = f"did you mean {close[0]}?" if close else f"known: {', '.join(TASKS)}"
    return UsageError(f"task = {name}: no such task, folder or .npz file ({fix})")


def refuse_format(name: str, image_size: object, channels: object) -> None:
    """Refuse a requested size or number of channels for a set or task where it is fixed."""
    for what, value in (("--image-size", image_size), ("channels", channels)):
        if value is not None:
            raise UsageError(
                f"{what} = {brief(value)}: has no effect on {name}, only on user-supplied pictures (leave it out)"
            )


def kind_of_place(name: str) -> str:
    """Kind of a path: `folder`, `file`, or empty if it does not exist; one without permission is refused."""
    try:
        return "folder" if stat.S_ISDIR(os.stat(name).st_mode) else "file"  # noqa: PTH116  # may be no path at all
    except PermissionError as error:
        raise UsageError(f"task = {name}: cannot be read ({(error.strerror or str(error)).lower()})") from None
    except (OSError, ValueError):
        return ""


def paper_task(
    name: str, title: str, family: str, known: Sequence[int], seed: int, root: Path, skip_broken: bool, say: Say
) -> Task:
    """Task of the paper: its sets are found on this machine, decoded or read from the cache, and split."""
    outline = TASKS[family]
    _find(name, family, root, say)
    parts = {
        (key, part): load_part(key, part, outline.size, outline.channels, root, skip_broken, say)
        for key in (family, *outline.ood)
        for part in ("train", "test")
    }
    train, test = parts[family, "train"], parts[family, "test"]
    assert train
    assert test
    _check_classes(family, train, test, known, root)
    names = tuple(train.class_names[k] for k in known)
    others = sorted(set(range(outline.n_classes)) - set(known))
    rest = f"{family}+{class_ranges(others)}"
    seen, unseen = Dataset(train.x, train.y), Dataset(test.x, test.y)
    ood_train, ood_test = {rest: seen.keep(others).x}, {rest: unseen.keep(others).x}
    missing: dict[str, str] = {}
    notes = [*_set_notes(family, train, test, root), *class_warnings(names, train.y.bincount()[list(known)].tolist())]
    for key in outline.ood:
        foreign_train, foreign = parts[key, "train"], parts[key, "test"]
        if foreign is None:
            missing[key] = f"not in {root} ({how_to_get(key, root)})"
            continue
        ood_test[key] = foreign.x
        if foreign_train is None:
            notes.append(f"{key} has no training pictures here: studies and oracles do without it")
        else:
            ood_train[key] = foreign_train.x
        notes += _left_out(key, foreign, foreign_train)
    return split_task(
        name, title, names, seen, unseen, ood_train, ood_test, seed, known, outline.flip, missing, tuple(notes)
    )


def _find(name: str, family: str, root: Path, say: Say) -> None:
    """Refuse a task whose data set is not on this machine; announce the memory that large sets take."""
    for part, called in (("train", "training"), ("test", "test")):
        if not splits_of(family, part, root):
            raise UsageError(f"task = {name}: no {called} pictures of {family} in {root} ({how_to_get(family, root)})")
    outline = TASKS[family]
    sets = [(key, part) for key in (family, *outline.ood) for part in ("train", "test")]
    rows = sum(rows_of(key, split, root) for key, part in sets for split in splits_of(key, part, root))
    size = rows * outline.channels * outline.size**2
    if size >= LARGE:
        say(f"{rows:,} pictures take {size / 2**30:.1f} GiB of memory")


def _check_classes(family: str, train: Decoded, test: Decoded, known: Sequence[int], root: Path) -> None:
    """Refuse a set whose number of classes is not the paper's, or without pictures of a known class."""
    n = TASKS[family].n_classes
    for part, decoded in (("training", train), ("test", test)):
        counts = decoded.y.bincount(minlength=n)
        if len(counts) > n or len(decoded.class_names) != n:
            raise UsageError(f"{family} in {root}: has {count(len(decoded.class_names), 'class')}: must have {n}")
        empty = [decoded.class_names[k] for k in known if not counts[k]]
        if empty:
            raise UsageError(f"{family} in {root}: no {part} pictures of {', '.join(empty)} (choose other classes)")


def _set_notes(family: str, train: Decoded, test: Decoded, root: Path) -> list[str]:
    """Notes on differences between the data set of a task and the official one."""
    left_out = _left_out(family, train, test)
    official = REPOSITORIES[family].official_classes()
    if official and train.class_names != official:
        difference = "other class names than the official list, or another order"
        return [f"{family} here has {difference}: its halves aren't the paper's", *left_out]
    counts = train.y.bincount(minlength=TASKS[family].n_classes).tolist()
    few = [k for k, count in enumerate(counts) if count < max(counts)]
    if not few or "train_ood" not in splits_of(family, "train", root):
        return left_out
    n = sum(counts[k] for k in few)
    are = "is" if n == 1 else "are"
    return [f"only {count(n, 'training picture')} of the classes {class_ranges(few)} of {family} {are} here", *left_out]


def _left_out(name: str, *parts: Decoded | None) -> list[str]:
    """Notes on pictures of a set that were left out."""
    n = sum(len(part.left_out) for part in parts if part)
    broken = [f"{count(n, 'broken picture')} of {name} left out"] if n else []
    return [*broken, *(note for part in parts if part for note in part.notes)]


def parse_classes(text: str, n_classes: int) -> list[int]:
    """Classes in `0,3,6-8` (or `6..8`): [0, 3, 6, 7, 8]."""
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
    """Text for classes: `0,3,6-8` for [0, 3, 6, 7, 8]."""
    runs: list[list[int]] = []
    for k in sorted(classes):
        if runs and k == runs[-1][1] + 1:
            runs[-1][1] = k
        else:
            runs.append([k, k])
    return ",".join(f"{a}-{b}" if b > a else str(a) for a, b in runs)
