"""Own data as a task: a folder, a .npz file, arrays, or any object that gives (image, label)."""

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from uqgan.data.arrays import as_pair, as_pictures, numbered, picture_of, resized
from uqgan.data.cache import Decoded, Say
from uqgan.data.dataset import Dataset, split_indices
from uqgan.data.decode import Broken, Look, as_seen
from uqgan.data.folder import load_listing, read_layout, shown, usual_look
from uqgan.data.sources import refuse_broken
from uqgan.data.splits import VALIDATION_SHARE, Task, cut_by_class, cut_ood
from uqgan.errors import UsageError

SIZES = (32, 64)
"""Image sizes that the networks take."""
TEST_SHARE = 0.2
OOD_TEST_SHARE = 0.5
"""Of own OoD pictures; the rest is for studies and oracles."""
FEWEST, FEW, IMBALANCED = 5, 50, 10
"""Pictures a class without which there is no task; below which it's warned; and the ratio of classes that is."""


MANY = 10_000
"""Pictures from which on large ones are seen at 64 pixels."""
NAMED = 20
"""Broken pictures to name; more are counted."""


def task_of_folder(
    root: Path, seed: int, image_size: int | None, channels: int | None, skip_broken: bool, say: Say
) -> Task:
    """ROOT/CLASS/*.png, with optional levels train/, val/, test/ and ood/NAME/."""
    layout = read_layout(root)
    side, usual_channels = usual_look(layout.train)
    look = Look(chosen_size(image_size, side, len(layout.train.files)), channels or usual_channels)
    place = root.resolve()
    tag = hashlib.sha256(str(place).encode(errors="surrogateescape")).hexdigest()[:6]

    def load(level: str, listing: Any) -> Decoded:
        return load_listing(f"{place.name.replace('.', '-')}-{tag}-{level}", listing, look, skip_broken, say)

    given = {"train": layout.train, "val": layout.val, "test": layout.test}
    parts = {level: load(level, listing) for level, listing in given.items() if listing}
    ood = {name: load(f"ood-{k}", listing) for k, (name, listing) in enumerate(layout.ood.items())}
    passed_over: Counter[str] = sum((each.other for each in layout.listings), Counter())
    notes = [f"{n} {ending} files passed over: png, jpg, webp and bmp are read" for ending, n in passed_over.items()]
    broken = [sentence for part in (*parts.values(), *ood.values()) for sentence in part.left_out]
    notes += [f"broken: {sentence}" for sentence in broken[:NAMED]]
    if broken:
        notes.append(f"broken: {len(broken):,} pictures in all, left out")
    pictures = {name: part.x for name, part in ood.items()}
    return own_task(str(place), shown(Path(place.name)), parts, pictures, seed, notes)


def task_of_npz(file: Path, seed: int, image_size: int | None, channels: int | None, say: Say) -> Task:
    """Arrays x, y, or x_train, y_train, x_val, y_val, x_test, y_test; OoD sets as ood_NAME."""
    try:
        with file.open("rb") as opened, np.load(opened, allow_pickle=False) as saved:
            arrays = {name: saved[name] for name in saved.files}
    except (OSError, ValueError, EOFError, KeyError) as error:
        raise UsageError(f"{file}: not a whole .npz file of arrays ({' '.join(str(error).split())})") from None
    except Exception as error:  # zipfile's and zlib's own errors
        raise UsageError(f"{file}: not a whole .npz file of arrays ({error})") from None
    levels = {level: (f"x_{level}", f"y_{level}") for level in ("train", "val", "test")}
    if "x" in arrays:
        levels = {"train": ("x", "y")}
    pairs = {level: keys for level, keys in levels.items() if set(keys) <= set(arrays)}
    if "train" not in pairs:
        raise UsageError(f"{file}: has {', '.join(arrays) or 'nothing'}: must have x and y, or x_train and y_train")
    ood = {name[4:]: arrays[name] for name in arrays if name.startswith("ood_")}
    given = {level: (arrays[x], arrays[y]) for level, (x, y) in pairs.items()}
    return task_of_arrays(str(file.resolve()), file.stem, given, ood, seed, image_size, channels)


def task_of_pairs(
    source: Any, seed: int, image_size: int | None, channels: int | None, skip_broken: bool, say: Say
) -> Task:
    """(x, y), or an object with `__len__` and `__getitem__` → (image, label)."""
    if isinstance(source, tuple) and len(source) == 2 and all(hasattr(each, "__len__") for each in source):
        return task_of_arrays("own-data", "own data", {"train": source}, {}, seed, image_size, channels)
    if not (hasattr(source, "__len__") and hasattr(source, "__getitem__")):
        raise UsageError(f"task = {type(source).__name__}: must be a name, a folder, (x, y), or have len() and [index]")
    if not len(source):
        raise UsageError("task: holds no pictures")
    say(f"decoding {len(source):,} pictures")
    first, _ = as_pair(source[0])
    picture = picture_of(first)
    look = Look(
        chosen_size(image_size, min(picture.size), len(source)), channels or (1 if picture.mode in ("1", "L") else 3)
    )
    x = np.empty((len(source), look.channels, look.size, look.size), np.uint8)
    labels: list[Any] = []
    left_out: list[str] = []
    for row in range(len(source)):
        image, label = as_pair(source[row])
        try:
            x[len(labels)] = as_seen(picture_of(image), look)
            labels.append(label)
        except (Broken, OSError) as error:
            left_out.append(f"item {row}: {error}")
    refuse_broken(left_out, Path(type(source).__name__), skip_broken)
    y, names = numbered(labels)
    called = getattr(source, "classes", None)  # as torchvision's sets have them
    if called and names == tuple(str(k) for k in range(len(called))):
        names = tuple(str(name) for name in called)
    part = Decoded(torch.from_numpy(x[: len(labels)]), y, names, tuple(left_out))
    return own_task("own-data", type(source).__name__, {"train": part}, {}, seed, [])


def task_of_arrays(
    name: str,
    title: str,
    given: Mapping[str, tuple[Any, Any]],
    ood: Mapping[str, Any],
    seed: int,
    image_size: int | None = None,
    channels: int | None = None,
) -> Task:
    pictures = {level: as_pictures(x, f"x of {title}, {level}") for level, (x, _) in given.items()}
    shape = pictures["train"].shape
    look = Look(chosen_size(image_size, min(shape[2:]), shape[0]), channels or shape[1])
    labels = [np.asarray(y) for _, y in given.values()]
    for (level, x), y in zip(pictures.items(), labels, strict=True):
        if y.ndim != 1 or len(y) != len(x):
            raise UsageError(f"y of {title}, {level}: has shape {y.shape}: must have one label for each of {len(x):,}")
    together, names = numbered(np.concatenate(labels))
    parts, start = {}, 0
    for level, x in pictures.items():
        parts[level] = Decoded(resized(x, look), together[start : start + len(x)], names)
        start += len(x)
    foreign = {key: resized(as_pictures(x, f"ood_{key} of {title}"), look) for key, x in ood.items()}
    return own_task(name, title, parts, foreign, seed, [])


def own_task(
    name: str, title: str, parts: Mapping[str, Decoded], ood: Mapping[str, Tensor], seed: int, notes: Sequence[str]
) -> Task:
    """Cut what isn't given out of the training pictures, the same share of every class."""
    whole, names = parts["train"], parts["train"].class_names
    counts = whole.y.bincount(minlength=len(names)).tolist()
    fewest = names[counts.index(min(counts))]
    if min(counts) < FEWEST:
        raise UsageError(f"{title}: class {fewest} has {min(counts)} pictures: must have at least {FEWEST}")
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
            raise UsageError(f"{title}: {level}/ has too few pictures: must have at least 2 of a class")
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
    )
    told = (*chosen(task), *notes, *warnings_of(names, counts))
    return Task(**{**vars(task), "notes": told})


def chosen(task: Task) -> list[str]:
    """What was found and decided, in words."""
    channels, size, _ = task.shape
    sizes = {key: len(getattr(task, key)) for key in ("train", "validation", "calibration", "test")}
    foreign = ", ".join(f"{key} {len(x):,}" for key, x in task.ood.items()) or "none (put pictures in ood/NAME/)"
    return [
        f"{task.n_classes} classes: {', '.join(task.class_names[:8])}{', …' if task.n_classes > 8 else ''}",
        f"seen as {size} × {size} pixels (--image-size 32 or 64), {'grey' if channels == 1 else 'RGB'}",
        "split: " + ", ".join(f"{key} {n:,}" for key, n in sizes.items()),
        f"OoD sets to test against: {foreign}",
    ]


def warnings_of(names: Sequence[str], counts: Sequence[int]) -> list[str]:
    few = [f"{name} {count}" for name, count in zip(names, counts, strict=True) if count < FEW]
    warnings = []
    if few:
        more = f" and {len(few) - 5} more" if len(few) > 5 else ""
        warnings.append(
            f"warning: fewer than {FEW} pictures of {', '.join(few[:5])}{more}: expect poor results for them"
        )
    if max(counts) > IMBALANCED * min(counts):
        large, small = names[counts.index(max(counts))], names[counts.index(min(counts))]
        warnings.append(
            f"warning: {large} has {max(counts):,} pictures and {small} {min(counts):,}: strongly imbalanced classes"
        )
    return warnings


def chosen_size(told: int | None, side: int, n: int) -> int:
    """As told, or what the pictures are nearer to; few of them don't carry the larger networks that 64 pixels need."""
    if told is not None and told not in SIZES:
        raise UsageError(f"--image-size = {told}: must be one of {', '.join(map(str, SIZES))}")
    return told or (64 if side >= 48 and n >= MANY else 32)
