"""Pictures in folders: ROOT/CLASS/*.png|jpg|webp|bmp, with optional levels train/, val/, test/ and ood/NAME/."""

import os
import re
import stat
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from uqgan.data.cache import cached
from uqgan.data.dataset import Decoded, Say, refuse_broken, without_rows
from uqgan.data.decode import Encoded, decode_all
from uqgan.data.preprocessing import Broken, PixelFormat, bytes_of, describe
from uqgan.errors import UsageError, count

ENDINGS = (".png", ".jpg", ".jpeg", ".webp", ".bmp")
LEVELS = {
    "train": re.compile(r"train(ing)?([ _-]?set)?", re.IGNORECASE),
    "val": re.compile(r"val(id(ation)?)?([ _-]?set)?", re.IGNORECASE),
    "test": re.compile(r"test(ing)?([ _-]?set)?", re.IGNORECASE),
    "ood": re.compile(r"ood([ _-]?sets?)?", re.IGNORECASE),
}
"""Levels, and the accepted names of their folders."""
SAMPLE = 64
"""Number of pictures that determine size and channels."""
BATCH = 64
"""Number of files decoded in one batch."""
NAMED = 20
"""Limit of files of a kind that are listed by name; further ones are counted."""


@dataclass(frozen=True)
class Listing:
    """Picture files of one level with their classes; skipped files of other kinds; entries that cannot be read."""

    root: Path
    class_names: tuple[str, ...]
    files: list[Path] = field(default_factory=list)
    y: list[int] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)
    other: Counter[str] = field(default_factory=Counter)
    loops: list[Path] = field(default_factory=list)
    """Symbolic links to a folder above them, which are not followed."""

    def add(self, folder: Path, label: int) -> None:
        for file in walk(folder, self.loops):
            if file.suffix.lower() not in ENDINGS:
                self.other[file.suffix.lower() or file.name] += 1
            elif file.is_file():
                self.files.append(file)
                self.y.append(label)
            else:
                why = "a link to nothing" if file.is_symlink() else "not a regular file"
                self.unreadable.append(f"{shown(file, self.root)}: {why}")


@dataclass(frozen=True)
class Layout:
    """Content of a folder: the listings of its levels, and the OoD sets by name."""

    root: Path
    train: Listing
    val: Listing | None
    test: Listing | None
    ood: dict[str, Listing]
    notes: tuple[str, ...] = ()
    """Interpretation of folder names, and skipped files."""

    @property
    def listings(self) -> list[Listing]:
        return [each for each in (self.train, self.val, self.test, *self.ood.values()) if each]


def read_layout(root: Path) -> Layout:
    """Classes, levels and OoD sets of a folder; classes are numbered in alphabetical order."""
    levels, top = levels_in(root)
    for level, folder in levels.items():
        _refuse_loose(level, folder)
    if "train" in levels:
        if top:
            strange, level = shown(Path(min(top))), shown(Path(levels["train"].name))
            raise UsageError(f"{shown(root)}: has {strange}/ beside {level}/: folders of classes belong in {level}/")
        deeper, top = levels_in(levels["train"])
        if deeper:
            named = shown(min(deeper.values()))
            raise UsageError(f"{named}: is called like a level, which cannot be a class (rename it, or move it up)")
    classes = sorted(top)
    if not classes:
        raise UsageError(f"{shown(root)}: has no folders of classes (must look like {shown(root)}/CLASS/picture.png)")
    if len(classes) == 1:
        only = shown(Path(classes[0]))
        raise UsageError(f"{shown(root)}: has 1 class, {only}: must have at least 2 (foreign ones go to ood/NAME/)")
    train = _listing(root, levels.get("train", root), classes)
    for name, n in zip(train.class_names, np.bincount(train.y, minlength=len(classes)), strict=True):
        if not n and not train.unreadable:
            raise UsageError(f"{shown(root)}: class {name} has no pictures (png, jpg, webp or bmp)")
    ood = {}
    for folder in folders_in(levels["ood"]) if "ood" in levels else []:
        ood[shown(Path(folder.name))] = Listing(root, ("foreign",))
        ood[shown(Path(folder.name))].add(folder, 0)
    val, test = (_listing(root, levels[name], classes) if name in levels else None for name in ("val", "test"))
    layout = Layout(root, train, val, test, {name: listing for name, listing in ood.items() if listing.files})
    skipped = skipped_notes(layout.listings, [root, *levels.values()], root)
    return replace(layout, notes=(*level_notes(levels), *loose_notes(root), *skipped))


def levels_in(folder: Path) -> tuple[dict[str, Path], dict[str, Path]]:
    """Folders that are levels, in any accepted spelling, by level; all others by name."""
    levels: dict[str, Path] = {}
    others: dict[str, Path] = {}
    for each in folders_in(folder):
        level = next((name for name, called in LEVELS.items() if called.fullmatch(each.name.strip())), None)
        if level is None:
            others[each.name] = each
        elif level in levels:
            both = f"both {shown(Path(levels[level].name))}/ and {shown(Path(each.name))}/"
            raise UsageError(f"{shown(folder)}: has {both}, which mean the same: must be one (join or rename them)")
        else:
            levels[level] = each
    return levels, others


def level_notes(levels: Mapping[str, Path]) -> list[str]:
    """Notes on folders that are taken as levels under another name."""
    names = {level: shown(Path(folder.name)) for level, folder in levels.items()}
    return [f"{name}/ is taken as {level}/" for level, name in names.items() if name != level]


def loose_notes(folder: Path, deeper: str = "CLASS") -> list[str]:
    """Note on pictures directly in a folder, which belong to no class or set."""
    loose = len(pictures_in(folder))
    lie = "lies" if loose == 1 else "lie"
    where = f"right in {shown(folder)}/ (put pictures under {deeper}/)"
    return [f"{count(loose, 'picture')} passed over: {lie} {where}"] if loose else []


def skipped_notes(listings: Sequence[Listing], places: Sequence[Path], root: Path | None = None) -> list[str]:
    """Notes on links that lead back up, in listings and directly in `places`, and on files of other kinds."""
    loops = [each for place in places for each in _links_up(place)]
    loops += [each for listing in listings for each in listing.loops]
    notes = [f"{shown(each, root)}: a link that leads back up, not followed" for each in loops[:NAMED]]
    if len(loops) > NAMED:
        notes.append(f"{count(len(loops), 'link')} in all that lead back up, not followed")
    skipped: Counter[str] = sum((each.other for each in listings), Counter())
    notes += [
        f"{count(n, f'{ending} file')} passed over: png, jpg, webp and bmp are read" for ending, n in skipped.items()
    ]
    return notes


def _refuse_loose(level: str, folder: Path) -> None:
    """Refuse pictures directly in train/, val/, test/ or ood/, which belong to no class or set."""
    loose = pictures_in(folder)
    if loose:
        deeper = "NAME" if level == "ood" else "CLASS"
        name = shown(Path(folder.name))
        raise UsageError(
            f"{shown(loose[0])}: lies right in {name}/, which cannot be a class (put pictures under {name}/{deeper}/)"
        )


def pictures_in(folder: Path) -> list[Path]:
    """Pictures directly in a folder, sorted by name."""
    return [each for each in _inside(folder) if each.suffix.lower() in ENDINGS and not _is_folder(each)]


def _listing(root: Path, level: Path, classes: Sequence[str]) -> Listing:
    listing = Listing(root, tuple(shown(Path(name)) for name in classes))
    for folder in folders_in(level):
        if folder.name in classes:
            listing.add(folder, classes.index(folder.name))
        elif level != root:
            raise UsageError(f"{shown(folder)}: not a class of the training pictures (foreign ones go to ood/NAME/)")
    return listing


def folders_in(folder: Path) -> list[Path]:
    """Folders directly in a folder, sorted by name, without hidden ones and links to a folder above."""
    up = above(folder)
    return [each for each in _inside(folder) if _is_folder(each) and _identity(each) not in up]


def _links_up(folder: Path) -> list[Path]:
    """Links directly in a folder to this folder or one above it."""
    up = above(folder)
    return [each for each in _inside(folder) if _is_folder(each) and _identity(each) in up]


def above(folder: Path) -> frozenset[tuple[int, int]]:
    """Identities of a folder and its parents, by name and with links resolved."""
    chain = {folder, *folder.absolute().parents, *folder.resolve().parents}
    found = set()
    for each in chain:
        with suppress(OSError):
            found.add(_identity(each, each.stat()))
    return frozenset(found)


def walk(folder: Path, loops: list[Path] | None = None, up: frozenset[tuple[int, int]] = frozenset()) -> Iterator[Path]:
    """All files in and below a folder, by name; links to a folder above are not followed, but put into `loops`."""
    here = up | (above(folder) if not up or folder.is_symlink() else {_identity(folder)})
    for each in _inside(folder):
        if not _is_folder(each):
            yield each
        elif _identity(each) not in here:
            yield from walk(each, loops, here)
        elif loops is not None:
            loops.append(each)


def _inside(folder: Path) -> list[Path]:
    try:
        return sorted(folder / name for name in os.listdir(folder) if not name.startswith("."))  # noqa: PTH208
    except OSError as error:
        raise _unreadable(folder, error) from None


def _is_folder(path: Path) -> bool:
    """Whether a path is an existing folder; without permission to check, an error."""
    try:
        return stat.S_ISDIR(path.stat().st_mode)
    except PermissionError as error:
        raise _unreadable(path, error) from None
    except OSError:
        return False


def _identity(folder: Path, found: os.stat_result | None = None) -> tuple[int, int]:
    try:
        found = found or folder.stat()
    except OSError as error:
        raise _unreadable(folder, error) from None
    return found.st_dev, found.st_ino


def _unreadable(path: Path, error: OSError) -> UsageError:
    return UsageError(f"{shown(path)}: cannot be read ({(error.strerror or str(error)).lower()})")


def load_listing(
    name: str, listing: Listing, content: str, pixel_format: PixelFormat, skip_broken: bool, say: Say
) -> Decoded:
    """Pictures of a listing, decoded once and cached under the digest of their content."""

    def decode() -> Decoded:
        say(f"decoding {shown(listing.root)}: {count(len(listing.files), 'picture')}, once")
        return decode_listing(listing, pixel_format)

    decoded = cached("own-" + name, content, pixel_format, [listing.class_names, listing.y], decode, say)
    left_out = (*listing.unreadable, *decoded.left_out)
    refuse_broken(left_out, listing.root, skip_broken)
    return replace(decoded, left_out=left_out, sources=sources_of(listing, decoded.left_out))


def sources_of(listing: Listing, left_out: Sequence[str]) -> tuple[str, ...]:
    """Files of the samples that could be decoded; `left_out` has a sentence for each other file, in the same order."""
    names = [shown(file, listing.root) for file in listing.files]
    broken = iter([*left_out, ""])
    this = next(broken)
    kept = []
    for name in names:
        if this.startswith(f"{name}: "):
            this = next(broken)
        else:
            kept.append(name)
    return tuple(kept)


def decode_listing(listing: Listing, pixel_format: PixelFormat) -> Decoded:
    """Pictures and labels of a listing."""
    files: list[Encoded] = list(listing.files)
    n_bytes = sum(file.stat().st_size for file in listing.files)
    batches = [files[start : start + BATCH] for start in range(0, len(files), BATCH)]
    x, broken = decode_all(lambda: batches, pixel_format, len(files), n_bytes)
    left_out = {row: f"{shown(listing.files[row], listing.root)}: {why}" for row, why in broken.items()}
    return without_rows(x, np.array(listing.y, np.int64), listing.class_names, left_out)


def usual_format(listing: Listing) -> tuple[int, int]:
    """Median of the shorter side, and number of channels, of a sample of the pictures; grey only if all of them are."""
    sides, grey = [], []
    for file in listing.files[:: max(1, len(listing.files) // SAMPLE)]:
        with suppress(Broken):
            size, is_grey = describe(bytes_of(file))
            sides.append(min(size))
            grey.append(is_grey)
    return int(np.median(sides)) if sides else 32, 1 if grey and all(grey) else 3


def shown(path: Path, root: Path | None = None) -> str:
    """Path as printable text, whatever bytes it consists of."""
    relative = path.relative_to(root) if root else path
    return os.fsencode(relative).decode("utf-8", "replace")
