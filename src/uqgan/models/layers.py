"""Pieces that several networks share: class conditioning, and dropout that stays on."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from uqgan.shapes import Codes, Images, Labels


class Dropout(nn.Module):
    """Element-wise dropout in training and in prediction alike: what makes MC-dropout draws differ."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.p, training=True)


def dropout(p: float) -> nn.Module:
    """Dropout that stays on, or nothing at all."""
    return Dropout(p) if p > 0 else nn.Identity()


def with_label(z: Codes, y: Labels, n_classes: int) -> Tensor:
    """A code with its label behind it, one-hot."""
    return torch.cat([z, F.one_hot(y, n_classes).to(z.dtype)], 1)


def with_label_planes(x: Images, y: Labels, n_classes: int) -> Images:
    """An image with one constant plane a class behind its channels: 1 for its label, 0 for the others."""
    planes = F.one_hot(y, n_classes).to(x.dtype)[..., None, None]
    return torch.cat([x, planes.expand(-1, -1, *x.shape[2:])], 1)
