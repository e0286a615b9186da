"""Networks of GEN: a variational autoencoder, a generator that perturbs its codes, and two discriminators."""

from itertools import pairwise
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from uqgan.errors import UsageError
from uqgan.shapes import Codes, Images

CODERS = ("statistics", "decode_logits")
"""Methods of the autoencoder that call its networks."""
LEAST_SCALE = 1e-6
"""Lower bound of a code's standard deviation."""
LEAST_PERTURBATION = 1e-3
"""Lower bound of a perturbation's standard deviation."""
POINT_WIDTH = 128
"""Units of a hidden layer in the networks for points."""


class VariationalAutoencoder(nn.Module):
    """A: images to a normal distribution of codes, and codes back to images."""

    def __init__(self, encoder: nn.Module, decoder: nn.Module, output: nn.Module) -> None:
        super().__init__()
        self.encoder, self.decoder, self.output = encoder, decoder, output

    def statistics(self, x: Images) -> Tensor:
        return cast(Tensor, self.encoder(x))

    def encode(self, x: Images) -> tuple[Codes, Codes]:
        """Means and standard deviations of the codes."""
        loc, raw = self.statistics(x).chunk(2, 1)
        return loc, F.softplus(raw) + LEAST_SCALE

    def decode_logits(self, z: Codes) -> Tensor:
        return cast(Tensor, self.decoder(z))

    def decode(self, z: Codes) -> Images:
        """Images with pixels in [0, 1], or points."""
        return cast(Tensor, self.output(self.decode_logits(z)))


class Perturbation(nn.Module):
    """G(z): a code with normal noise added, whose standard deviation depends on the code and on random input."""

    def __init__(self, dim: int, noise: int = 2, width: int = 32) -> None:
        super().__init__()
        self.noise = noise
        self.layers = _mlp(dim + noise, width, width, width, dim)

    def forward(self, z: Codes) -> Codes:
        e = torch.randn(len(z), self.noise, device=z.device, dtype=z.dtype)
        scale = F.softplus(self.layers(torch.cat([e, z], 1))) + LEAST_PERTURBATION
        return z + scale * torch.randn_like(z)


def make_autoencoder(shape: tuple[int, ...], dim: int, width: int) -> VariationalAutoencoder:
    """A variational autoencoder for points or images; `width` is the number of channels in the image decoder."""
    if len(shape) == 1:
        hidden = (POINT_WIDTH, POINT_WIDTH)
        return VariationalAutoencoder(_mlp(*shape, *hidden, 2 * dim), _mlp(dim, *hidden, *shape), nn.Identity())
    features, n_features = _features(shape)
    encoder = nn.Sequential(*features, nn.Linear(n_features, 2 * dim))
    return VariationalAutoencoder(encoder, _image_decoder(shape, dim, width), nn.Sigmoid())


def code_discriminator(dim: int, width: int = 32) -> nn.Module:
    """D(z): a logit that is high for unchanged codes, and low for perturbed ones."""
    return _mlp(dim, width, width, width, 1)


def image_discriminator(shape: tuple[int, ...]) -> nn.Module:
    """D(x): a logit that is high for real samples, and low for those decoded from perturbed codes."""
    if len(shape) == 1:
        return _mlp(*shape, POINT_WIDTH, POINT_WIDTH, 1)
    features, n_features = _features(shape)
    return nn.Sequential(*features, nn.Linear(n_features, 500), nn.ReLU(), nn.Linear(500, 1))


def _features(shape: tuple[int, ...]) -> tuple[list[nn.Module], int]:
    """Two convolutions with pooling, and the number of features they return."""
    channels, size, _ = shape
    layers: list[nn.Module] = [
        *(nn.Conv2d(channels, 20, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(20, 50, 5), nn.ReLU(), nn.MaxPool2d(2)),
        nn.Flatten(),
    ]
    return layers, 50 * (size // 4 - 3) ** 2


def _image_decoder(shape: tuple[int, ...], dim: int, width: int) -> nn.Module:
    """Transposed convolutions from a code, as one pixel, to 35 or 70 pixels, and convolutions that crop the image."""
    channels, size, _ = shape
    half = width // 2
    to_17 = [
        *(nn.ConvTranspose2d(dim, width, 7), nn.BatchNorm2d(width), nn.LeakyReLU()),
        *(nn.ConvTranspose2d(width, half, 5, stride=2), nn.BatchNorm2d(half), nn.LeakyReLU()),
    ]
    to_size: dict[int, list[nn.Module]] = {
        32: [nn.ConvTranspose2d(half, channels, 5, 2, 1), nn.Conv2d(channels, channels, 4)],
        64: [
            *(nn.ConvTranspose2d(half, half, 5, 2, 1), nn.LeakyReLU()),
            nn.ConvTranspose2d(half, channels, 4, 2, 1),
            *(nn.Conv2d(channels, channels, 4), nn.Conv2d(channels, channels, 4)),
        ],
    }
    if size not in to_size:
        raise UsageError(f"image size = {size}: GEN takes {' or '.join(map(str, to_size))} pixels")
    return nn.Sequential(nn.Unflatten(1, (dim, 1, 1)), *to_17, *to_size[size])


def _mlp(*sizes: int) -> nn.Sequential:
    """Linear layers of these sizes, with leaky ReLUs between them."""
    *hidden, last = (nn.Linear(a, b) for a, b in pairwise(sizes))
    return nn.Sequential(*(layer for linear in hidden for layer in (linear, nn.LeakyReLU())), last)
