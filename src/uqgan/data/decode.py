"""Picture files → uint8 pixels as a network sees them. Whatever is wrong with a file ends in one `Broken`."""

import io
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from uqgan.workers import processors, some_workers

if TYPE_CHECKING:
    from PIL.Image import Image

Pixels = npt.NDArray[np.uint8]
Outcome = tuple[Pixels, dict[int, str]]
"""Pictures of a batch, and why some of them, by number, could not be read."""
PAYS_FROM = 4000
"""Pictures for each process, at least: to start one takes as long as to decode some thousand."""
GREY = ("1", "L", "LA", "I", "I;16", "I;16B")
"""Modes of pictures without colour."""
FORMATS = ("PNG", "JPEG", "WEBP", "BMP")
LARGEST = 100_000_000
"""Pixels of a picture, at most; a few kilobytes can claim to be more than any memory holds."""
LONGEST = 8
"""From this ratio of its sides on, a picture's middle is cut out before it is resized, not after."""


class Broken(Exception):
    """A picture that cannot be read, and why, in words."""


@dataclass(frozen=True)
class Look:
    """How a set's pictures come to look like those a network was made for."""

    size: int
    channels: int
    transposed: bool = False
    """Stored with rows and columns exchanged, as EMNIST is."""
    inverted: bool = False
    """Stored black on white, as Omniglot is, and wanted white on black."""


def decode_batches(batches: Iterable[list[bytes]], look: Look, total: int) -> Iterator[Outcome]:
    """Of each batch, in order; side by side where there are `total` pictures and processors enough for it."""
    with some_workers(min(processors(), total // PAYS_FROM)) as pool:
        if not pool.count:
            yield from (decode(batch, look) for batch in batches)
            return
        with ThreadPoolExecutor(pool.count) as threads:
            waiting: deque[Future[Outcome]] = deque()
            for batch in batches:
                waiting.append(threads.submit(pool.ask, decode, batch, look))
                if len(waiting) > 2 * pool.count:  # few enough to stay small in memory
                    yield waiting.popleft().result()
            yield from (each.result() for each in waiting)


def decode(batch: list[bytes], look: Look) -> Outcome:
    """One after the other, here."""
    x = np.empty((len(batch), look.channels, look.size, look.size), np.uint8)
    broken = {}
    with own_limit():
        for row, data in enumerate(batch):
            try:
                x[row] = pixels(data, look)
            except Broken as error:
                broken[row] = str(error)
    return x, broken


def pixels(data: bytes, look: Look) -> Pixels:
    """(channels, size, size) of an encoded picture; of an animated one its first frame."""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            return as_seen(image, look)
    except Broken:
        raise
    except Exception as error:  # Pillow's plug-ins raise nearly everything on damaged bytes
        raise Broken(_reason(error)) from None


def as_seen(image: "Image", look: Look) -> Pixels:
    """Upright, without transparency, grey or RGB, resized with antialiasing, as the paper's pre-processing does."""
    width, height = image.size
    if width * height > LARGEST:
        raise Broken(f"{width:,} × {height:,} pixels, more than {LARGEST:,}")
    image.draft(None, (2 * look.size, 2 * look.size))  # a large JPEG needn't be unpacked in full
    image.load()
    image = _squared(_flat(_upright(image)), look.size)
    if look.channels == 1 and image.mode != "L":
        image = image.convert("L")
    x = np.asarray(image)
    x = x[None] if x.ndim == 2 else x.transpose(2, 0, 1)  # (channels, rows, columns)
    if look.transposed:
        x = x.transpose(0, 2, 1)
    if look.inverted:
        x = 255 - x
    return np.broadcast_to(x, (look.channels, look.size, look.size))


@contextmanager
def own_limit() -> Iterator[None]:
    """Pillow's own guard against too many pixels warns where ours decides; it rests in here."""
    from PIL import Image

    before, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None
    try:
        yield
    finally:
        Image.MAX_IMAGE_PIXELS = before


def _upright(image: "Image") -> "Image":
    """As the camera was held."""
    from PIL import ImageOps

    if "exif" in image.info or "Raw profile type exif" in image.info:
        return ImageOps.exif_transpose(image)
    return image


def _flat(image: "Image") -> "Image":
    """L or RGB: 16 bits become 8, what is transparent becomes white, other colour spaces become RGB."""
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
    """Resized so that the shorter side fits, and the middle of the longer one."""
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


def describe(data: bytes) -> tuple[tuple[int, int], bool]:
    """A picture's width and height, and whether it is grey; only Broken if it's no picture at all."""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            size, grey_mode = image.size, image.mode in GREY
        if grey_mode:
            return size, True
        small: Any = pixels(data, Look(16, 3)).astype(np.int16)
        return size, bool((abs(small - small.mean(0)) <= 1).all())
    except Broken:
        raise
    except Exception as error:
        raise Broken(_reason(error)) from None
