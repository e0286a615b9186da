"""Preprocessing: from encoded bytes, or an opened picture, to uint8 pixels as network input."""

import io
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from PIL.Image import Image

Pixels = npt.NDArray[np.uint8]
GREY = ("1", "L", "LA", "I", "I;16", "I;16B")
"""Pillow's modes of grey pictures."""
FORMATS = ("PNG", "JPEG", "WEBP", "BMP")
MOST_PIXELS = 100_000_000
"""Limit of pixels per picture; a few kilobytes can decode to more than any memory holds."""
MOST_BYTES = 2**30
OPEN_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
"""Flags for opening files; without blocking, as a named pipe may have no writer."""
CROP_FIRST_FROM = 8
"""Aspect ratio above which a picture is cropped before it is resized, not afterwards."""


class Broken(Exception):
    """A picture cannot be decoded; the message is the reason."""


@dataclass(frozen=True)
class PixelFormat:
    """Preprocessing of a set's pictures: size, channels and orientation of a network's input."""

    size: int
    channels: int
    transposed: bool = False
    """Whether files have rows and columns exchanged, as EMNIST's have."""
    inverted: bool = False
    """Whether files are black on white, as Omniglot's are, to be inverted."""


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


def pixels(data: bytes, pixel_format: PixelFormat) -> Pixels:
    """Pixels (channels, size, size) of an encoded picture, of the first frame if it is animated.

    To be called within `without_pillow_limit`.
    """
    with _opened(data) as image:
        return preprocessed(image, pixel_format)


def describe(data: bytes) -> tuple[tuple[int, int], bool]:
    """Width and height of an encoded picture, and whether it is grey."""
    with without_pillow_limit(), _opened(data) as image:
        size, grey_mode = image.size, image.mode in GREY
        small: Any = np.zeros(3) if grey_mode else preprocessed(image, PixelFormat(16, 3)).astype(np.int16)
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


def preprocessed(image: "Image", pixel_format: PixelFormat) -> Pixels:
    """Preprocessed pixels: upright, without transparency, grey or RGB, resized with antialiasing as in the paper."""
    (width, height), size, channels = image.size, pixel_format.size, pixel_format.channels
    if width * height > MOST_PIXELS:
        raise Broken(f"{width:,} × {height:,} pixels, more than {MOST_PIXELS:,}")
    if not width * height:
        raise Broken("no pixels")
    image.draft(None, (2 * size, 2 * size))  # decode a large JPEG at reduced size
    image.load()
    image = _square(_opaque(_upright(image)), size)
    if channels == 1 and image.mode != "L":
        image = image.convert("L")
    x = np.frombuffer(image.tobytes(), np.uint8).reshape(size, size, -1).transpose(2, 0, 1)
    if pixel_format.transposed:
        x = x.transpose(0, 2, 1)
    if pixel_format.inverted:
        x = 255 - x
    return x if len(x) == channels else np.broadcast_to(x, (channels, size, size))


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
    if image.mode == "F":
        raise Broken("floating-point pixels, whose range is unknown (convert it to 8 bits)")
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
