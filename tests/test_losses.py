import math

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.testing import assert_close

from uqgan.losses import (
    classifier_loss,
    critic_loss,
    cross_entropy_loss,
    foreign_loss,
    gradient_penalty,
    in_class_loss,
    one_vs_all_loss,
    out_of_class_loss,
    reconstruction_loss,
    uniform_loss,
)
from uqgan.models.gan import Critic
from uqgan.uncertainty import posterior
from worlds import World, discrete_worlds


@given(world=discrete_worlds())
def test_lemma_1_the_true_posterior_minimises_eq_1(world: World) -> None:
    logits = world.optimal_logits().requires_grad_()
    (gradient,) = torch.autograd.grad(world.expected(one_vs_all_loss, logits), logits)
    assert gradient.abs().max() < 1e-9
    assert_close(posterior(logits, world.prior), world.posterior)


@given(world=discrete_worlds())
def test_moving_away_from_the_true_posterior_raises_eq_1(world: World) -> None:
    best = world.optimal_logits()
    moved = best + 0.1 * torch.randn_like(best)
    assert world.expected(one_vs_all_loss, moved) > world.expected(one_vs_all_loss, best)


def test_the_weight_as_printed_in_the_paper_misses_the_posterior() -> None:
    """Balanced classes can't tell the weight from its reciprocal; these can."""
    prior = torch.tensor([0.7, 0.2, 0.1], dtype=torch.double)
    world = World(torch.tensor([[0.6, 0.3, 0.2], [0.4, 0.7, 0.8]], dtype=torch.double), prior)

    def printed(logits: Tensor, y: Tensor, prior: Tensor) -> Tensor:
        return one_vs_all_loss(logits, y, 1 / prior)

    logits = world.optimal_logits().requires_grad_()
    (gradient,) = torch.autograd.grad(world.expected(printed, logits), logits)
    assert gradient.abs().max() > 0.05


def test_eq_1_equals_its_formula_written_out() -> None:
    logits, y = torch.randn(7, 4, dtype=torch.double), torch.tensor([0, 1, 2, 3, 0, 0, 2])
    prior = torch.tensor([0.5, 0.2, 0.2, 0.1], dtype=torch.double)
    C = logits.sigmoid()
    total = 0.0
    for i, k in enumerate(y.tolist()):
        others = sum(prior[j] / prior[k] * -torch.log(1 - C[i, j]) for j in range(4) if j != k)
        total += -torch.log(C[i, k]) + others / 3
    assert_close(one_vs_all_loss(logits, y, prior), total / 7)


@given(share=st.floats(0, 1))
def test_eq_9_equals_its_formula(share: float) -> None:
    real, fake = torch.randn(6, 3), torch.randn(6, 3)
    y, prior = torch.tensor([0, 1, 2, 0, 1, 2]), torch.tensor([0.5, 0.3, 0.2])
    C, outside = real.sigmoid(), -torch.log(1 - fake.sigmoid()[range(6), y]).mean()
    inside = -torch.log(C[range(6), y]).mean()
    others = sum(prior[j] / prior[k] * -torch.log(1 - C[i, j]) / 2 for i, k in enumerate(y) for j in range(3) if j != k)
    expected = inside + share * others / 6 + (1 - share) * outside
    assert_close(classifier_loss(real, fake, y, prior, share), expected)


def test_eq_9_at_lambda_real_1_is_eq_1_and_ignores_the_generated() -> None:
    real, fake = torch.randn(6, 3), torch.randn(6, 3, requires_grad=True)
    y, prior = torch.tensor([0, 1, 2, 0, 1, 2]), torch.tensor([0.5, 0.3, 0.2])
    loss = classifier_loss(real, fake, y, prior, 1.0)
    assert_close(loss, one_vs_all_loss(real, y, prior))
    (gradient,) = torch.autograd.grad(loss, fake)
    assert (gradient == 0).all()


def test_losses_of_extreme_logits_keep_their_gradient() -> None:
    """On probabilities the loss would be cut at 100 and its slope be 0 (float32 σ(17) is 1)."""
    logits = torch.tensor([[200.0, -200.0]], requires_grad=True)
    loss = out_of_class_loss(logits, torch.tensor([0])) + in_class_loss(logits, torch.tensor([1]))
    assert_close(loss, torch.tensor(400.0))
    (gradient,) = torch.autograd.grad(loss, logits)
    assert_close(gradient, torch.tensor([[1.0, -1.0]]))


def test_cross_entropy_is_minus_log_softmax() -> None:
    logits, y = torch.randn(5, 3), torch.tensor([0, 1, 2, 1, 0])
    assert_close(cross_entropy_loss(logits, y), -logits.log_softmax(1)[range(5), y].mean())


def test_eq_6_is_least_where_the_reconstruction_is_the_image() -> None:
    x = torch.rand(2, 1, 4, 4, dtype=torch.double) * 0.8 + 0.1
    logits = torch.logit(x).requires_grad_()
    loss = reconstruction_loss(logits, x)
    (gradient,) = torch.autograd.grad(loss, logits)
    assert gradient.abs().max() < 1e-12
    assert_close(loss, -(x * x.log() + (1 - x) * (1 - x).log()).mean())


class Plane:
    """A critic that is linear in its code."""

    def __init__(self, direction: Tensor) -> None:
        self.direction = direction

    def __call__(self, z: Tensor, y: Tensor) -> Tensor:
        return z @ self.direction + y

    def slope(self, z: Tensor, y: Tensor) -> Tensor:
        return self.direction.expand(len(z), -1)


@given(angle=st.floats(0, 6.28), length=st.floats(0, 5))
def test_the_penalty_is_the_squared_distance_of_the_slope_from_1(angle: float, length: float) -> None:
    z, z_fake, y = torch.randn(8, 2), torch.randn(8, 2), torch.zeros(8, dtype=torch.long)
    critic = Plane(length * torch.tensor([math.cos(angle), math.sin(angle)]))
    assert_close(gradient_penalty(critic, z, z_fake, y), torch.tensor((length - 1) ** 2), atol=1e-5, rtol=1e-5)


def test_a_critic_of_unit_slope_pays_no_penalty_and_gains_the_distance() -> None:
    z, z_fake, y = torch.randn(8, 2), torch.randn(8, 2), torch.zeros(8, dtype=torch.long)
    critic = Plane(torch.tensor([0.6, 0.8]))
    assert gradient_penalty(critic, z, z_fake, y) < 1e-10
    distance = (z @ critic.direction).mean() - (z_fake @ critic.direction).mean()
    assert_close(critic_loss(critic, z, z_fake, y, 10.0), -distance)


class Recording(Plane):
    def slope(self, z: Tensor, y: Tensor) -> Tensor:
        self.seen = z
        return super().slope(z, y)


def test_the_penalty_looks_between_a_code_and_its_generated_partner() -> None:
    z, z_fake, y = torch.zeros(500, 2), torch.ones(500, 2), torch.zeros(500, dtype=torch.long)
    critic = Recording(torch.tensor([1.0, 0.0]))
    gradient_penalty(critic, z, z_fake, y)
    assert_close(critic.seen[:, 0], critic.seen[:, 1])  # one share per sample
    assert critic.seen.min() >= 0
    assert critic.seen.max() <= 1
    assert critic.seen[:, 0].std() > 0.25  # uniform on [0, 1] has 0.289


def test_the_critics_slope_and_its_penalty_are_those_of_autograd() -> None:
    critic = Critic(3, 2).double()
    nn.init.normal_(critic.layers[0].weight)  # the small initial weights would hide an error
    z, y = torch.randn(16, 3, dtype=torch.double, requires_grad=True), torch.randint(2, (16,))
    (expected,) = torch.autograd.grad(critic(z, y).sum(), z, create_graph=True)
    assert_close(critic.slope(z, y), expected)

    def penalty_gradients(slope: Tensor) -> list[Tensor]:
        loss = (slope.norm(dim=1) - 1).square().mean()
        return [g for g in torch.autograd.grad(loss, list(critic.parameters()), allow_unused=True) if g is not None]

    ours, theirs = penalty_gradients(critic.slope(z.detach(), y)), penalty_gradients(expected)
    assert len(ours) == 4  # the weights; biases don't touch the slope
    for a, b in zip(ours, [g for g in theirs if g.ndim == 2], strict=True):
        assert_close(a, b)


@given(n=st.integers(2, 9), seed=st.integers(0, 99))
def test_the_uniform_loss_is_a_kl_divergence_from_the_uniform_distribution(n: int, seed: int) -> None:
    logits = 3 * torch.randn(6, n, generator=torch.Generator().manual_seed(seed), dtype=torch.double)
    uniform = torch.distributions.Categorical(probs=torch.full((6, n), 1 / n, dtype=torch.double))
    wanted = torch.distributions.kl_divergence(uniform, torch.distributions.Categorical(logits=logits)).mean()
    assert_close(uniform_loss(logits), wanted)
    assert_close(uniform_loss(torch.zeros(6, n, dtype=torch.double)), torch.zeros((), dtype=torch.double))


@given(n=st.integers(2, 9), seed=st.integers(0, 99))
def test_the_foreign_loss_is_the_mean_over_heads_of_their_out_of_class_losses(n: int, seed: int) -> None:
    logits = 3 * torch.randn(6, n, generator=torch.Generator().manual_seed(seed), dtype=torch.double)
    heads = [out_of_class_loss(logits, torch.full((6,), k)) for k in range(n)]
    assert_close(foreign_loss(logits), torch.stack(heads).mean())
