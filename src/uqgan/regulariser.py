"""The paper's regulariser L_R (Eqs. 10 and 11): generated codes must surround their class."""

import math
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from uqgan.shapes import Codes, Labels, Prior, Scalar

COSINE_LIMIT = 1 - 1e-6
"""Bound of the cosines of Eq. 10: at ±1 the slope of arccos is infinite."""


def spread_loss(z: Codes, z_fake: Codes, y: Labels, layout: tuple[int, int] | None = None) -> Scalar:
    """Eqs. 10 and 11: seen from every code of a class, its generated codes must lie in all directions.

    Classes are laid out as equal blocks of rows, so that all of them are one batched product. A class with a
    single sample has no pair and is skipped. `layout` fixes (classes, rows per block), which makes every shape
    independent of the labels; samples beyond a block are then left out. Without it the largest class fits.
    """
    n_classes, block = layout or (int(y.max()) + 1, int(y.bincount().max()))
    member, is_taken = _class_blocks(y, n_classes, block)
    z, z_fake = z.detach()[member], z_fake[member]  # (classes, block, dim)
    size = is_taken.sum(1)
    center = (z * is_taken[..., None]).sum(1, keepdim=True) / size.clamp(min=1)[:, None, None]
    n_terms = (size * size * (size - 1)).clamp(min=1) * (size > 1).sum().clamp(min=1)
    pairs = is_taken[:, :, None] & is_taken[:, None] & ~torch.eye(block, dtype=torch.bool, device=y.device)
    # Moving all codes together changes no angle, and keeps the differences sharp in float32.
    weight = is_taken / n_terms[:, None].to(z.dtype)
    return cast(Tensor, _Closeness.apply(z - center, z_fake - center, weight, pairs))  # type: ignore[no-untyped-call]


def block_layout(prior: Prior, batch_size: int) -> tuple[int, int]:
    """Layout for `spread_loss` with four standard deviations of room for the most frequent class of a batch."""
    share = float(prior.max())
    rows = share * batch_size + 4 * math.sqrt(batch_size * share * (1 - share))
    return len(prior), min(batch_size, math.ceil(rows))


def _class_blocks(y: Labels, n_classes: int, block: int) -> tuple[Tensor, Tensor]:
    """Index of the sample in each row of each class's block, and which rows are taken: (classes, block) each."""
    count = F.one_hot(y, n_classes).sum(0)
    row = torch.arange(block, device=y.device)
    position = (count.cumsum(0) - count)[:, None] + row
    return y.argsort(stable=True)[position.clamp(max=len(y) - 1)], row < count[:, None]


class _Closeness(torch.autograd.Function):
    """Σ over codes z and ordered pairs (z̃ᵢ, z̃ₖ) of weight(z) · -log(angle / π), angle = ∠(z̃ᵢ - z, z̃ₖ - z).

    Dot products of differences come from plain products, so no tensor has both a pair and a dim axis. The gradient
    is computed in the forward pass: autograd would keep a dozen tensors of the size (classes, block³).
    """

    @staticmethod
    def forward(ctx: Any, z: Tensor, z_fake: Tensor, weight: Tensor, pairs: Tensor) -> Tensor:
        dot = z @ z_fake.mT  # (classes, codes, generated)
        square = z.square().sum(2)[..., None]
        inverse_distance = (z_fake.square().sum(2)[:, None] - 2 * dot + square).clamp(min=1e-30).rsqrt()  # 1 / |z̃ - z|
        by_i, by_k = inverse_distance[..., None], inverse_distance[:, :, None]

        cosine = (z_fake @ z_fake.mT)[:, None] - dot[..., None]  # (classes, codes, generated, generated)
        cosine.sub_((dot - square)[:, :, None]).mul_(by_i).mul_(by_k)
        is_within = cosine.abs() < COSINE_LIMIT
        angle = cosine.clamp_(-COSINE_LIMIT, COSINE_LIMIT).arccos()

        # d(-log angle)/d cosine = 1 / (angle · sin angle), and 0 where the cosine was clamped.
        slope = torch.addcmul(angle.new_ones(()), cosine, cosine, value=-1).rsqrt_().div_(angle)
        slope.mul_(is_within).mul_(pairs[:, None]).mul_(weight[..., None, None])
        along = (slope * cosine).sum(3) * inverse_distance.square()
        slope.mul_(by_i).mul_(by_k)
        gradient = slope.sum(1) @ z_fake - z_fake * along.sum(1)[..., None] + (along - slope.sum(3)).mT @ z
        ctx.save_for_backward(2 * gradient)  # each unordered pair is counted twice

        closeness = angle.mul_(1 / math.pi).log_().neg_().mul_(pairs[:, None]).sum((2, 3))
        return (closeness * weight).sum()

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[None, Tensor, None, None]:
        (gradient,) = ctx.saved_tensors
        return None, upstream[0] * gradient, None, None
