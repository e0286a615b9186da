"""Training objectives of the paper (Eqs. 1, 6-11) and of its baselines: tensors in, scalar out.

Everything takes logits. Signs are those of a loss: each of these functions is minimised.
"""

import math
from typing import Any, Protocol, cast, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor

from uqgan.shapes import Codes, Images, Labels, Logits, Prior, Scalar


@runtime_checkable
class Critic(Protocol):
    """D(z|y), with its slope ∇_z D(z|y) as a function of its weights."""

    def __call__(self, z: Codes, y: Labels, /) -> Tensor: ...

    def slope(self, z: Codes, y: Labels, /) -> Codes: ...


COSINE_LIMIT = 1 - 1e-6
"""Eq. 10 takes arccos of cosines cut here: at ±1 its slope is infinite."""


def one_vs_all_loss(logits: Logits, y: Labels, prior: Prior, others: float = 1.0) -> Scalar:
    """Eq. 1: the head of the true class must call x in-class, every other head out-of-class.

    The weight of the others is p̂(y')/p̂(y), as the proof of Lemma 1 needs; the paper prints its reciprocal
    (decision 0003). `others` scales all of them, for Eq. 9.
    """
    n_classes = logits.shape[1]
    own = _own(y, n_classes)
    weight = torch.where(own, 1.0, others / (n_classes - 1) * prior / prior[y][:, None])
    return -(weight * F.logsigmoid(torch.where(own, logits, -logits))).sum(1).mean()  # not all at once: decision 0011


def out_of_class_loss(logits: Logits, y: Labels) -> Scalar:
    """-log C(o|x̃, y): the head of the class that x̃ was made for must call it out-of-class (Eqs. 8 and 9)."""
    return -(_own(y, logits.shape[1]) * F.logsigmoid(-logits)).sum(1).mean()  # not all at once: decision 0011


def classifier_loss(real: Logits, fake: Logits, y: Labels, prior: Prior, lambda_real: float) -> Scalar:
    """Eq. 9: Eq. 1 with its out-of-class part shared between real and generated samples."""
    return one_vs_all_loss(real, y, prior, lambda_real) + (1 - lambda_real) * out_of_class_loss(fake, y)


def _own(y: Labels, n_classes: int) -> Tensor:
    """Which head is that of the sample's class: (batch, classes)."""
    return y[:, None] == torch.arange(n_classes, device=y.device)


def cross_entropy_loss(logits: Logits, y: Labels) -> Scalar:
    """The softmax baselines' objective: -log p(y|x)."""
    return F.cross_entropy(logits, y)


def reconstruction_loss(logits: Images, x: Images) -> Scalar:
    """Eq. 6: binary cross-entropy of every pixel, averaged over pixels and samples."""
    return F.binary_cross_entropy_with_logits(logits, x)


def gradient_penalty(critic: Critic, z: Codes, z_fake: Codes, y: Labels) -> Scalar:
    """L_gp: on the way between a code and a generated one of its class, the critic's slope must be 1."""
    share = torch.rand(len(z), 1, device=z.device, dtype=z.dtype)
    slope = critic.slope(share * z + (1 - share) * z_fake, y)
    return cast(Tensor, (slope.norm(dim=1) - 1).square().mean())


def critic_loss(critic: Critic, z: Codes, z_fake: Codes, y: Labels, lambda_gp: float) -> Scalar:
    """Eq. 8 for D. The penalty is minimised with it; the printed max_D would maximise it (decision 0003)."""
    on_real, on_fake = critic(torch.cat([z, z_fake]), torch.cat([y, y])).chunk(2)
    distance = on_real.mean() - on_fake.mean()
    return lambda_gp * gradient_penalty(critic, z, z_fake, y) - distance


def spread_loss(z: Codes, z_fake: Codes, y: Labels, layout: tuple[int, int] | None = None) -> Scalar:
    """Eqs. 10 and 11: seen from every code of a class, its generated codes must lie in all directions.

    Classes are laid out as equal blocks of rows, so that all of them are one batched product. A class seen
    once has no pair and is skipped. `layout` fixes (classes, rows a block), which makes every shape
    independent of the labels; members beyond a block are then left out. Without it the largest class fits.
    """
    n_classes, block = layout or (int(y.max()) + 1, int(y.bincount().max()))
    member, there = _class_blocks(y, n_classes, block)
    z, z_fake = z.detach()[member], z_fake[member]  # (classes, block, dim)
    size = there.sum(1)
    center = (z * there[..., None]).sum(1, keepdim=True) / size.clamp(min=1)[:, None, None]
    share = (size * size * (size - 1)).clamp(min=1) * (size > 1).sum().clamp(min=1)
    pairs = there[:, :, None] & there[:, None] & ~torch.eye(block, dtype=torch.bool, device=y.device)
    # Moving all codes together changes no angle, and keeps the differences sharp in float32.
    closeness = _Closeness.apply(z - center, z_fake - center, there / share[:, None].to(z.dtype), pairs)  # type: ignore[no-untyped-call]
    return cast(Tensor, closeness)


def block_layout(prior: Prior, batch_size: int) -> tuple[int, int]:
    """A layout for `spread_loss` with four standard deviations of room for the most frequent class of a batch."""
    share = float(prior.max())
    rows = share * batch_size + 4 * math.sqrt(batch_size * share * (1 - share))
    return len(prior), min(batch_size, math.ceil(rows))


def _class_blocks(y: Labels, n_classes: int, block: int) -> tuple[Tensor, Tensor]:
    """Which sample stands in each row of each class's block, and which rows are taken: (classes, block) each."""
    count = F.one_hot(y, n_classes).sum(0)
    row = torch.arange(block, device=y.device)
    position = (count.cumsum(0) - count)[:, None] + row
    return y.argsort(stable=True)[position.clamp(max=len(y) - 1)], row < count[:, None]


class _Closeness(torch.autograd.Function):
    """Σ over codes z and ordered pairs (z̃ᵢ, z̃ₖ) of weight(z) · -log(angle / π), angle = ∠(z̃ᵢ - z, z̃ₖ - z).

    Takes dot products of differences from plain products, so no tensor has both a pair and a dim axis, and
    finds the gradient on the way: autograd would keep a dozen tensors of the size (classes, block³).
    """

    @staticmethod
    def forward(ctx: Any, z: Tensor, z_fake: Tensor, weight: Tensor, pairs: Tensor) -> Tensor:
        toward = z @ z_fake.mT  # (classes, codes, generated)
        square = z.square().sum(2)[..., None]
        shrink = (z_fake.square().sum(2)[:, None] - 2 * toward + square).clamp(min=1e-30).rsqrt()  # 1 / |z̃ - z|

        cosine = (z_fake @ z_fake.mT)[:, None] - toward[..., None]  # (classes, codes, generated, generated)
        cosine.sub_((toward - square)[:, :, None]).mul_(shrink[..., None]).mul_(shrink[:, :, None])
        free = cosine.abs() < COSINE_LIMIT
        angle = cosine.clamp_(-COSINE_LIMIT, COSINE_LIMIT).arccos()

        # d(-log angle)/d cosine = 1 / (angle · sin angle), and nothing where the cosine was cut.
        pull = torch.addcmul(angle.new_ones(()), cosine, cosine, value=-1).rsqrt_().div_(angle)
        pull.mul_(free).mul_(pairs[:, None]).mul_(weight[..., None, None])
        turned = (pull * cosine).sum(3) * shrink.square()
        pull.mul_(shrink[..., None]).mul_(shrink[:, :, None])
        gradient = pull.sum(1) @ z_fake - z_fake * turned.sum(1)[..., None] + (turned - pull.sum(3)).mT @ z
        ctx.save_for_backward(2 * gradient)  # each unordered pair stands there twice

        closeness = angle.mul_(1 / math.pi).log_().neg_().mul_(pairs[:, None]).sum((2, 3))
        return (closeness * weight).sum()

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[None, Tensor, None, None]:
        (gradient,) = ctx.saved_tensors
        return None, upstream[0] * gradient, None, None
