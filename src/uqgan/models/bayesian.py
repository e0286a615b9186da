"""Networks whose weights are random variables (Bayes-by-Backprop)."""

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from uqgan.errors import UsageError
from uqgan.models.user import UserClassifier
from uqgan.shapes import Images, Logits

VARIATIONAL = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
"""Layers whose weights and biases are drawn, unless they are frozen; those of norms are not."""
LEAST_SCALE = 1e-6

Weights = dict[str, Tensor]
"""Weights of a network by their names; with a leading axis where there are several draws of them."""


class BayesianNet(nn.Module):
    """A network with weights drawn from N(μ, softplus(ρ)²), independently of each other.

    The μ are the weights of the network itself, which starts from those it has.
    """

    draws = True

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        layers = [layer for layer in net.modules() if isinstance(layer, VARIATIONAL)]
        drawn = {weight for layer in layers for weight in layer.parameters() if weight.requires_grad}
        if not drawn:
            name = net.name if isinstance(net, UserClassifier) else type(net).__qualname__
            raise UsageError(f"classifier = {name}: has no linear or convolutional layer to draw from")
        self.net = net
        self.names = [name for name, weight in net.named_parameters() if weight in drawn]
        self.rho = nn.ParameterList(torch.normal(-5.0, 0.1, mean.shape) for mean in self.means())

    def means(self) -> list[Tensor]:
        """The μ of all weights that are drawn."""
        own = dict(self.net.named_parameters())
        return [own[name] for name in self.names]

    def scales(self) -> list[Tensor]:
        """Standard deviations of all weights that are drawn."""
        return [F.softplus(rho) + LEAST_SCALE for rho in self.rho]

    def noise(self, *n_draws: int) -> list[Tensor]:
        """Standard normal noise for all weights that are drawn."""
        return [torch.randn(*n_draws, *rho.shape, device=rho.device) for rho in self.rho]

    def weights(self, noise: list[Tensor], scales: list[Tensor]) -> Weights:
        """Weights μ + scale · noise."""
        drawn = (mean + scale * e for mean, scale, e in zip(self.means(), scales, noise, strict=True))
        return dict(zip(self.names, drawn, strict=True))

    def run(self, x: Images, weights: Weights) -> Logits:
        """Logits of the network with these weights."""
        return cast(Tensor, functional_call(self.net, weights, (x,)))

    def forward(self, x: Images) -> Logits:
        """Logits of one draw, which all samples share."""
        return self.run(x, self.weights(self.noise(), self.scales()))


def to_bayesian(net: nn.Module) -> BayesianNet:
    """The same network with random weights: those of all its linear and convolutional layers, but frozen ones."""
    return BayesianNet(net)
