"""Classifiers: x → one logit a class."""

import math
from typing import cast

from torch import Tensor, nn

from uqgan.models.cells import CellConv, CellMax, as_cells
from uqgan.models.layers import down_path, dropout, init_resnet
from uqgan.models.own import OwnClassifier


class MLP(nn.Sequential):
    """Three hidden layers of 512, for points in the plane."""

    def __init__(self, shape: tuple[int, ...], n_classes: int, p: float = 0.0, width: int = 512) -> None:
        inputs = math.prod(shape)
        hidden = [
            layer
            for a, b in ((inputs, width), (width, width), (width, width))
            for layer in (nn.Linear(a, b), dropout(p), nn.LeakyReLU())
        ]
        super().__init__(nn.Flatten(), *hidden, nn.Linear(width, n_classes))


class LeNet(nn.Sequential):
    """LeNet-5 for 32 × 32 pixels."""

    def __init__(self, shape: tuple[int, ...], n_classes: int, p: float = 0.0) -> None:
        channels, *_ = shape

        def block(layer: nn.Module, *pool: nn.Module) -> list[nn.Module]:
            return [layer, dropout(p), *pool, nn.ReLU(inplace=True)]  # pooled first: the same, and less to do

        super().__init__(
            *block(CellConv(channels, 6, cell=4), CellMax()),
            *block(CellConv(6, 16, cell=2), CellMax()),
            nn.Flatten(),
            *block(nn.Linear(400, 120)),
            *block(nn.Linear(120, 84)),
            nn.Linear(84, n_classes),
        )

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, super().forward(as_cells(x, 4)))  # type: ignore[no-untyped-call]


class ResNet(nn.Sequential):
    """A small pre-activation ResNet for 32 × 32 or 64 × 64 pixels."""

    def __init__(self, shape: tuple[int, ...], n_classes: int, p: float = 0.0) -> None:
        channels, size, _ = shape
        path, width = down_path(channels, size, p)
        head = nn.Linear(width * 16, n_classes)
        init_resnet(head)
        super().__init__(path, nn.Flatten(), head)


CLASSIFIERS: dict[str, type[MLP] | type[LeNet] | type[ResNet]] = {"mlp": MLP, "lenet": LeNet, "resnet": ResNet}


def make_classifier(
    kind: str, shape: tuple[int, ...], n_classes: int, p: float = 0.0, own: nn.Module | None = None
) -> nn.Module:
    """The classifier of that kind for inputs of `shape`, with dropout `p` if any; or a copy of one's own."""
    if own is not None:
        return OwnClassifier(own, shape, n_classes, draws=p > 0)
    return CLASSIFIERS[kind](shape, n_classes, p)
