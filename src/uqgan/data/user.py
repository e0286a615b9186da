"""User-supplied data as a task: a folder, a .npz file, arrays, or any object that returns (image, label)."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from uqgan.data.arrays import (
    arrays_in,
    as_pair,
    as_pictures,
    digest_of,
    labels_of,
    numbered,
    pairs_in,
    picture_of,
    resized,
)
from uqgan.data.cache import content_of
from uqgan.data.dataset import Dataset, Decoded, Say, refuse_broken, split_indices
from uqgan.data.duplicates import conflict_notes, duplicates_notes, first_copies, in_several_classes
from uqgan.data.folder import NAMED, SAMPLE, Listing, load_listing, read_layout, shown, usual_format
from uqgan.data.preprocessing import GREY, Broken, PixelFormat, preprocessed
from uqgan.data.seen import file_names
from uqgan.data.splits import VALIDATION_SHARE, Task, class_warnings, cut_by_class, cut_ood
from uqgan.errors import UsageError, count
from uqgan.samples import brief

SIZES = (32, 64)
"""Image sizes that the networks accept."""
TEST_SHARE = 0.2
OOD_TEST_SHARE = 0.5
"""Share of the OoD pictures used for tests; the rest is for studies and oracles."""
LEAST_PER_CLASS = 5
"""Least number of pictures per class."""
MANY = 10_000
"""Least number of pictures for an image size of 64 pixels."""


def task_of_folder(
    root: Path, seed: int, image_size: int | None, channels: int | None, skip_broken: bool, say: Say
) -> Task:
    """Task of ROOT/CLASS/*.png, with optional levels train/, val/, test/ and ood/NAME/."""
    layout = read_layout(root)
    side, usual_channels = usual_format(layout.train)
    pixel_format = PixelFormat(chosen_size(image_size, side, len(layout.train.files)), channels or usual_channels)
    place = root.resolve()
    tag = hashlib.sha256(str(place).encode(errors="surrogateescape")).hexdigest()[:6]
    facts: list[Any] = []

    def load(level: str, listing: Listing, title: str = "") -> Decoded:
        content = content_of(listing.files, listing.root)
        facts.append([title or level, listing.class_names, listing.y, content])
        name = f"{place.name.replace('.', '-')}-{tag}-{level}"
        return load_listing(name, listing, content, pixel_format, skip_broken, say)

    given = {"train": layout.train, "val": layout.val, "test": layout.test}
    parts = {level: load(level, listing) for level, listing in given.items() if listing}
    ood = {name: load(f"ood-{k}", listing, f"ood/{name}") for k, (name, listing) in enumerate(layout.ood.items())}
    notes = list(layout.notes)
    broken = [sentence for part in (*parts.values(), *ood.values()) for sentence in part.left_out]
    notes += [f"broken: {sentence}" for sentence in broken[:NAMED]]
    if broken:
        notes.append(f"broken: {count(len(broken), 'picture')} in all, left out")
    pictures = {name: part.x for name, part in ood.items()}
    task = user_task(str(place), shown(Path(place.name)), parts, pictures, seed, notes)
    files = file_names(task, parts, ood)
    return replace(task, files=files, digest=hashlib.sha256(json.dumps(facts).encode()).hexdigest())


def task_of_npz(file: Path, seed: int, image_size: int | None, channels: int | None) -> Task:
    """Task of arrays x, y, or x_train, y_train, x_val, y_val, x_test, y_test; OoD sets as ood_NAME."""
    arrays = arrays_in(file)
    ood = {name[4:]: arrays[name] for name in arrays if name.startswith("ood_")}
    given = {level: (arrays[x], arrays[y]) for level, (x, y) in pairs_in(arrays, file).items()}
    return task_of_arrays(str(file.resolve()), file.stem, given, ood, seed, image_size, channels)


def task_of_pairs(
    source: Any, seed: int, image_size: int | None, channels: int | None, skip_broken: bool, say: Say
) -> Task:
    """Task of (x, y), or of an object with `__len__` and `__getitem__` → (image, label)."""
    if isinstance(source, tuple) and len(source) == 2 and all(hasattr(each, "__len__") for each in source):
        return task_of_arrays("own-data", "own data", {"train": source}, {}, seed, image_size, channels)
    if not (hasattr(source, "__len__") and hasattr(source, "__getitem__")) or isinstance(source, bytes | Mapping):
        raise UsageError(f"task = {type(source).__name__}: must be a name, a folder, (x, y), or have len() and [index]")
    if isinstance(source, tuple) and len(source) == 2 and not all(isinstance(each, tuple) for each in source):
        kinds = ", ".join(type(each).__name__ for each in source)
        raise UsageError(f"task = ({kinds}): must be (x, y), pictures and their labels")
    if not len(source):
        raise UsageError("task: holds no pictures")
    say(f"decoding {count(len(source), 'picture')}")
    side, usual_channels = format_of_items(source)
    pixel_format = PixelFormat(chosen_size(image_size, side, len(source)), channels or usual_channels)
    x = np.empty((len(source), pixel_format.channels, pixel_format.size, pixel_format.size), np.uint8)
    labels: list[Any] = []
    left_out: list[str] = []
    for row in range(len(source)):
        image, label = as_pair(source[row])
        try:
            x[len(labels)] = preprocessed(picture_of(image), pixel_format)
            labels.append(label)
        except (Broken, OSError) as error:
            left_out.append(f"item {row}: {error}")
    refuse_broken(left_out, Path(type(source).__name__), skip_broken)
    y, names = numbered(labels)
    given = getattr(source, "classes", None)  # as torchvision's sets have them
    if given and names == tuple(str(k) for k in range(len(given))):
        names = tuple(str(name) for name in given)
    part = Decoded(torch.from_numpy(x[: len(labels)]), y, names, tuple(left_out))
    task = user_task("own-data", type(source).__name__, {"train": part}, {}, seed, [])
    return replace(task, digest=digest_of({"train": (part.x, np.asarray(labels))}, {}))


def format_of_items(source: Any) -> tuple[int, int]:
    """Median of the shorter side, and number of channels, of a sample of the items; grey only if all of them are."""
    rows = range(0, len(source), max(1, len(source) // SAMPLE))
    pictures = [picture_of(as_pair(source[row])[0]) for row in rows]
    grey = all(each.mode in GREY for each in pictures)
    return int(np.median([min(each.size) for each in pictures])), 1 if grey else 3


def task_of_arrays(
    name: str,
    title: str,
    given: Mapping[str, tuple[Any, Any]],
    ood: Mapping[str, Any],
    seed: int,
    image_size: int | None = None,
    channels: int | None = None,
) -> Task:
    """Task of pictures and labels by level, and of OoD pictures by name."""
    pictures = {level: as_pictures(x, f"x of {title}, {level}") for level, (x, _) in given.items()}
    shape = pictures["train"].shape
    pixel_format = PixelFormat(chosen_size(image_size, min(shape[2:]), shape[0]), channels or shape[1])
    labels = {level: labels_of(y, f"y of {title}, {level}") for level, (_, y) in given.items()}
    for level, y in labels.items():
        n = len(pictures[level])
        if y.ndim != 1 or len(y) != n:
            raise UsageError(f"y of {title}, {level}: has shape {y.shape}: must have one label for each of {n:,}")
    together, names = numbered(np.concatenate(list(labels.values())))
    numbers = together.split([len(y) for y in labels.values()])  # type: ignore[no-untyped-call]
    small = {level: resized(x, pixel_format) for level, x in pictures.items()}
    parts = {level: Decoded(x, y, names) for (level, x), y in zip(small.items(), numbers, strict=True)}
    foreign = {key: as_pictures(x, f"ood_{key} of {title}") for key, x in ood.items()}
    task = user_task(name, title, parts, {key: resized(x, pixel_format) for key, x in foreign.items()}, seed, [])
    return replace(task, digest=digest_of({level: (x, labels[level]) for level, x in pictures.items()}, foreign))


def user_task(
    name: str, title: str, parts: Mapping[str, Decoded], ood: Mapping[str, Tensor], seed: int, notes: Sequence[str]
) -> Task:
    """Task of decoded parts; missing ones are split off the training pictures, stratified by class."""
    if "all" in ood:
        raise UsageError(f"{title}: has an OoD set named all: that is what all sets together are called (rename it)")
    parts, ood, duplicates = without_duplicates(parts, ood)
    whole, names = parts["train"], parts["train"].class_names
    counts = whole.y.bincount(minlength=len(names)).tolist()
    fewest = names[counts.index(min(counts))]
    why = f" ({duplicates[0]})" if duplicates else ""
    if min(counts) < LEAST_PER_CLASS:
        has = f"class {fewest} has {count(min(counts), 'picture')}"
        raise UsageError(f"{title}: {has}: must have at least {LEAST_PER_CLASS}{why}")
    train = Dataset(whole.x, whole.y)
    if "test" in parts:
        test = Dataset(parts["test"].x, parts["test"].y)
    else:
        rest, part = cut_by_class(train.y, TEST_SHARE, seed + 3)
        train, test = train[rest], train[part]
    if "val" in parts:
        held_out = Dataset(parts["val"].x, parts["val"].y)
    else:
        rest, part = cut_by_class(train.y, VALIDATION_SHARE, seed, at_least=2)
        train, held_out = train[rest], train[part]
    first, second = cut_by_class(held_out.y, 0.5, seed + 1)
    for level, data in (("val", first), ("test", test.y)):
        if not len(data):
            raise UsageError(f"{title}: {level}/ has too few pictures: must have at least 2 of a class{why}")
    tested = {key: split_indices(len(x), OOD_TEST_SHARE if len(x) > 1 else 1.0, seed + 4) for key, x in ood.items()}
    outliers, ood_validation = cut_ood({key: ood[key][rest] for key, (rest, _) in tested.items()}, seed)
    task = Task(
        name=name,
        title=title,
        class_names=names,
        train=train,
        validation=held_out[first],
        calibration=held_out[second],
        test=test,
        ood={key: ood[key][part] for key, (_, part) in tested.items()},
        ood_validation=ood_validation,
        outliers=outliers,
        drawn_test="test" not in parts,
    )
    return replace(task, notes=(*choices(task), *notes, *duplicates, *class_warnings(names, counts)))


def without_duplicates(
    parts: Mapping[str, Decoded], ood: Mapping[str, Tensor]
) -> tuple[Mapping[str, Decoded], Mapping[str, Tensor], list[str]]:
    """Parts without duplicates, in the order test/, val/, training, ood/, and notes on those removed.

    All copies of a picture that is in several classes are removed, as the correct label is unknown.
    """
    levels = [level for level in ("test", "val", "train") if level in parts]
    sets = [*(parts[level].x for level in levels), *ood.values()]
    n_test = len(parts["test"].x) if "test" in parts else 0
    first = first_copies(sets)
    y = torch.cat([parts[level].y for level in levels])
    in_conflict = torch.zeros(len(first), dtype=torch.bool)
    in_conflict[: len(y)] = in_several_classes(first[: len(y)], y)
    number = torch.arange(len(first))
    duplicate = (first != number) & (number >= n_test) & ~in_conflict
    notes = conflict_notes(first, in_conflict, partial(name_of, [(level, parts[level]) for level in levels]))
    notes += duplicates_notes(first[duplicate] < n_test, number[duplicate] >= len(y))
    if not notes:
        return parts, ood, []
    kept = (~(duplicate | in_conflict)).split([len(x) for x in sets])  # type: ignore[no-untyped-call]
    left = {
        k: replace(parts[k], x=parts[k].x[keep], y=parts[k].y[keep], sources=())
        for k, keep in zip(levels, kept, strict=False)
    }
    foreign = {key: x[keep] for (key, x), keep in zip(ood.items(), kept[len(levels) :], strict=True) if keep.any()}
    return left, foreign, notes


def name_of(parts: Sequence[tuple[str, Decoded]], number: int) -> str:
    """Origin of a sample, counted over all parts: its file, or its row and class."""
    level, part = parts[0]
    if number >= len(part.y):
        return name_of(parts[1:], number - len(part.y))
    return part.sources[number] if part.sources else f"row {number} of {level} ({part.class_names[part.y[number]]})"


def choices(task: Task) -> list[str]:
    """Sentences about classes, size, splits and OoD sets."""
    channels, size, _ = task.shape
    sizes = {key: len(getattr(task, key)) for key in ("train", "validation", "calibration", "test")}
    foreign = ", ".join(f"{key} {len(x):,}" for key, x in task.ood.items()) or "none (put pictures in ood/NAME/)"
    aside = {key: len(x) + len(task.ood_validation[key]) for key, x in task.outliers.items()}
    rest = ", ".join(f"{key} {n:,}" for key, n in aside.items() if n)
    fitted = ": turned by EXIF, short side fitted, middle cropped" if Path(task.name).is_dir() else ""
    return [
        f"{task.n_classes} classes: {', '.join(task.class_names[:8])}{', …' if task.n_classes > 8 else ''}",
        f"seen as {size} × {size} pixels (--image-size 32 or 64), {'grey' if channels == 1 else 'RGB'}{fitted}",
        "split: " + ", ".join(f"{key} {n:,}" for key, n in sizes.items()),
        f"OoD sets to test against: {foreign}",
        *([f"OoD pictures set aside for studies and oracles, not tested with: {rest}"] if rest else []),
    ]


def chosen_size(requested: int | None, side: int, n: int) -> int:
    """Requested image size, or else 64 for many large pictures: fewer do not suffice for the larger networks."""
    if requested is not None and (not isinstance(requested, int) or requested not in SIZES):
        raise UsageError(f"--image-size = {brief(requested)}: must be one of {', '.join(map(str, SIZES))}")
    return requested or (64 if side >= 48 and n >= MANY else 32)
