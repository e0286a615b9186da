"""The conditional generator and critic that work on codes, and the shield made of a generator and a decoder."""

from itertools import pairwise
from typing import cast

import torch
from torch import Tensor, nn

from uqgan.models.autoencoders import Autoencoder
from uqgan.models.layers import with_label
from uqgan.shapes import Codes, Images, Labels


class Generator(nn.Module):
    """G(e|y): uniform noise and a class to a code around that class."""

    def __init__(self, dim: int, n_classes: int, noise: int) -> None:
        super().__init__()
        self.n_classes, self.noise = n_classes, noise
        sizes = (noise + n_classes, 1024, 512, 256)
        hidden = [layer for a, b in pairwise(sizes) for layer in (nn.Linear(a, b), nn.ReLU(), nn.BatchNorm1d(b))]
        self.layers = nn.Sequential(*hidden, nn.Linear(sizes[-1], dim))
        self.apply(_small_weights)

    def forward(self, y: Labels) -> Codes:
        weight = next(self.parameters())
        e = torch.rand(len(y), self.noise, device=weight.device, dtype=weight.dtype)
        return cast(Tensor, self.layers(with_label(e, y, self.n_classes)))


class Critic(nn.Module):
    """D(z|y): how much a code looks like a real one of its class."""

    def __init__(self, dim: int, n_classes: int, width: int = 512) -> None:
        super().__init__()
        self.n_classes, self.dim = n_classes, dim
        sizes = (dim + n_classes, width, width, width, 1)
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(sizes))
        self.activation = nn.LeakyReLU()
        self.apply(_small_weights)

    def forward(self, z: Codes, y: Labels) -> Tensor:
        h = with_label(z, y, self.n_classes)
        for layer in self.layers[:-1]:
            h = self.activation(layer(h))
        return cast(Tensor, self.layers[-1](h))

    def slope(self, z: Codes, y: Labels) -> Codes:
        """∇_z D(z|y), written out.

        The critic is piecewise linear: its slope is a product of its weights, each row scaled by 1 or by the
        leak. These scales don't change with the weights but on a null set, so the product can be
        differentiated once more without a second backward through the network.
        """
        leak = self.activation.negative_slope
        with torch.no_grad():
            h, hidden = with_label(z, y, self.n_classes), []
            for layer in self.layers[:-1]:
                hidden.append(layer(h))
                h = self.activation(hidden[-1])
        first, *inner, last = (cast(Tensor, layer.weight) for layer in self.layers)
        slope = last.expand(len(z), -1)
        for weight, h in zip((*reversed(inner), first[:, : self.dim]), reversed(hidden), strict=True):
            slope = torch.ops.aten.leaky_relu_backward(slope, h, leak, False) @ weight
        return slope


class Shield(nn.Module):
    """Generator and autoencoder together: class labels in, out-of-class examples of these classes out."""

    def __init__(self, generator: Generator, autoencoder: Autoencoder) -> None:
        super().__init__()
        self.generator, self.autoencoder = generator, autoencoder

    def forward(self, y: Labels) -> Images:
        return self.autoencoder.decode(self.generator(y), y)


def _small_weights(module: nn.Module) -> None:
    if isinstance(module, nn.Linear):
        nn.init.normal_(module.weight, 0.0, 0.02)
        nn.init.zeros_(module.bias)
    elif isinstance(module, nn.BatchNorm1d):
        nn.init.normal_(module.weight, 1.0, 0.02)
        nn.init.zeros_(module.bias)
