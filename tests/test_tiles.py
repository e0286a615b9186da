"""Images in one PNG keep their pixels and places."""

import io

import numpy as np
import torch
from PIL import Image

from uqgan.tiles import tile


def test_rows_of_different_length_keep_their_pixels_and_places() -> None:
    images = torch.randint(0, 256, (5, 3, 4, 6), dtype=torch.uint8)
    pixels = np.asarray(Image.open(io.BytesIO(tile([images[:3], images[3:]], scale=2, grey=128))))
    assert pixels.shape == (2 * (4 + 1 + 4), 2 * (6 + 1 + 6 + 1 + 6), 3)
    pixels = pixels[::2, ::2]
    for k, (top, left) in enumerate([(0, 0), (0, 7), (0, 14), (5, 0), (5, 7)]):
        assert np.array_equal(pixels[top : top + 4, left : left + 6].transpose(2, 0, 1), images[k])
    assert (pixels[4] == 128).all()
    assert (pixels[:, 6] == 128).all()
    assert (pixels[5:, 14:] == 128).all()


def test_fractions_become_bytes_within_their_range() -> None:
    pixels = np.asarray(Image.open(io.BytesIO(tile([torch.tensor([-0.5, 0.5, 1.5]).reshape(3, 1, 1, 1)]))))
    assert pixels.tolist() == [[0, 255, 128, 255, 255]]
