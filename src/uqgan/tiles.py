"""Contact sheets: rows of images in one picture."""

import io
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

KINDS = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".webp": "WEBP"}
"""Formats by a file's ending."""
OPTIONS: dict[str, dict[str, Any]] = {"PNG": {"optimize": True}, "JPEG": {"quality": 95}, "WEBP": {"lossless": True}}
LINE = 1
"""Pixels between images."""


def tile(rows: Sequence[Tensor], scale: int = 1, grey: int = 255, kind: str = "PNG") -> bytes:
    """Contact sheet of rows of images (N, channels, height, width), uint8 or in [0, 1], with grey lines between them.

    `kind` is a value of KINDS.
    """
    from PIL import Image

    pixels = [_pixels(row) for row in rows]
    channels, height, width = pixels[0].shape[1:]
    down, across = height + LINE, width + LINE
    columns = max(len(row) for row in pixels)
    canvas = torch.full((channels, len(rows) * down - LINE, columns * across - LINE), grey, dtype=torch.uint8)
    for r, row in enumerate(pixels):
        for c, image in enumerate(row):
            canvas[:, r * down : r * down + height, c * across : c * across + width] = image
    picture = Image.fromarray(canvas[0].numpy() if channels == 1 else canvas.permute(1, 2, 0).numpy())
    out = io.BytesIO()
    size = (picture.width * scale, picture.height * scale)
    picture.resize(size, Image.Resampling.NEAREST).save(out, kind, **OPTIONS[kind])
    return out.getvalue()


def _pixels(images: Tensor) -> Tensor:
    """Images as uint8 on the CPU, RGB or grey."""
    pixels = images.cpu() if images.dtype == torch.uint8 else (images.cpu() * 255).round().clamp(0, 255).byte()
    return pixels if pixels.shape[1] == 3 else pixels[:, :1]
