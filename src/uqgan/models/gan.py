"""The conditional generator and critic, in the latent space."""

from itertools import pairwise
from typing import cast

import torch
from torch import Tensor, nn

from uqgan.models.layers import with_label
from uqgan.shapes import Codes, Labels


class Generator(nn.Module):
    """G(e|y): uniform noise and a class to a code near that class."""

    def __init__(self, dim: int, n_classes: int, noise: int, width: int = 1024) -> None:
        super().__init__()
        self.n_classes, self.noise = n_classes, noise
        sizes = (noise + n_classes, width, width // 2, width // 4)
        hidden = [layer for a, b in pairwise(sizes) for layer in (nn.Linear(a, b), nn.ReLU(), nn.BatchNorm1d(b))]
        self.layers = nn.Sequential(*hidden, nn.Linear(sizes[-1], dim))
        self.apply(small_weights)

    def forward(self, y: Labels) -> Codes:
        weight = next(self.parameters())
        e = torch.rand(len(y), self.noise, device=weight.device, dtype=weight.dtype)
        return cast(Tensor, self.layers(with_label(e, y, self.n_classes)))


class Critic(nn.Module):
    """D(z|y): a score that is high for real codes of class y and low for generated ones."""

    def __init__(self, dim: int, n_classes: int, width: int = 512) -> None:
        super().__init__()
        self.n_classes, self.dim = n_classes, dim
        sizes = (dim + n_classes, width, width, width, 1)
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(sizes))
        self.activation = nn.LeakyReLU()
        self.apply(small_weights)

    def forward(self, z: Codes, y: Labels) -> Tensor:
        h = with_label(z, y, self.n_classes)
        for layer in self.layers[:-1]:
            h = self.activation(layer(h))
        return cast(Tensor, self.layers[-1](h))

    def slope(self, z: Codes, y: Labels) -> Codes:
        """∇_z D(z|y) in closed form.

        The critic is piecewise linear: its slope is a product of its weights, each row scaled by 1 or by the slope
        of the leaky ReLU. These scales are constant almost everywhere, so the product can be differentiated without
        a second backward pass through the network.
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


def small_weights(module: nn.Module) -> None:
    """Initialise linear layers and convolutions by N(0, 0.02²), batch norms by N(1, 0.02²), and all biases with 0."""
    if isinstance(module, nn.Linear | nn.Conv2d | nn.ConvTranspose2d):
        nn.init.normal_(module.weight, 0.0, 0.02)
    elif isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
        nn.init.normal_(module.weight, 1.0, 0.02)
    if isinstance(getattr(module, "bias", None), Tensor):
        nn.init.zeros_(module.bias)  # type: ignore[arg-type]
