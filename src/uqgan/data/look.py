"""How a picture is seen: from encoded bytes, or an opened picture, to uint8 pixels as a network takes them."""

import io
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from PIL.Image import Image

Answer = TypeVar("Answer")
Pixels = npt.NDArray[np.uint8]
GREY = ("1", "L", "LA", "I", "I;16", "I;16B")
"""Modes of pictures without colour."""
FORMATS = ("PNG", "JPEG", "WEBP", "BMP")
LARGEST = 100_000_000
"""Most pixels of a picture; a few kilobytes can claim to be more than any memory holds."""
LARGEST_FILE = 2**30
AT_ONCE = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
"""How files are opened: a pipe that nobody writes into is no reason to wait."""
LONGEST = 8
"""Ratio of a picture's sides from which on its middle is cut out before it is resized, not after."""


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
    return _opened(data, as_seen, look)


def describe(data: bytes) -> tuple[tuple[int, int], bool]:
    """Width and height of an encoded picture, and whether it is grey."""
    with without_pillow_limit():
        return _opened(data, _size_and_grey)


def _size_and_grey(image: "Image") -> tuple[tuple[int, int], bool]:
    size, grey_mode = image.size, image.mode in GREY
    small: Any = np.zeros(3) if grey_mode else as_seen(image, Look(16, 3)).astype(np.int16)
    return size, grey_mode or bool((abs(small - small.mean(0)) <= 1).all())


def _opened(data: bytes, ask: Callable[..., Answer], *words: Any) -> Answer:
    """What a function makes of the picture of these bytes; whatever is wrong with it is raised as `Broken`."""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            return ask(image, *words)
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
    image.load()  # a PNG may say only behind its pixels how the camera was held
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
