"""Decoding: encoded pictures to preprocessed uint8 pixels, in several processes where that is faster.

Neither PyTorch nor Parquet is imported, so that worker processes start quickly.
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
"""Pixels of a batch, and reasons for the rows that could not be decoded."""
PARALLEL_FROM = 8000
"""Least cost for worker processes, whose start takes as long as decoding this many small pictures."""
BYTES_PER_COST = 2048
"""Encoded bytes that cost as much as one small picture."""
PROCESSES = 8
"""Limit of worker processes; reading the files does not keep up with more."""
GREY = ("1", "L", "LA", "I", "I;16", "I;16B")
"""Pillow's modes of grey pictures."""
FORMATS = ("PNG", "JPEG", "WEBP", "BMP")
MOST_PIXELS = 100_000_000
"""Limit of pixels per picture; a few kilobytes can decode to more than any memory holds."""
MOST_BYTES = 2**30
OPEN_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
"""Flags for opening files; without blocking, as a named pipe may have no writer."""
NICENESS = 10
"""Niceness of worker processes: they use cores that prediction leaves idle, and do not delay its threads."""
READ_AHEAD = 2**25
"""Limit of decoded pixels, in bytes, that wait to be used."""
CROP_FIRST_FROM = 8
"""Aspect ratio above which a picture is cropped before it is resized, not afterwards."""

_STOP: list[Any] = []
"""Event that cancels the work of a worker process; empty in other processes."""


class Broken(Exception):
    """A picture cannot be decoded; the message is the reason."""


@dataclass(frozen=True)
class Look:
    """Preprocessing of a set's pictures: size, channels and orientation of a network's input."""

    size: int
    channels: int
    transposed: bool = False
    """Whether files have rows and columns exchanged, as EMNIST's have."""
    inverted: bool = False
    """Whether files are black on white, as Omniglot's are, to be inverted."""


def decode_all(read: Callable[[], Iterable[list[Encoded]]], look: Look, n: int, n_bytes: int) -> Outcome:
    """Pixels of all n pictures, of `n_bytes` in total, which `read` yields in batches.

    Batches are decoded by worker processes where that is faster, and in this process if a worker is killed.
    """
    processes = min(joblib.cpu_count(), PROCESSES) if n + n_bytes / BYTES_PER_COST >= PARALLEL_FROM else 1
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
    """Batches of files with their pixels, in order, decoded by worker processes while the caller uses earlier ones.

    Decoding starts immediately and stays at most `READ_AHEAD` bytes ahead of the caller.
    """
    if processes == 1:
        yield ((batch, decode(batch, look)) for batch in batches)
        return
    from joblib.externals.loky import ProcessPoolExecutor
    from joblib.externals.loky.backend import get_context

    stop = get_context("loky").Event()
    pool = ProcessPoolExecutor(processes, initializer=_start_worker, initargs=(os.getpid(), stop))
    waiting: deque[tuple[list[str], Future[Outcome] | None]] = deque()
    size = look.channels * look.size**2

    def fill() -> None:
        while sum(len(batch) for batch, _ in waiting) * size < READ_AHEAD and (batch := next(batches, None)):
            waiting.append((batch, _submitted(pool, batch, look)))

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


def _submitted(pool: Any, batch: list[str], look: Look) -> Future[Outcome] | None:
    """Future of a batch submitted to a worker process; None if a worker was killed."""
    try:
        future: Future[Outcome] = pool.submit(decode, batch, look)
    except BrokenProcessPool:
        return None
    return future


def _outcome(future: Future[Outcome] | None, batch: list[str], look: Look) -> Outcome:
    """Result for a submitted batch, which is decoded in this process if a worker was killed."""
    try:
        return future.result() if future else decode(batch, look)
    except BrokenProcessPool:
        return decode(batch, look)


def _start_worker(parent: int, stop: Any) -> None:
    """Set up a worker process: it leaves Ctrl-C to the parent process, and ends when the parent is gone."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    _STOP.append(stop)
    if hasattr(os, "nice"):
        os.nice(NICENESS)
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
        number = os.open(file, OPEN_FLAGS)
        try:
            found = os.fstat(number)
            if not stat.S_ISREG(found.st_mode):
                raise Broken("is a directory" if stat.S_ISDIR(found.st_mode) else "not a regular file")
            if found.st_size > MOST_BYTES:
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
    """Pixels (channels, size, size) of an encoded picture, of the first frame if it is animated.

    To be called within `without_pillow_limit`.
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
    """Pillow image of these bytes; all errors are raised as `Broken`."""
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
    """Turn off Pillow's limit of pixels, which only warns; `MOST_PIXELS` is the limit instead."""
    from PIL import Image

    before, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None
    try:
        yield
    finally:
        Image.MAX_IMAGE_PIXELS = before


def as_seen(image: "Image", look: Look) -> Pixels:
    """Preprocessed pixels: upright, without transparency, grey or RGB, resized with antialiasing as in the paper."""
    width, height = image.size
    if width * height > MOST_PIXELS:
        raise Broken(f"{width:,} × {height:,} pixels, more than {MOST_PIXELS:,}")
    image.draft(None, (2 * look.size, 2 * look.size))  # decode a large JPEG at reduced size
    image.load()
    image = _square(_opaque(_upright(image)), look.size)
    if look.channels == 1 and image.mode != "L":
        image = image.convert("L")
    x = np.frombuffer(image.tobytes(), np.uint8).reshape(look.size, look.size, -1).transpose(2, 0, 1)
    if look.transposed:
        x = x.transpose(0, 2, 1)
    if look.inverted:
        x = 255 - x
    return x if len(x) == look.channels else np.broadcast_to(x, (look.channels, look.size, look.size))


def _upright(image: "Image") -> "Image":
    """Image rotated by its EXIF orientation."""
    from PIL import ImageOps

    if "exif" in image.info or "Raw profile type exif" in image.info:
        return ImageOps.exif_transpose(image)
    return image


def _opaque(image: "Image") -> "Image":
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


def _square(image: "Image", size: int) -> "Image":
    """Image resized to fit the shorter side, with the longer one cropped to its middle."""
    from PIL import Image

    width, height = image.size
    short = min(width, height)
    if max(width, height) > CROP_FIRST_FROM * short:
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
