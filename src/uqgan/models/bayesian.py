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
"""Layers whose weights and biases become random, unless they are frozen; normalisation layers keep fixed ones."""
LEAST_SCALE = 1e-6
"""Lower bound of a weight's standard deviation."""


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
        means = {name: weight for name, weight in net.named_parameters() if weight in drawn}
        self.names, self.shapes = list(means), [weight.shape for weight in means.values()]
        self.rho = nn.Parameter(torch.normal(-5.0, 0.1, (sum(weight.numel() for weight in means.values()),)))

    def means(self) -> Tensor:
        """The μ of all random weights, as one vector, so that a few operations serve all layers."""
        weights = dict(self.net.named_parameters())
        return torch.cat([weights[name].flatten() for name in self.names])

    def scales(self) -> Tensor:
        """Standard deviations of all random weights."""
        return F.softplus(self.rho) + LEAST_SCALE

    def noise(self, *n_draws: int) -> Tensor:
        """Standard normal noise for all random weights."""
        return torch.randn(*n_draws, len(self.rho), device=self.rho.device)

    def weights(self, noise: Tensor, scales: Tensor) -> Tensor:
        """Weights μ + scale · noise, with a leading axis for several draws."""
        return self.means() + scales * noise

    def run(self, x: Images, weights: Tensor) -> Logits:
        """Logits of the network with these weights."""
        parts = weights.split([shape.numel() for shape in self.shapes])  # type: ignore[no-untyped-call]
        named = {name: part.view(shape) for name, part, shape in zip(self.names, parts, self.shapes, strict=True)}
        return cast(Tensor, functional_call(self.net, named, (x,)))

    def forward(self, x: Images) -> Logits:
        """Logits of one draw of the weights, shared by all samples."""
        return self.run(x, self.weights(self.noise(), self.scales()))


def to_bayesian(net: nn.Module) -> BayesianNet:
    """Network whose linear and convolutional layers have random weights, except for frozen ones."""
    return BayesianNet(net)
