"""Pictures in folders: ROOT/CLASS/*.png|jpg|webp|bmp, with optional levels train/, val/, test/ and ood/NAME/."""

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from uqgan.data.cache import Decoded, Say, cached
from uqgan.data.decode import Broken, Look, describe, own_limit, pixels
from uqgan.data.sources import refuse_broken
from uqgan.errors import UsageError

ENDINGS = (".png", ".jpg", ".jpeg", ".webp", ".bmp")
LEVELS = ("train", "val", "test", "ood")
SAMPLE = 64
"""Pictures to look at for a choice of size and channels."""
WORTH_THREADS = 16 * 1024
"""Bytes a file from which on decoding is slow enough to be shared between cores."""
LARGEST_FILE = 2**30


@dataclass(frozen=True)
class Listing:
    """Files of one level with their class; what was passed over, and what is no readable file."""

    root: Path
    class_names: tuple[str, ...]
    files: list[Path] = field(default_factory=list)
    y: list[int] = field(default_factory=list)
    odd: list[str] = field(default_factory=list)
    other: Counter[str] = field(default_factory=Counter)

    def add(self, folder: Path, label: int) -> None:
        for file in walk(folder):
            if file.suffix.lower() not in ENDINGS:
                self.other[file.suffix.lower() or file.name] += 1
            elif file.is_file():
                self.files.append(file)
                self.y.append(label)
            else:
                why = "a link to nothing" if file.is_symlink() else "not a regular file"
                self.odd.append(f"{shown(file, self.root)}: {why}")


@dataclass(frozen=True)
class Layout:
    """What a folder holds: the listings of its levels, and the OoD sets by name."""

    root: Path
    train: Listing
    val: Listing | None
    test: Listing | None
    ood: dict[str, Listing]

    @property
    def listings(self) -> list[Listing]:
        return [each for each in (self.train, self.val, self.test, *self.ood.values()) if each]


def read_layout(root: Path) -> Layout:
    """Find classes, levels and OoD sets. Class numbers follow the alphabet."""
    top = {folder.name: folder for folder in folders_in(root)}
    levels = {name: top.pop(name) for name in LEVELS if name in top}
    for folder in levels.values():
        _refuse_loose(folder)
    if "train" in levels:
        if top:
            strange = sorted(top)[0]
            raise UsageError(f"{shown(root)}: has {strange}/ beside train/: folders of classes belong in train/")
        top = {folder.name: folder for folder in folders_in(levels["train"])}
    classes = sorted(top)
    if not classes:
        raise UsageError(f"{shown(root)}: has no folders of classes (must look like {shown(root)}/CLASS/picture.png)")
    if len(classes) == 1:
        raise UsageError(
            f"{shown(root)}: has 1 class, {classes[0]}: must have at least 2 (foreign ones go to ood/NAME/)"
        )
    train = _listing(root, levels.get("train", root), classes)
    for name, count in zip(train.class_names, np.bincount(train.y, minlength=len(classes)), strict=True):
        if not count and not train.odd:
            raise UsageError(f"{shown(root)}: class {name} has no pictures (png, jpg, webp or bmp)")
    ood = {}
    for folder in folders_in(levels["ood"]) if "ood" in levels else []:
        ood[shown(Path(folder.name))] = Listing(root, ("foreign",))
        ood[shown(Path(folder.name))].add(folder, 0)
    val, test = (_listing(root, levels[name], classes) if name in levels else None for name in ("val", "test"))
    return Layout(root, train, val, test, {name: listing for name, listing in ood.items() if listing.files})


def _refuse_loose(level: Path) -> None:
    """Pictures right in train/, val/, test/ or ood/ belong to nothing."""
    loose = [each for each in _inside(level) if each.suffix.lower() in ENDINGS and not each.is_dir()]
    if loose:
        deeper = "NAME" if level.name == "ood" else "CLASS"
        raise UsageError(
            f"{shown(loose[0])}: lies right in {level.name}/, which cannot be a class "
            f"(put pictures under {level.name}/{deeper}/)"
        )


def _listing(root: Path, level: Path, classes: Sequence[str]) -> Listing:
    listing = Listing(root, tuple(shown(Path(name)) for name in classes))
    for folder in folders_in(level):
        if folder.name in classes:
            listing.add(folder, classes.index(folder.name))
        elif level != root:
            raise UsageError(f"{shown(folder)}: not a class of the training pictures (foreign ones go to ood/NAME/)")
    return listing


def folders_in(folder: Path) -> list[Path]:
    """Folders right in there, by name; hidden ones don't count."""
    return [each for each in _inside(folder) if each.is_dir()]


def walk(folder: Path, above: frozenset[tuple[int, int]] = frozenset()) -> Iterator[Path]:
    """All files in and below a folder, by name; a link back to a folder above is not followed."""
    entries = _inside(folder)
    here = above | {_identity(folder)}
    for each in entries:
        if not each.is_dir():
            yield each
        elif _identity(each) not in here:
            yield from walk(each, here)


def _inside(folder: Path) -> list[Path]:
    try:
        return sorted(folder / name for name in os.listdir(folder) if not name.startswith("."))  # noqa: PTH208
    except OSError as error:
        raise UsageError(f"{shown(folder)}: cannot be read ({(error.strerror or str(error)).lower()})") from None


def _identity(folder: Path) -> tuple[int, int]:
    try:
        stat = folder.stat()
    except OSError as error:
        raise UsageError(f"{shown(folder)}: cannot be read ({(error.strerror or str(error)).lower()})") from None
    return stat.st_dev, stat.st_ino


def load_listing(name: str, listing: Listing, content: str, look: Look, skip_broken: bool, say: Say) -> Decoded:
    """The pictures of a listing with that content, decoded once."""

    def build() -> Decoded:
        say(f"decoding {shown(listing.root)}: {len(listing.files):,} pictures, once")
        return read_files(listing, look)

    extra = [listing.class_names, listing.y]
    decoded = cached("own-" + name, content, look, extra, build, say)
    left_out = (*listing.odd, *decoded.left_out)
    refuse_broken(left_out, listing.root, skip_broken)
    return Decoded(decoded.x, decoded.y, decoded.class_names, left_out)


def read_files(listing: Listing, look: Look) -> Decoded:
    files = listing.files
    x = np.empty((len(files), look.channels, look.size, look.size), np.uint8)

    def decode(rows: range) -> list[tuple[int, str]]:
        broken = []
        for row in rows:
            try:
                x[row] = pixels(bytes_of(files[row]), look)
            except Broken as error:
                broken.append((row, str(error)))
        return broken

    chunks = [range(start, min(start + 64, len(files))) for start in range(0, len(files), 64)]
    sizes = [file.stat().st_size for file in files[:: max(1, len(files) // SAMPLE)]]
    if np.mean(sizes or [0]) > WORTH_THREADS:
        with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
            found = list(pool.map(decode, chunks))
    else:
        found = [decode(chunk) for chunk in chunks]
    broken = dict(pair for each in found for pair in each)
    left_out = tuple(f"{shown(files[row], listing.root)}: {why}" for row, why in sorted(broken.items()))
    kept = [row for row in range(len(files)) if row not in broken]
    y = torch.tensor(listing.y, dtype=torch.long)
    whole = torch.from_numpy(x)
    return Decoded(whole[kept] if broken else whole, y[kept] if broken else y, listing.class_names, left_out)


def bytes_of(file: Path) -> bytes:
    try:
        if file.stat().st_size > LARGEST_FILE:
            raise Broken("a file of more than 1 GiB")
        return file.read_bytes()
    except OSError as error:
        raise Broken((error.strerror or str(error)).lower()) from None


def usual_look(listing: Listing) -> tuple[int, int]:
    """(shorter side, channels) of most pictures, by a look at some of them."""
    sides, grey = [], []
    with own_limit():
        for file in listing.files[:: max(1, len(listing.files) // SAMPLE)]:
            try:
                size, is_grey = describe(bytes_of(file))
            except Broken:
                continue
            sides.append(min(size))
            grey.append(is_grey)
    return int(np.median(sides)) if sides else 32, 1 if grey and all(grey) else 3


def shown(path: Path, root: Path | None = None) -> str:
    """A path as text that can be printed, whatever bytes its name is made of."""
    relative = path.relative_to(root) if root else path
    return os.fsencode(relative).decode("utf-8", "replace")
