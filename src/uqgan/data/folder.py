"""Pictures in folders: ROOT/CLASS/*.png|jpg|webp|bmp, with optional levels train/, val/, test/ and ood/NAME/."""

import os
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from uqgan.data.cache import cached
from uqgan.data.dataset import Decoded, Say, refuse_broken, without_rows
from uqgan.data.decode import Broken, Encoded, Look, bytes_of, decode_all, describe
from uqgan.errors import UsageError

ENDINGS = (".png", ".jpg", ".jpeg", ".webp", ".bmp")
LEVELS = ("train", "val", "test", "ood")
SAMPLE = 64
"""Pictures that size and channels are chosen by."""
BATCH = 64
"""Files that are decoded at once."""


@dataclass(frozen=True)
class Listing:
    """Files of one level with their class; other files that were skipped, and entries that are no readable file."""

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
    """Content of a folder: the listings of its levels, and the OoD sets by name."""

    root: Path
    train: Listing
    val: Listing | None
    test: Listing | None
    ood: dict[str, Listing]

    @property
    def listings(self) -> list[Listing]:
        return [each for each in (self.train, self.val, self.test, *self.ood.values()) if each]


def read_layout(root: Path) -> Layout:
    """Classes, levels and OoD sets of a folder. Classes are numbered in alphabetical order."""
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
    """Refuse pictures right in train/, val/, test/ or ood/, which belong to no class or set."""
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
    """Folders right in a folder, by name, without hidden ones."""
    return [each for each in _inside(folder) if each.is_dir()]


def walk(folder: Path, above: frozenset[tuple[int, int]] = frozenset()) -> Iterator[Path]:
    """All files in and below a folder, by name; a link back to a folder above is not followed."""
    here = above | {_identity(folder)}
    for each in _inside(folder):
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
    """Pictures of a listing whose files have that content, decoded once."""

    def decode() -> Decoded:
        say(f"decoding {shown(listing.root)}: {len(listing.files):,} pictures, once")
        return decode_listing(listing, look)

    decoded = cached("own-" + name, content, look, [listing.class_names, listing.y], decode, say)
    left_out = (*listing.odd, *decoded.left_out)
    refuse_broken(left_out, listing.root, skip_broken)
    return replace(decoded, left_out=left_out, files=decoded_files(listing, decoded))


def decoded_files(listing: Listing, decoded: Decoded) -> tuple[str, ...]:
    """Names of the files that could be decoded, in order: those left out are the ones that its sentences begin with."""
    broken = deque(decoded.left_out)
    kept = []
    for file in listing.files:
        name = shown(file, listing.root)
        if broken and broken[0].startswith(f"{name}: "):
            broken.popleft()
        else:
            kept.append(name)
    return tuple(kept) if len(kept) == len(decoded.y) else ()


def decode_listing(listing: Listing, look: Look) -> Decoded:
    """Pictures and labels of a listing."""
    files: list[Encoded] = list(listing.files)
    n_bytes = sum(file.stat().st_size for file in listing.files)
    batches = [files[start : start + BATCH] for start in range(0, len(files), BATCH)]
    x, broken = decode_all(lambda: batches, look, len(files), n_bytes)
    left_out = {row: f"{shown(listing.files[row], listing.root)}: {why}" for row, why in broken.items()}
    return without_rows(x, np.array(listing.y, np.int64), listing.class_names, left_out)


def usual_look(listing: Listing) -> tuple[int, int]:
    """Median of the shorter side, and channels, of a sample of the pictures: grey only if all of them are."""
    sides, grey = [], []
    for file in listing.files[:: max(1, len(listing.files) // SAMPLE)]:
        with suppress(Broken):
            size, is_grey = describe(bytes_of(file))
            sides.append(min(size))
            grey.append(is_grey)
    return int(np.median(sides)) if sides else 32, 1 if grey and all(grey) else 3


def shown(path: Path, root: Path | None = None) -> str:
    """Path as text that can be printed, whatever bytes its name is made of."""
    relative = path.relative_to(root) if root else path
    return os.fsencode(relative).decode("utf-8", "replace")
