"""Pictures to predict: files, folders, patterns and lists on the command line; in Python also Pillow images."""

import glob
import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import IO, Any

import joblib
import numpy as np

from uqgan.data.decode import BYTES_PER_COST, PARALLEL_FROM, PROCESSES, Encoded, decode_all
from uqgan.data.folder import ENDINGS, shown
from uqgan.data.preprocessing import Broken, PixelFormat, pixels, preprocessed, without_pillow_limit
from uqgan.errors import UsageError

ENDINGS_IN_WORDS = "png, jpg, webp or bmp"


def pixel_format_of(shape: Sequence[int]) -> PixelFormat:
    """Pixel format of a run whose samples have this shape."""
    if len(shape) != 3:
        raise UsageError("the run takes points in the plane, which no picture is (in Python: run.predict(points))")
    return PixelFormat(shape[-1], shape[0])


def preprocessing_in_words(pixel_format: PixelFormat) -> str:
    """Preprocessing of pictures as text."""
    size, colours = pixel_format.size, "grey" if pixel_format.channels == 1 else "RGB"
    return f"turned by EXIF, short side fitted to {size} pixels, cropped to the middle {size} × {size}, {colours}"


def as_samples(x: Any, shape: tuple[int, ...]) -> Any:
    """Files and Pillow images, one or a list of them, as uint8 samples of that shape; anything else unchanged."""
    from PIL import Image

    given = list(x) if isinstance(x, list | tuple) else [x]
    files = [isinstance(each, str | os.PathLike) for each in given]
    pictures = [is_file or isinstance(each, Image.Image) for is_file, each in zip(files, given, strict=True)]
    if not any(pictures):
        return x
    if not all(pictures):
        other = type(given[pictures.index(False)]).__name__
        raise UsageError(f"x holds pictures and a {other}: must be all files and Pillow images, or one array")
    pixel_format = pixel_format_of(shape)
    if all(files):
        return _pixels_of_files([Path(each) for each in given], pixel_format)
    return np.stack([_pixels_of(each, row, pixel_format) for row, each in enumerate(given)])


def _pixels_of_files(files: list[Path], pixel_format: PixelFormat) -> Any:
    batches: list[list[Encoded]] = [list(files[start : start + 128]) for start in range(0, len(files), 128)]
    x, broken = decode_all(lambda: batches, pixel_format, len(files), sum(map(_size, map(str, files))))
    if broken:
        row = min(broken)
        more = f" (and {len(broken) - 1} more)" if len(broken) > 1 else ""
        raise UsageError(f"{shown(files[row])}: cannot be read, {broken[row]}{more}")
    return x


def _pixels_of(picture: Any, row: int, pixel_format: PixelFormat) -> Any:
    if isinstance(picture, str | os.PathLike):
        return _pixels_of_files([Path(picture)], pixel_format)[0]
    file = getattr(picture, "fp", None)
    try:
        if picture.format == "JPEG" and file is not None:  # not decoded yet: a copy, as decoding changes the original
            place = file.tell()
            file.seek(0)
            data = file.read()
            file.seek(place)
            with without_pillow_limit():
                return pixels(data, pixel_format)
        return preprocessed(picture.copy(), pixel_format)
    except (Broken, OSError, ValueError) as error:
        raise UsageError(f"image {row} of x: cannot be read, {error}") from None


class Sources:
    """Files given by name, by folder, by pattern, or in a list.

    Each iteration searches again, in the same order, so that memory does not grow with their number.
    """

    def __init__(self, words: Sequence[str], listed: IO[bytes] | None = None) -> None:
        self.words = tuple(words)
        self.list = _kept(listed) if listed and "-" in words else None

    def __iter__(self) -> Iterator[str]:
        """Iterate over the files; an argument that matches nothing is refused, an entry of a list is not checked."""
        for word in self.words:
            yield from self._of(word)

    def _of(self, word: str) -> Iterator[str]:
        """Files of an argument."""
        if word != "-" or not self.list:
            yield from files_of(word)
            return
        self.list.seek(0)
        for line in self.list:
            if entry := os.fsdecode(line.rstrip(b"\r\n")):
                yield from below(entry) if _is_folder(entry) else [entry]

    def close(self) -> None:
        """Delete the copy of the list."""
        if self.list:
            self.list.close()

    def count(self) -> int:
        """Number of files; an argument without any is an error."""
        total = 0
        for word in self.words:
            n = sum(1 for _ in self._of(word))
            if not n:
                place = "the list" if word == "-" else shown(Path(word))
                raise UsageError(f"{place}: no pictures there ({ENDINGS_IN_WORDS})")
            total += n
        return total

    def folders(self) -> list[Path]:
        """Folders that are searched for files."""
        heads = [word.partition("*")[0].partition("?")[0].partition("[")[0] for word in self.words if word != "-"]
        tops = [head if os.path.isdir(head) else os.path.dirname(head) for head in heads]  # noqa: PTH112, PTH120
        walked = [word for word in self.words if _is_folder(word)]
        patterns = [top or "." for top, head, word in zip(tops, heads, self.words, strict=False) if head != word]
        return [Path(each) for each in (*walked, *patterns)]


def _kept(listed: IO[bytes]) -> IO[bytes]:
    """Temporary copy of a list from a pipe, which can be read repeatedly."""
    kept = tempfile.TemporaryFile()  # noqa: SIM115  # read as long as the sources are
    for line in listed:
        kept.write(line)
    return kept


def files_of(word: str) -> Iterator[str]:
    """Files that a command-line argument refers to."""
    if _is_folder(word):
        yield from below(word)
    elif os.path.lexists(word):
        yield word
    elif glob.has_magic(word):
        yield from _matching(word)
    else:
        raise UsageError(f"{shown(Path(word)) if word else 'an empty word'}: no such file or folder")


def _matching(pattern: str) -> Iterator[str]:
    found = sorted(glob.iglob(pattern, recursive=True))  # noqa: PTH207  # knows absolute patterns
    if not found:
        raise UsageError(f"{pattern}: matches nothing")
    for each in found:
        if not _is_folder(each):
            if each.lower().endswith(ENDINGS):
                yield each
        elif "**" not in pattern:  # which matches what is in the folders too
            yield from below(each)


def below(folder: str, above: frozenset[tuple[int, int]] = frozenset()) -> Iterator[str]:
    """Pictures in and below a folder, sorted by name, without hidden ones; links to a folder above are not followed."""
    try:
        above = above or frozenset(_identity(str(each)) for each in Path(folder).resolve().parents)
        here = above | {_identity(folder)}
        with os.scandir(folder) as entries:
            inside = sorted((each.name, each.is_dir()) for each in entries if not each.name.startswith("."))
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise UsageError(f"{shown(Path(folder))}: cannot be read ({reason})") from None
    for name, is_folder in inside:
        path = os.path.join(folder, name)  # noqa: PTH118  # a Path for each of many files takes longer than the rest
        if not is_folder:
            if name.lower().endswith(ENDINGS):
                yield path
        elif _identity(path) not in here:
            yield from below(path, here)


def _identity(folder: str) -> tuple[int, int]:
    found = os.stat(folder)  # noqa: PTH116
    return found.st_dev, found.st_ino


def _is_folder(path: str) -> bool:
    return os.path.isdir(path)  # noqa: PTH112  # unlike Path's, false for names that no disk takes


def _size(file: str) -> int:
    try:
        return os.stat(file).st_size  # noqa: PTH116
    except (OSError, ValueError):
        return 0


def processes_for(files: Iterable[str]) -> int:
    """Number of processes to decode these files with: 1 where starting workers takes longer than decoding."""
    cost = 0.0
    for file in islice(files, PARALLEL_FROM):
        cost += 1 + _size(file) / BYTES_PER_COST
        if cost >= PARALLEL_FROM:
            return min(int(joblib.cpu_count()), PROCESSES)
    return 1


def batches_of(files: Iterable[str], size: int) -> Iterator[list[str]]:
    """Files in lists of equal length, the last one possibly shorter."""
    files = iter(files)
    while batch := list(islice(files, size)):
        yield batch
