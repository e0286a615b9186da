"""Encoded pictures → uint8 pixels as a network sees them, in several processes where that pays.

Imports neither PyTorch nor Parquet, so that a worker process starts quickly.
"""

import io
import os
import signal
import stat
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import joblib
import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from PIL.Image import Image

Pixels = npt.NDArray[np.uint8]
Encoded = bytes | Path | str
"""A picture in memory, or the file that holds it."""
Outcome = tuple[Pixels, dict[int, str]]
"""Pixels of some pictures, and why those of certain rows could not be decoded."""
PAYS_FROM = 8000
"""Cost from which on worker processes are used: to start them takes as long as to decode this many small pictures."""
COSTLY = 2048
"""Encoded bytes that cost as much as one picture more."""
PROCESSES = 8
"""Most worker processes: reading the files does not feed more."""
GREY = ("1", "L", "LA", "I", "I;16", "I;16B")
"""Modes of pictures without colour."""
FORMATS = ("PNG", "JPEG", "WEBP", "BMP")
LARGEST = 100_000_000
"""Most pixels of a picture; a few kilobytes can claim to be more than any memory holds."""
LARGEST_FILE = 2**30
AT_ONCE = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
"""How files are opened: a pipe that nobody writes into is no reason to wait."""
BEHIND = 10
"""How much worker processes stand back: cores that prediction leaves idle decode, and its threads needn't wait."""
AHEAD = 2**25
"""Bytes of pixels that are decoded ahead of what uses them."""
LONGEST = 8
"""Ratio of a picture's sides from which on its middle is cut out before it is resized, not after."""

_STOP: list[Any] = []
"""What tells a worker process that nobody waits for its pictures any more; empty in other processes."""


class Broken(Exception):
    """A picture that cannot be decoded, and why, in words."""


@dataclass(frozen=True)
class Look:
    """How pictures of a set are brought to the form a network takes."""

    size: int
    channels: int
    transposed: bool = False
    """Stored with rows and columns exchanged, as EMNIST is."""
    inverted: bool = False
    """Stored black on white, as Omniglot is, and wanted white on black."""


def decode_all(read: Callable[[], Iterable[list[Encoded]]], look: Look, n: int, n_bytes: int) -> Outcome:
    """Pixels of all n pictures of `n_bytes` in total, which `read` gives in batches.

    Batches are decoded by worker processes where that pays; in this process if a worker is killed.
    """
    processes = min(joblib.cpu_count(), PROCESSES) if n + n_bytes / COSTLY >= PAYS_FROM else 1
    try:
        return _collect(read(), look, n, processes)
    except BrokenProcessPool:
        return _collect(read(), look, n, 1)


def _collect(batches: Iterable[list[Encoded]], look: Look, n: int, processes: int) -> Outcome:
    x = np.empty((n, look.channels, look.size, look.size), np.uint8)
    broken: dict[int, str] = {}
    start = 0
    # Few batches are read ahead, so that little more than the decoded pictures is held in memory.
    parallel = joblib.Parallel(processes, return_as="generator", batch_size=1, pre_dispatch="2*n_jobs", max_nbytes=None)
    with closing(parallel(joblib.delayed(decode)(batch, look) for batch in batches)) as outcomes:
        for pictures, reasons in outcomes:
            x[start : start + len(pictures)] = pictures
            broken |= {start + row: reason for row, reason in reasons.items()}
            start += len(pictures)
    return x, broken


@contextmanager
def decoding(
    batches: Iterator[list[str]], look: Look, processes: int
) -> Iterator[Iterator[tuple[Sequence[str], Outcome]]]:
    """Batches of files with their pixels, in their order, decoded by worker processes beside what is done with them.

    Decoding begins at once, and is never more than `AHEAD` bytes ahead of what was taken.
    """
    if processes == 1:
        yield ((batch, decode(batch, look)) for batch in batches)
        return
    from joblib.externals.loky import ProcessPoolExecutor
    from joblib.externals.loky.backend import get_context

    stop = get_context("loky").Event()
    pool = ProcessPoolExecutor(processes, initializer=_follow, initargs=(os.getpid(), stop))
    waiting: deque[tuple[list[str], Future[Outcome] | None]] = deque()
    size = look.channels * look.size**2

    def fill() -> None:
        while sum(len(batch) for batch, _ in waiting) * size < AHEAD and (batch := next(batches, None)):
            waiting.append((batch, _begun(pool, batch, look)))

    def drain() -> Iterator[tuple[Sequence[str], Outcome]]:
        while waiting:
            batch, future = waiting.popleft()
            fill()
            yield batch, _outcome(future, batch, look)

    fill()
    try:
        yield drain()
    finally:
        stop.set()
        for _, future in waiting:
            if future:
                future.cancel()
        pool.shutdown()


def _begun(pool: Any, batch: list[str], look: Look) -> Future[Outcome] | None:
    """A batch that a worker process decodes; None if a worker was killed."""
    try:
        future: Future[Outcome] = pool.submit(decode, batch, look)
    except BrokenProcessPool:
        return None
    return future


def _outcome(future: Future[Outcome] | None, batch: list[str], look: Look) -> Outcome:
    """What a worker process made of a batch; this process decodes it if a worker was killed."""
    try:
        return future.result() if future else decode(batch, look)
    except BrokenProcessPool:
        return decode(batch, look)


def _follow(parent: int, stop: Any) -> None:
    """Leave Ctrl-C, which reaches every process of a terminal, to the parent process; end when that was killed."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    _STOP.append(stop)
    if hasattr(os, "nice"):
        os.nice(BEHIND)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=watch, daemon=True).start()


def decode(batch: Sequence[Encoded], look: Look) -> Outcome:
    """Pixels of a batch, decoded in this process."""
    x = np.empty((len(batch), look.channels, look.size, look.size), np.uint8)
    broken = {}
    with without_pillow_limit():
        for row, picture in enumerate(batch):
            if _STOP and not row % 8 and _STOP[0].is_set():
                break
            try:
                x[row] = pixels(picture if isinstance(picture, bytes) else bytes_of(picture), look)
            except Broken as error:
                broken[row] = str(error)
    return x, broken


def bytes_of(file: Path | str) -> bytes:
    """Content of a picture file."""
    try:
        number = os.open(file, AT_ONCE)
        try:
            found = os.fstat(number)
            if not stat.S_ISREG(found.st_mode):
                raise Broken("is a directory" if stat.S_ISDIR(found.st_mode) else "not a regular file")
            if found.st_size > LARGEST_FILE:
                raise Broken("a file of more than 1 GiB")
            data = os.read(number, found.st_size)
            while len(data) < found.st_size and (more := os.read(number, found.st_size - len(data))):
                data += more
            return data
        finally:
            os.close(number)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else None
        raise Broken((reason or str(error)).lower()) from None


def pixels(data: bytes, look: Look) -> Pixels:
    """Pixels (channels, size, size) of an encoded picture; of the first frame if it is animated.

    For use within `without_pillow_limit`.
    """
    with _opened(data) as image:
        return as_seen(image, look)


def describe(data: bytes) -> tuple[tuple[int, int], bool]:
    """Width and height of an encoded picture, and whether it is grey."""
    with without_pillow_limit(), _opened(data) as image:
        size, grey_mode = image.size, image.mode in GREY
        small: Any = np.zeros(3) if grey_mode else as_seen(image, Look(16, 3)).astype(np.int16)
    return size, grey_mode or bool((abs(small - small.mean(0)) <= 1).all())


@contextmanager
def _opened(data: bytes) -> Iterator["Image"]:
    """Picture of these bytes; whatever is wrong with it is raised as `Broken`."""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            yield image
    except Broken:
        raise
    except Exception as error:  # Pillow's plug-ins raise nearly everything on damaged bytes
        raise Broken(_reason(error)) from None


@contextmanager
def without_pillow_limit() -> Iterator[None]:
    """Turn off Pillow's limit on the number of pixels, which only warns: `LARGEST` decides."""
    from PIL import Image

    before, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None
    try:
        yield
    finally:
        Image.MAX_IMAGE_PIXELS = before


def as_seen(image: "Image", look: Look) -> Pixels:
    """Pixels upright, without transparency, grey or RGB, resized with antialiasing, as in the paper's preprocessing."""
    width, height = image.size
    if width * height > LARGEST:
        raise Broken(f"{width:,} × {height:,} pixels, more than {LARGEST:,}")
    image.draft(None, (2 * look.size, 2 * look.size))  # a large JPEG needn't be unpacked in full
    image.load()
    image = _squared(_flat(_upright(image)), look.size)
    if look.channels == 1 and image.mode != "L":
        image = image.convert("L")
    x = np.frombuffer(image.tobytes(), np.uint8).reshape(look.size, look.size, -1).transpose(2, 0, 1)
    if look.transposed:
        x = x.transpose(0, 2, 1)
    if look.inverted:
        x = 255 - x
    return x if len(x) == look.channels else np.broadcast_to(x, (look.channels, look.size, look.size))


def _upright(image: "Image") -> "Image":
    """Image rotated as the camera was held."""
    from PIL import ImageOps

    if "exif" in image.info or "Raw profile type exif" in image.info:
        return ImageOps.exif_transpose(image)
    return image


def _flat(image: "Image") -> "Image":
    """Image in mode L or RGB: 16 bits become 8, transparency becomes white, other colour spaces become RGB."""
    from PIL import Image

    if image.mode in ("L", "RGB") and "transparency" not in image.info:
        return image
    if image.mode == "1":
        return image.convert("L")
    if image.mode.startswith("I"):
        deep = np.asarray(image).astype(np.int64)
        return Image.fromarray((deep.clip(0, 65535) >> 8).astype(np.uint8))
    if image.has_transparency_data:
        image = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
    return image.convert("RGB")


def _squared(image: "Image", size: int) -> "Image":
    """Image resized so that the shorter side fits, and cropped to the middle of the longer one."""
    from PIL import Image

    width, height = image.size
    short = min(width, height)
    if max(width, height) > LONGEST * short:
        image = _middle(image, short)
        width = height = short
    fitted = (size * width // short, size * height // short)
    if fitted != (width, height):
        image = image.resize(fitted, Image.Resampling.BILINEAR)
    return image if fitted == (size, size) else _middle(image, size)


def _middle(image: "Image", size: int) -> "Image":
    left, top = round((image.width - size) / 2), round((image.height - size) / 2)
    return image.crop((left, top, left + size, top + size))


def _reason(error: Exception) -> str:
    from PIL import UnidentifiedImageError

    if isinstance(error, UnidentifiedImageError):
        return "not a png, jpg, webp or bmp picture"
    if isinstance(error, MemoryError):
        return "too large for this machine's memory"
    return " ".join(str(error).split()) or type(error).__name__
