"""Conditional autoencoders: the latent space in which the generator works."""

from itertools import pairwise
from typing import cast

from torch import Tensor, nn

from uqgan.models.layers import BLOCKS, UpBlock, down_path, init_resnet, with_label, with_label_planes
from uqgan.shapes import Codes, Images, Labels

CODERS = ("encode", "decode_logits")
"""Methods of an autoencoder that call its networks."""


class Autoencoder(nn.Module):
    """A: images to codes and back, given the class."""

    dim: int

    def encode(self, x: Images, y: Labels) -> Codes:
        raise NotImplementedError

    def decode_logits(self, z: Codes, y: Labels) -> Tensor:
        raise NotImplementedError

    def decode(self, z: Codes, y: Labels) -> Images:
        """Images with pixels in [0, 1]."""
        return self.decode_logits(z, y).sigmoid()

    def forward(self, x: Images, y: Labels) -> Tensor:
        """Logits of the reconstruction, for Eq. 6."""
        return self.decode_logits(self.encode(x, y), y)


class Identity(Autoencoder):
    """The data space as latent space, for points in the plane."""

    def __init__(self, shape: tuple[int, ...], n_classes: int, dim: int) -> None:
        super().__init__()
        (self.dim,) = shape

    def encode(self, x: Images, y: Labels) -> Codes:
        return x

    def decode(self, z: Codes, y: Labels) -> Images:
        return z


class ConvAutoencoder(Autoencoder):
    """An encoder given the label as constant channels, and a decoder given it appended to the code."""

    def __init__(self, encoder: nn.Module, decoder: nn.Module, n_classes: int, dim: int) -> None:
        super().__init__()
        self.dim, self.n_classes = dim, n_classes
        self.encoder, self.decoder = encoder, decoder

    def encode(self, x: Images, y: Labels) -> Codes:
        return cast(Tensor, self.encoder(with_label_planes(x, y, self.n_classes)))

    def decode_logits(self, z: Codes, y: Labels) -> Tensor:
        return cast(Tensor, self.decoder(with_label(z, y, self.n_classes)))


class SmallAutoencoder(ConvAutoencoder):
    """Two strided convolutions each way, for MNIST-like images of 32 × 32 pixels."""

    def __init__(self, shape: tuple[int, ...], n_classes: int, dim: int) -> None:
        channels, height, width = shape
        inner = (64, height // 4, width // 4)
        size = inner[0] * inner[1] * inner[2]
        encoder = nn.Sequential(
            nn.Conv2d(channels + n_classes, 32, 3, stride=2, padding=1),
            nn.ReLU(inplace=True),
            nn.Conv2d(32, 64, 3, stride=2, padding=1),
            nn.ReLU(inplace=True),
            nn.Flatten(),
            nn.Linear(size, dim),
        )
        decoder = nn.Sequential(
            nn.Linear(dim + n_classes, size),
            nn.ReLU(inplace=True),
            nn.Unflatten(1, inner),
            nn.ConvTranspose2d(64, 32, 3, stride=2, padding=1, output_padding=1),
            nn.ReLU(inplace=True),
            nn.ConvTranspose2d(32, 64, 3, stride=2, padding=1, output_padding=1),
            nn.ReLU(inplace=True),
            nn.ConvTranspose2d(64, channels, 3, padding=1),
        )
        super().__init__(encoder, decoder, n_classes, dim)


class ResNetAutoencoder(ConvAutoencoder):
    """The ResNet's blocks down to 4 × 4 pixels, then upsampling blocks with batch norm, for 32 or 64 pixels a side."""

    def __init__(self, shape: tuple[int, ...], n_classes: int, dim: int) -> None:
        channels, size, _ = shape
        path, width = down_path(channels + n_classes, size)
        encoder = nn.Sequential(path, nn.Flatten(), nn.Linear(width * 16, dim))
        widths = [width] + [width >> k for k in range(BLOCKS[size])]
        decoder = nn.Sequential(
            nn.Linear(dim + n_classes, width * 16),
            nn.Unflatten(1, (width, 4, 4)),
            *(UpBlock(a, b) for a, b in pairwise(widths)),
            nn.BatchNorm2d(widths[-1]),
            nn.ReLU(),
            nn.Conv2d(widths[-1], channels, 3, padding=1),
        )
        super().__init__(encoder, decoder, n_classes, dim)
        self.apply(init_resnet)


AUTOENCODERS: dict[str, type[Identity] | type[SmallAutoencoder] | type[ResNetAutoencoder]] = {
    "identity": Identity,
    "small": SmallAutoencoder,
    "resnet": ResNetAutoencoder,
}


def make_autoencoder(kind: str, shape: tuple[int, ...], n_classes: int, dim: int) -> Autoencoder:
    """An autoencoder of that kind for inputs of `shape`, with codes of size `dim`."""
    return AUTOENCODERS[kind](shape, n_classes, dim)
