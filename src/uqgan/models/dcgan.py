"""Unconditional GANs: noise to images (DCGAN), or to points, and the discriminators of both."""

from itertools import pairwise
from typing import cast

from torch import Tensor, nn

from uqgan.errors import UsageError
from uqgan.models.gan import small_weights
from uqgan.shapes import Codes, Images

SMALLEST = 4
"""Height and width, in pixels, of a generator's first feature map and of a discriminator's last."""


class ImageGenerator(nn.Module):
    """G(e): noise to an image, by transposed convolutions that double 4 × 4 feature maps up to the image's size.

    The first three of them also halve the number of channels.
    """

    def __init__(self, shape: tuple[int, ...], noise: int, width: int) -> None:
        super().__init__()
        channels, size, _ = shape
        widths = [width >> min(k, 3) for k in range(doublings(size) + 1)]
        doubled = [
            layer
            for a, b in pairwise(widths)
            for layer in (nn.ConvTranspose2d(a, b, 4, 2, 1, bias=False), nn.BatchNorm2d(b), nn.ReLU())
        ]
        self.layers = nn.Sequential(
            nn.Linear(noise, width * SMALLEST**2),
            nn.Unflatten(1, (width, SMALLEST, SMALLEST)),
            *doubled,
            nn.ConvTranspose2d(widths[-1], channels, 3, padding=1, bias=False),
        )
        self.apply(small_weights)

    def logits(self, e: Codes) -> Tensor:
        return cast(Tensor, self.layers(e))

    def forward(self, e: Codes) -> Images:
        """Images with pixels in [0, 1]."""
        return self.logits(e).sigmoid()


class PointGenerator(nn.Sequential):
    """G(e): noise to points in the plane, with the layers of the conditional generator."""

    def __init__(self, shape: tuple[int, ...], noise: int) -> None:
        (dim,) = shape
        sizes = (noise, 1024, 512, 256)
        hidden = [layer for a, b in pairwise(sizes) for layer in (nn.Linear(a, b), nn.ReLU(), nn.BatchNorm1d(b))]
        super().__init__(*hidden, nn.Linear(sizes[-1], dim))
        self.apply(small_weights)


class ImageDiscriminator(nn.Sequential):
    """D(x): a logit that is high for real images, by strided convolutions down to 4 × 4 pixels."""

    def __init__(self, shape: tuple[int, ...], width: int) -> None:
        channels, size, _ = shape
        widths = [width >> k for k in reversed(range(doublings(size) + 1))]
        halved = [
            layer
            for a, b in pairwise(widths)
            for layer in (nn.Conv2d(a, b, 4, 2, 1, bias=False), nn.BatchNorm2d(b), nn.LeakyReLU(0.2))
        ]
        super().__init__(
            nn.Conv2d(channels, widths[0], 3, padding=1, bias=False),
            nn.LeakyReLU(0.2),
            *halved,
            nn.Conv2d(width, 1, SMALLEST, bias=False),
            nn.Flatten(),
        )
        self.apply(small_weights)


class PointDiscriminator(nn.Sequential):
    """D(x): a logit that is high for real points."""

    def __init__(self, shape: tuple[int, ...], width: int = 512) -> None:
        (dim,) = shape
        sizes = (dim, width, width, width)
        hidden = [layer for a, b in pairwise(sizes) for layer in (nn.Linear(a, b), nn.LeakyReLU())]
        super().__init__(*hidden, nn.Linear(width, 1))
        self.apply(small_weights)


def make_gan(shape: tuple[int, ...], noise: int, width: int) -> tuple[nn.Module, nn.Module]:
    """Generator and discriminator for points, or for images, with `width` channels at 4 × 4 pixels."""
    if len(shape) == 1:
        return PointGenerator(shape, noise), PointDiscriminator(shape)
    return ImageGenerator(shape, noise, width), ImageDiscriminator(shape, width)


def doublings(size: int) -> int:
    """Number of doublings from 4 pixels to that size."""
    times = (size // SMALLEST).bit_length() - 1
    if size != SMALLEST << max(times, 0):
        raise UsageError(f"image size = {size}: DCGAN takes 4, 8, 16, 32, 64 … pixels")
    return times
