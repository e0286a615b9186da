"""Training objectives of the paper (Eqs. 1 and 6-9) and of its baselines: tensors in, scalar out.

All of them take logits and are minimised. Eqs. 10 and 11 are in `regulariser`.
"""

import math
from typing import Protocol, cast, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor

from uqgan.shapes import Codes, Concentrations, Images, Labels, Logits, Prior, Scalar, Scores


@runtime_checkable
class Critic(Protocol):
    """D(z|y), with its slope ∇_z D(z|y) as a function of its weights."""

    def __call__(self, z: Codes, y: Labels, /) -> Tensor: ...

    def slope(self, z: Codes, y: Labels, /) -> Codes: ...


# Eqs. 1 and 9 take per-sample sums first: one fused reduction over the whole batch once reported a wrong loss
# (decision 0016).


def in_class_loss(logits: Logits, y: Labels) -> Scalar:
    """First term of Eqs. 1 and 9: the head of the true class must call x in-class, -log C(i|x, y)."""
    return -(_is_true_class(y, logits.shape[1]) * F.logsigmoid(logits)).sum(1).mean()


def other_classes_loss(logits: Logits, y: Labels, prior: Prior) -> Scalar:
    """Second term of Eqs. 1 and 9: every head y' ≠ y must call x out-of-class, -log C(o|x, y').

    The weight is p̂(y')/p̂(y), as the proof of Lemma 1 needs; the paper prints its reciprocal (decision 0003).
    """
    n_classes = logits.shape[1]
    weight = ~_is_true_class(y, n_classes) * prior / prior[y][:, None]
    return -(weight * F.logsigmoid(-logits)).sum(1).mean() / (n_classes - 1)


def out_of_class_loss(logits: Logits, y: Labels) -> Scalar:
    """Last term of Eqs. 8 and 9: the head of the class x̃ was made for must call it out-of-class, -log C(o|x̃, y)."""
    return -(_is_true_class(y, logits.shape[1]) * F.logsigmoid(-logits)).sum(1).mean()


def one_vs_all_loss(logits: Logits, y: Labels, prior: Prior) -> Scalar:
    """Eq. 1: each head must tell its class from all others."""
    return in_class_loss(logits, y) + other_classes_loss(logits, y, prior)


def classifier_loss(real: Logits, fake: Logits, y: Labels, prior: Prior, lambda_real: float) -> Scalar:
    """Eq. 9: Eq. 1 with its out-of-class part shared between real and generated samples."""
    return (
        in_class_loss(real, y)
        + lambda_real * other_classes_loss(real, y, prior)
        + (1 - lambda_real) * out_of_class_loss(fake, y)
    )


def _is_true_class(y: Labels, n_classes: int) -> Tensor:
    """Mask of the head of each sample's class: (batch, classes)."""
    return y[:, None] == torch.arange(n_classes, device=y.device)


def cross_entropy_loss(logits: Logits, y: Labels) -> Scalar:
    """Objective of the softmax baselines: -log p(y|x)."""
    return F.cross_entropy(logits, y)


def uniform_loss(logits: Logits) -> Scalar:
    """KL(U‖p) with the uniform distribution U: the softmax must be undecided about foreign samples."""
    n_classes = logits.shape[1]
    return -F.log_softmax(logits, 1).sum(1).mean() / n_classes - math.log(n_classes)


def foreign_loss(logits: Logits) -> Scalar:
    """Objective on samples foreign to all classes: every head must call them out-of-class, -log C(o|x, y)."""
    return -F.logsigmoid(-logits).sum(1).mean() / logits.shape[1]


def real_loss(logits: Logits) -> Scalar:
    """-log D(x): cross-entropy of a discriminator's logits with the label "real"."""
    return F.softplus(-logits).mean()


def fake_loss(logits: Logits) -> Scalar:
    """-log(1 - D(x)): cross-entropy of a discriminator's logits with the label "generated"."""
    return F.softplus(logits).mean()


def dirichlet_kl(alpha: Concentrations) -> Scores:
    """KL(Dir(α)‖Dir(1)) per sample, computed in float64, as it is a small difference of large numbers."""
    wide = alpha if alpha.device.type == "mps" else alpha.double()  # MPS has no float64
    total, n_classes = wide.sum(1), alpha.shape[1]
    surprise = (wide - 1) * (wide.digamma() - total.digamma()[:, None]) - wide.lgamma()
    return (total.lgamma() - math.lgamma(n_classes) + surprise.sum(1)).to(alpha.dtype)


def wrong_evidence_loss(alpha: Concentrations, y: Labels) -> Scalar:
    """β·KL(Dir(α₋y)‖Dir(1)): there must be no evidence for wrong classes.

    β is the mean probability of wrong classes in the batch, detached.
    """
    wrong = torch.arange(alpha.shape[1] - 1, device=alpha.device)
    alpha_wrong = alpha.gather(1, wrong + (wrong >= y[:, None]))
    beta = (alpha_wrong.sum(1) / alpha.sum(1)).mean().detach()
    return beta * dirichlet_kl(alpha_wrong).mean()


def standard_normal_kl(loc: Codes, scale: Codes) -> Scalar:
    """KL(N(loc, scale²)‖N(0, 1)), averaged over samples."""
    return (0.5 * (loc.square() + scale.square() - 1) - scale.log()).sum(1).mean()


def squared_error_loss(made: Images, x: Images) -> Scalar:
    """Squared error, summed over pixels and averaged over samples."""
    return (made - x).square().flatten(1).sum(1).mean()


def log_scale_mixture(w: Tensor, share: float, wide: float, narrow: float) -> Tensor:
    """Log-density of weights under share·N(0, wide²) + (1 - share)·N(0, narrow²)."""
    parts = [
        math.log(part) - math.log(scale) - 0.5 * (w / scale).square()
        for part, scale in ((share, wide), (1 - share, narrow))
        if part > 0
    ]
    joined = torch.logaddexp(*parts) if len(parts) == 2 else parts[0]
    return joined - 0.5 * math.log(2 * math.pi)


def log_variational_density(noise: Tensor, scale: Tensor) -> Tensor:
    """log q(w|μ, σ): log-density of weights drawn as w = μ + σ·noise under N(μ, σ²), in which μ cancels."""
    return -scale.log() - 0.5 * noise.square() - 0.5 * math.log(2 * math.pi)


def minibatch_share(position: Tensor, n_batches: int) -> Tensor:
    """Weight of the KL divergence in batch 0 … n-1 of an epoch: each half the previous one, with sum 1."""
    return torch.exp2(-(position + 1.0)) / (1 - 2.0**-n_batches)


def reconstruction_loss(logits: Images, x: Images) -> Scalar:
    """Eq. 6: binary cross-entropy per pixel, averaged over pixels and samples."""
    return F.binary_cross_entropy_with_logits(logits, x)


def gradient_penalty(critic: Critic, z: Codes, z_fake: Codes, y: Labels) -> Scalar:
    """L_gp: between a code and a generated one of its class, the critic's slope must be 1."""
    share = torch.rand(len(z), 1, device=z.device, dtype=z.dtype)
    slope = critic.slope(share * z + (1 - share) * z_fake, y)
    return cast(Tensor, (slope.norm(dim=1) - 1).square().mean())


def critic_loss(critic: Critic, z: Codes, z_fake: Codes, y: Labels, lambda_gp: float) -> Scalar:
    """Eq. 8 for D, negated except for the penalty, which the printed max_D would maximise (decision 0003)."""
    on_real, on_fake = critic(torch.cat([z, z_fake]), torch.cat([y, y])).chunk(2)
    distance = on_real.mean() - on_fake.mean()
    return lambda_gp * gradient_penalty(critic, z, z_fake, y) - distance
