"""The paper's regulariser L_R (Eqs. 10 and 11), by which generated codes surround their class; and alternatives to it.

All take (codes, generated codes, classes, layout). Classes are laid out as equal blocks of rows, so that one batched
product serves all of them. A class with a single sample has no pair and is skipped. `layout` fixes (classes, rows per
block), which makes every shape independent of the labels; samples beyond a block are left out. Without it the block
has the size of the largest class.
"""

import math
from typing import Any, NamedTuple, Protocol, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from uqgan.shapes import Codes, Labels, Prior, Scalar

COSINE_LIMIT = 1 - 1e-6
"""Bound of the cosines of Eq. 10: at ±1 the slope of arccos is infinite."""
LEAST_DISTANCE = 1e-12
"""Lower bound of the distances of generated codes: at 0 the slope of the logarithm is infinite."""


class Regulariser(Protocol):
    """Loss that is small if the generated codes of a class are far apart."""

    def __call__(self, z: Codes, z_fake: Codes, y: Labels, layout: tuple[int, int] | None = None, /) -> Scalar: ...


class Blocks(NamedTuple):
    """A batch laid out by class."""

    z: Tensor  # (classes, block, dim)
    z_fake: Tensor  # (classes, block, dim)
    is_taken: Tensor  # (classes, block)
    weight: Tensor  # (classes, block)  of a code in a mean over pairs, then codes, then classes with pairs
    pairs: Tensor  # (classes, block, block)


def spread_loss(z: Codes, z_fake: Codes, y: Labels, layout: tuple[int, int] | None = None) -> Scalar:
    """Eqs. 10 and 11: seen from every code of a class, its generated codes must lie in all directions."""
    blocks = _blocks(z, z_fake, y, layout)
    size = blocks.is_taken.sum(1)
    center = (blocks.z * blocks.is_taken[..., None]).sum(1, keepdim=True) / size.clamp(min=1)[:, None, None]
    # Translating all codes changes no angle, and makes the differences more accurate in float32.
    return cast(
        Tensor,
        _Closeness.apply(blocks.z - center, blocks.z_fake - center, blocks.weight, blocks.pairs),  # type: ignore[no-untyped-call]
    )


def cosine_loss(z: Codes, z_fake: Codes, y: Labels, layout: tuple[int, int] | None = None) -> Scalar:
    """Eq. 10 with the cosine of the angle in place of -log(angle / π): it hardly pushes where two directions agree."""
    blocks = _blocks(z, z_fake, y, layout)
    # The cosines of all pairs come to the squared length of the directions' sum, without those of each with itself.
    direction = F.normalize(blocks.z_fake[:, None] - blocks.z[:, :, None], dim=3) * blocks.is_taken[:, None, :, None]
    cosines = direction.sum(2).square().sum(2) - direction.square().sum((2, 3))  # (classes, codes)
    return (cosines * blocks.weight).sum()


def l1_loss(z: Codes, z_fake: Codes, y: Labels, layout: tuple[int, int] | None = None) -> Scalar:
    """-log |z̃ᵢ - z̃ₖ|₁ in place of Eq. 10; where the real codes lie plays no part."""
    blocks = _blocks(z, z_fake, y, layout)
    return _nearness(_differences(blocks).abs().sum(3), blocks)


def l2_loss(z: Codes, z_fake: Codes, y: Labels, layout: tuple[int, int] | None = None) -> Scalar:
    """-log |z̃ᵢ - z̃ₖ|₂ in place of Eq. 10; where the real codes lie plays no part."""
    blocks = _blocks(z, z_fake, y, layout)
    square = _differences(blocks).square().sum(3)
    return _nearness(square.clamp(min=LEAST_DISTANCE**2).sqrt(), blocks)


def linf_loss(z: Codes, z_fake: Codes, y: Labels, layout: tuple[int, int] | None = None) -> Scalar:
    """-log max |z̃ᵢ - z̃ₖ| in place of Eq. 10; where the real codes lie plays no part."""
    blocks = _blocks(z, z_fake, y, layout)
    return _nearness(_differences(blocks).abs().amax(3), blocks)


REGULARISERS: dict[str, Regulariser] = {
    "angle": spread_loss,
    "cosine": cosine_loss,
    "l1": l1_loss,
    "l2": l2_loss,
    "linf": linf_loss,
}
"""By the values of the setting `uqgan.regulariser`."""


def block_layout(prior: Prior, batch_size: int) -> tuple[int, int]:
    """Layout for `spread_loss` with four standard deviations of room for the most frequent class of a batch."""
    share = float(prior.max())
    rows = share * batch_size + 4 * math.sqrt(batch_size * share * (1 - share))
    return len(prior), min(batch_size, math.ceil(rows))


def _blocks(z: Codes, z_fake: Codes, y: Labels, layout: tuple[int, int] | None) -> Blocks:
    """Codes and generated codes, laid out by class."""
    n_classes, block = layout or (int(y.max()) + 1, int(y.bincount().max()))
    member, is_taken = _class_blocks(y, n_classes, block)
    z, z_fake = z.detach()[member], z_fake[member]
    size = is_taken.sum(1)
    n_terms = (size * size * (size - 1)).clamp(min=1) * (size > 1).sum().clamp(min=1)
    pairs = is_taken[:, :, None] & is_taken[:, None] & ~torch.eye(block, dtype=torch.bool, device=y.device)
    return Blocks(z, z_fake, is_taken, is_taken / n_terms[:, None].to(z.dtype), pairs)


def _differences(blocks: Blocks) -> Tensor:
    """Differences of generated codes of the same class: (classes, block, block, dim)."""
    return blocks.z_fake[:, :, None] - blocks.z_fake[:, None]


def _nearness(distance: Tensor, blocks: Blocks) -> Tensor:
    """-log of the distances of all pairs, averaged per class and then over classes."""
    closeness = -distance.clamp(min=LEAST_DISTANCE).log() * blocks.pairs
    return (closeness.sum((1, 2)) * blocks.weight.sum(1)).sum()


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
