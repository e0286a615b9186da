"""Classifiers: images or points to one logit per class."""

import math

from torch import nn

from uqgan.models.layers import down_path, dropout, init_resnet
from uqgan.models.user import UserClassifier


class MLP(nn.Sequential):
    """Three hidden layers of 512 units, for points in the plane."""

    def __init__(self, shape: tuple[int, ...], n_classes: int, p: float = 0.0, width: int = 512) -> None:
        inputs = math.prod(shape)
        hidden = [
            layer
            for a, b in ((inputs, width), (width, width), (width, width))
            for layer in (nn.Linear(a, b), dropout(p), nn.LeakyReLU())
        ]
        super().__init__(nn.Flatten(), *hidden, nn.Linear(width, n_classes))


class LeNet(nn.Sequential):
    """LeNet-5 with ReLU and max-pooling, for 32 × 32 pixels."""

    def __init__(self, shape: tuple[int, ...], n_classes: int, p: float = 0.0) -> None:
        channels, *_ = shape
        super().__init__(
            *(nn.Conv2d(channels, 6, 5), dropout(p), nn.ReLU(inplace=True), nn.MaxPool2d(2)),
            *(nn.Conv2d(6, 16, 5), dropout(p), nn.ReLU(inplace=True), nn.MaxPool2d(2)),
            nn.Flatten(),
            *(nn.Linear(400, 120), dropout(p), nn.ReLU(inplace=True)),
            *(nn.Linear(120, 84), dropout(p), nn.ReLU(inplace=True)),
            nn.Linear(84, n_classes),
        )


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
    kind: str, shape: tuple[int, ...], n_classes: int, p: float = 0.0, user_classifier: nn.Module | None = None
) -> nn.Module:
    """A classifier of that kind for inputs of `shape`, with dropout probability `p`, or a copy of a given one."""
    if user_classifier is not None:
        return UserClassifier(user_classifier, shape, n_classes, draws=p > 0)
    return CLASSIFIERS[kind](shape, n_classes, p)
