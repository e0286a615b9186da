"""Layers that several networks share: class conditioning, dropout that stays on, residual blocks."""

from itertools import pairwise
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from uqgan.errors import UsageError
from uqgan.shapes import Codes, Images, Labels

BLOCKS = {32: 3, 64: 4}
"""Number of residual blocks from an image of that size down to 4 × 4 pixels."""


class Dropout(nn.Module):
    """Element-wise dropout that stays on in prediction, as MC dropout needs."""

    draws = True

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.p, training=True)


def dropout(p: float) -> nn.Module:
    """Dropout that stays on; the identity for p = 0."""
    return Dropout(p) if p > 0 else nn.Identity()


def draws(net: nn.Module) -> bool:
    """Whether two forward passes of the same sample differ."""
    return any(getattr(module, "draws", False) for module in net.modules())


def with_label(z: Codes, y: Labels, n_classes: int) -> Tensor:
    """Codes with the one-hot label appended."""
    return torch.cat([z, F.one_hot(y, n_classes).to(z.dtype)], 1)


def with_label_planes(x: Images, y: Labels, n_classes: int) -> Images:
    """Images with the one-hot label appended as constant channels, one per class."""
    planes = F.one_hot(y, n_classes).to(x.dtype)[..., None, None]
    return torch.cat([x, planes.expand(-1, -1, *x.shape[2:])], 1)


class DownBlock(nn.Module):
    """Pre-activation residual block that halves height and width: layer norm, leaky ReLU, average pooling."""

    def __init__(self, inputs: int, outputs: int, size: int, p: float = 0.0) -> None:
        super().__init__()
        self.shortcut = nn.Sequential(nn.AvgPool2d(2), nn.Conv2d(inputs, outputs, 1), dropout(p))
        self.main = nn.Sequential(
            nn.LayerNorm([inputs, size, size]),
            nn.LeakyReLU(),
            nn.Conv2d(inputs, inputs, 3, padding=1, bias=False),
            dropout(p),
            nn.LayerNorm([inputs, size, size]),
            nn.LeakyReLU(),
            nn.Conv2d(inputs, outputs, 3, padding=1),
            dropout(p),
            nn.AvgPool2d(2),
        )

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.shortcut(x) + self.main(x))


class UpBlock(nn.Module):
    """Pre-activation residual block that doubles height and width: batch norm, ReLU, nearest-neighbour upsampling."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        # A 1 × 1 convolution commutes with the upsampling; before it, it costs a quarter.
        self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1), nn.Upsample(scale_factor=2))
        self.main = nn.Sequential(
            nn.BatchNorm2d(inputs),
            nn.ReLU(),
            nn.Upsample(scale_factor=2),
            nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, padding=1),
        )

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.shortcut(x) + self.main(x))


def down_path(channels: int, size: int, p: float = 0.0) -> tuple[nn.Sequential, int]:
    """Stem and residual blocks down to 4 × 4 pixels, and the number of channels there.

    The stem has 32 channels; every block except the last doubles them.
    """
    if size not in BLOCKS:
        raise UsageError(f"image size = {size}: the ResNets take {' or '.join(map(str, BLOCKS))} pixels")
    widths = [32 * 2**k for k in range(BLOCKS[size])]
    widths.append(widths[-1])
    blocks = [DownBlock(a, b, size >> k, p) for k, (a, b) in enumerate(pairwise(widths))]
    path = nn.Sequential(nn.Conv2d(channels, widths[0], 3, padding=1), dropout(p), *blocks)
    path.apply(init_resnet)
    return path, widths[-1]


def init_resnet(module: nn.Module) -> None:
    """Initialise convolutions by Kaiming, linear layers by Xavier, norms near 1, and all biases with 0."""
    if isinstance(module, nn.Conv2d):
        nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
    elif isinstance(module, nn.Linear):
        nn.init.xavier_normal_(module.weight)
    elif isinstance(module, nn.LayerNorm | nn.BatchNorm2d):
        nn.init.normal_(module.weight, 1.0, 0.02)
    if isinstance(getattr(module, "bias", None), Tensor):
        nn.init.zeros_(module.bias)  # type: ignore[arg-type]
