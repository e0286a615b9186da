"""Other test pictures for a trained run: folders of class folders, folders of OoD pictures, arrays."""

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from uqgan.data.arrays import as_pictures, resized
from uqgan.data.cache import content_of
from uqgan.data.dataset import Dataset, Decoded, Say, silent
from uqgan.data.duplicates import conflict_notes, fingerprints, first_copies, in_several_classes
from uqgan.data.folder import (
    NAMED,
    Listing,
    folders_in,
    level_notes,
    levels_in,
    load_listing,
    loose_notes,
    shown,
    skipped_notes,
)
from uqgan.data.preprocessing import PixelFormat
from uqgan.data.seen import USED, Seen, rows_of
from uqgan.data.splits import Task
from uqgan.data.user import name_of
from uqgan.errors import UsageError
from uqgan.samples import checked_samples


@dataclass(frozen=True)
class Inputs:
    """Input of a run: its classes, the shape of its samples, and the record of samples it has seen."""

    class_names: tuple[str, ...]
    shape: tuple[int, ...]
    seen: Seen | None = None
    say: Say = silent

    @property
    def pixel_format(self) -> PixelFormat:
        return PixelFormat(self.shape[-1], self.shape[0])

    @property
    def classes(self) -> str:
        """Names of the classes as text."""
        return shortened(self.class_names)


def shortened(names: Sequence[str]) -> str:
    """Text with the first names and the number of further ones."""
    return ", ".join(names[:NAMED]) + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")


def other_task(name: str, title: str, inputs: Inputs, known: Decoded, ood: Mapping[str, Decoded]) -> Task:
    """Task without training data, to be tested on these pictures."""
    if "all" in ood:
        raise UsageError("ood = all: that is what all sets together are called (choose another name)")
    nothing = Dataset(known.x[:0], known.y[:0])
    return Task(
        name=name,
        title=title,
        class_names=inputs.class_names,
        train=nothing,
        validation=nothing,
        calibration=nothing,
        test=Dataset(known.x, known.y),
        ood={key: each.x for key, each in ood.items()},
        ood_validation={},
        outliers={},
        notes=(
            *known.notes,
            *lacking(inputs.class_names, known.y),
            *(note for each in ood.values() for note in each.notes),
        ),
        files={"test": known.sources} | {f"ood/{key}": each.sources for key, each in ood.items()},
    )


def lacking(class_names: Sequence[str], y: Tensor) -> list[str]:
    """Sentence about the classes without a picture; empty if all have some."""
    counts = y.bincount(minlength=len(class_names)).tolist()
    absent = [name for name, n in zip(class_names, counts, strict=True) if not n]
    return [f"no test pictures of {shortened(absent)}"] if absent else []


def unseen(pictures: Decoded, part: str, inputs: Inputs) -> Decoded:
    """Distinct pictures that were not used for training, validation or calibration; those tested before come first.

    In this order the scores of a folder that was only moved are exactly the same as before.
    """
    title, seen = part.replace("/", " ", 1), inputs.seen
    if len(inputs.shape) == 3:
        pictures = distinct(pictures, title)
    if seen is None:
        note = f"{title}: the run does not say which pictures it was trained on, so none is left out"
        return replace(pictures, notes=(*pictures.notes, note)) if len(inputs.shape) == 3 else pictures
    prints = fingerprints(pictures.x)
    known = np.isin(prints, seen.kept)
    if known.all():
        raise UsageError(f"{title}: training, validation, calibration or studies used every picture (give others)")
    before = rows_of(seen.parts.get(part, prints[:0]), prints)
    before = before[np.sort(np.unique(before, return_index=True)[1])]  # each row once
    rows = torch.from_numpy(np.concatenate([before, np.setdiff1d(np.flatnonzero(~known), before)]))
    return chosen(pictures, rows, [f"{title}: pictures {USED}: {known.sum():,}"] if known.any() else [])


def distinct(pictures: Decoded, title: str) -> Decoded:
    """Pictures without those that are in several classes, and with the first of equal ones only."""
    first = first_copies([pictures.x])
    in_conflict = in_several_classes(first, pictures.y)
    copies = (first != torch.arange(len(first))) & ~in_conflict
    if not (in_conflict | copies).any():
        return pictures
    if in_conflict.all():
        raise UsageError(f"{title}: every picture is in several classes (give others)")
    notes = conflict_notes(first, in_conflict, partial(name_of, [(title, pictures)]))
    if n := int(copies.sum()):
        notes.append(f"{title}: pictures left out because they equal another one, pixel for pixel: {n:,}")
    return chosen(pictures, (~(in_conflict | copies)).nonzero()[:, 0], notes)


def chosen(pictures: Decoded, rows: Tensor, notes: Sequence[str]) -> Decoded:
    """Pictures of these rows, with further notes."""
    sources = tuple(pictures.sources[row] for row in rows.tolist()) if pictures.sources else ()
    notes = (*pictures.notes, *notes)
    return replace(pictures, x=pictures.x[rows], y=pictures.y[rows], sources=sources, notes=notes)


def known_pictures(source: Any, inputs: Inputs) -> tuple[Decoded, dict[str, Decoded]]:
    """Pictures of known classes in a folder or arrays (x, y), and the OoD sets in the folder's ood/."""
    if isinstance(source, str | os.PathLike):
        return of_folder(_folder(source, "test", inputs), inputs)
    if not (isinstance(source, tuple) and len(source) == 2):
        raise UsageError(f"test = {type(source).__name__}: must be a folder of class folders, or (x, y)")
    x, y = _samples(source[0], "x of test", inputs), np.asarray(source[1])
    if y.shape != (len(x),):
        raise UsageError(f"y of test: has shape {y.shape}: must have one label for each of {len(x):,}")
    return Decoded(x, numbered(y.tolist(), inputs), inputs.class_names), {}


def foreign_pictures(name: str, source: Any, inputs: Inputs) -> Decoded:
    """Pictures of an OoD set: all pictures in and below a folder, or an array."""
    if not isinstance(source, str | os.PathLike):
        x = _samples(source, f"ood {name}", inputs)
        return Decoded(x, torch.zeros(len(x), dtype=torch.long), ("foreign",))
    root = _folder(source, f"ood {name}", inputs)
    listing = Listing(root, ("foreign",))
    listing.add(root, 0)
    return _load(listing, f"ood {name} = {shown(root)}", inputs)


def of_folder(root: Path, inputs: Inputs) -> tuple[Decoded, dict[str, Decoded]]:
    """Pictures of known classes in ROOT/test/ if it exists, or else in ROOT or ROOT/train/; OoD sets in ood/."""
    levels, top = levels_in(root)
    classes = {level: folder for level, folder in levels.items() if shown(Path(folder.name)) in inputs.class_names}
    for level, folder in classes.items():  # a class may be called like a level
        top[folder.name] = folder
        del levels[level]
    place = levels.get("test") or (root if top else levels.get("train", root))
    folders = {shown(Path(each.name)): each for each in (top.values() if place == root else folders_in(place))}
    listing = Listing(root, inputs.class_names)
    for name, folder in folders.items():
        if name not in inputs.class_names:
            fix = f"foreign pictures go to ood/{name}/, or --ood {name}={shown(folder)}"
            raise UsageError(f"{shown(folder)}: not a class of the run, which knows {inputs.classes} ({fix})")
        listing.add(folder, inputs.class_names.index(name))
    if not folders:
        like = f"{shown(place)}/{inputs.class_names[0]}/picture.png"
        raise UsageError(f"test = {shown(place)}: has no folders of the run's classes (must look like {like})")
    used = {level: folder for level, folder in levels.items() if level == "ood" or folder == place}
    known = _load(listing, f"test = {shown(place)}", inputs, [root, *used.values()])
    loose = [note for folder in dict.fromkeys([root, place]) for note in loose_notes(folder)]
    ood = {}
    if "ood" in levels:
        loose += loose_notes(levels["ood"], "NAME")
        for folder in folders_in(levels["ood"]):
            ood[shown(Path(folder.name))] = foreign_pictures(shown(Path(folder.name)), folder, inputs)
    return replace(known, notes=(*level_notes(used), *known.notes, *loose)), ood


def numbered(labels: Sequence[Any], inputs: Inputs) -> Tensor:
    """Numbers of the run's classes for their names, or for their numbers where these are no names."""
    names = {name: k for k, name in enumerate(inputs.class_names)}
    if not all(str(label) in names for label in labels):
        names = {str(k): k for k in range(len(names))} if all(isinstance(label, int) for label in labels) else names
    for label in labels:
        if str(label) not in names:
            raise UsageError(f"y of test: {label} is not a class of the run, which knows {inputs.classes}")
    return torch.tensor([names[str(label)] for label in labels])


def _load(listing: Listing, title: str, inputs: Inputs, places: Sequence[Path] = ()) -> Decoded:
    """Pictures of a listing, with notes on broken ones, and on what else is in it and in `places` and is left out."""
    if not listing.files:
        raise UsageError(f"{title}: has no pictures (png, jpg, webp or bmp)")
    tag = hashlib.sha256(str(listing.root.resolve()).encode(errors="surrogateescape")).hexdigest()[:6]
    name = f"{listing.root.name.replace('.', '-')}-{tag}-test"
    content = content_of(listing.files, listing.root)
    decoded = load_listing(name, listing, content, inputs.pixel_format, True, inputs.say)
    if not len(decoded.y):
        raise UsageError(f"{title}: every picture is broken ({decoded.left_out[0]})")
    notes = [f"{title}: {note}" for note in skipped_notes([listing], places, listing.root)]
    notes += [f"broken: {sentence}" for sentence in decoded.left_out[:NAMED]]
    if decoded.left_out:
        notes.append(f"{title}: broken pictures left out: {len(decoded.left_out):,}")
    return replace(decoded, notes=tuple(notes))


def _folder(source: Any, what: str, inputs: Inputs) -> Path:
    root = Path(source)
    if len(inputs.shape) != 3:
        raise UsageError(f"{what} = {shown(root)}: this run takes points, not pictures (in Python: arrays)")
    if not root.is_dir():
        found = "is a file: must be a folder of pictures" if root.exists() else "no such folder"
        raise UsageError(f"{what} = {shown(root)}: {found}")
    return root


def _samples(x: Any, what: str, inputs: Inputs) -> Tensor:
    if len(inputs.shape) == 3:
        return resized(as_pictures(x, what), inputs.pixel_format)
    return checked_samples(x, inputs.shape, what)
