import math

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from uqgan.methods import METHODS
from uqgan.uncertainty import (
    UNITS,
    Prediction,
    entropy,
    epistemic,
    foreignness,
    in_distribution,
    log_in_class,
    posterior,
    read_entropy,
    read_max_softmax,
    read_mutual_information,
    read_one_vs_all,
)
from worlds import World, discrete_worlds

READINGS = (read_one_vs_all, read_max_softmax, read_entropy, read_mutual_information)
COLUMNS = ("probs", "aleatoric", "epistemic", "foreignness")


def uniform(n: int) -> Tensor:
    return torch.full((n,), 1 / n, dtype=torch.double)


@given(n=st.integers(2, 9), seed=st.integers(0, 99))
def test_eq_2_as_a_shift_equals_the_printed_fraction(n: int, seed: int) -> None:
    logits = 4 * torch.randn(6, n, generator=torch.Generator().manual_seed(seed), dtype=torch.double)
    C = logits.sigmoid()
    assert_close(log_in_class(logits).exp(), (C / n) / (C / n + (n - 1) / n * (1 - C)))


@given(n=st.integers(2, 9), seed=st.integers(0, 99))
def test_eqs_3_and_4_equal_their_fractions(n: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(6, n, generator=generator, dtype=torch.double)
    prior = torch.rand(n, generator=generator, dtype=torch.double) + 0.1
    prior /= prior.sum()
    inside = log_in_class(logits).exp()
    total = (inside * prior).sum(1)
    assert_close(posterior(logits, prior), inside * prior / total[:, None])
    assert_close(in_distribution(logits, prior), (inside.square() * prior).sum(1) / total)
    assert_close(epistemic(logits, prior), 1 - in_distribution(logits, prior))
    assert_close(foreignness(logits), 1 - inside.sum(1))


def test_eq_3_is_finite_and_ordered_with_all_logits_near_minus_900() -> None:
    logits = torch.tensor([[-900.0, -901.0, -902.0]])
    probs = posterior(logits, torch.full((3,), 1 / 3))
    assert_close(probs, torch.softmax(logits, 1))
    assert epistemic(logits, torch.full((3,), 1 / 3)) == 1


def test_confident_samples_are_not_tied() -> None:
    """1 - C̃ would be exactly 0 for both in float32."""
    logits = torch.tensor([[[40.0, -40.0], [50.0, -50.0]]])
    read = read_one_vs_all(logits, torch.tensor([0.5, 0.5]))
    assert read.epistemic[0] > read.epistemic[1] > 0
    assert read.aleatoric[0] > read.aleatoric[1] > 0
    softmax = read_max_softmax(logits, torch.tensor([0.5, 0.5]))
    assert softmax.epistemic[0] > softmax.epistemic[1] > 0


@given(world=discrete_worlds())
def test_foreignness_is_0_at_the_optimum_for_any_mixture(world: World) -> None:
    assert foreignness(world.optimal_logits()).abs().max() < 1e-9


@given(world=discrete_worlds())
def test_eq_4_at_the_optimum_of_balanced_classes_is_one_minus_sum_p_squared(world: World) -> None:
    p = world.uniform_posterior
    found = epistemic(world.optimal_logits(), uniform(p.shape[1]))
    assert_close(found, 1 - p.square().sum(1))
    assert (found >= 1 - p.amax(1) - 1e-12).all()


def test_foreignness_and_epistemic_are_1_far_from_all_classes() -> None:
    logits = torch.full((1, 4), -60.0, dtype=torch.double)
    assert_close(foreignness(logits), torch.ones(1, dtype=torch.double))
    assert_close(epistemic(logits, uniform(4)), torch.ones(1, dtype=torch.double))


@given(n=st.integers(2, 20))
def test_eq_5_is_0_on_one_hot_and_log_n_on_uniform(n: int) -> None:
    assert (entropy(torch.eye(n)) == 0).all()
    assert_close(entropy(uniform(n)[None]), torch.tensor([math.log(n)], dtype=torch.double))


@given(share=st.floats(0, 1), seed=st.integers(0, 99))
def test_eq_5_is_concave(share: float, seed: int) -> None:
    p, q = torch.rand(2, 5, generator=torch.Generator().manual_seed(seed), dtype=torch.double).softmax(1)
    mixed = entropy((share * p + (1 - share) * q)[None])
    assert mixed >= share * entropy(p[None]) + (1 - share) * entropy(q[None]) - 1e-12


def columns_of(prediction: Prediction) -> list[Tensor]:
    return [getattr(prediction, name) for name in COLUMNS]


def test_one_draw_repeated_reads_as_one_draw_without_spread() -> None:
    logits = torch.randn(1, 6, 4, dtype=torch.double)
    for reading in READINGS:
        once, often = reading(logits, uniform(4)), reading(logits.expand(5, -1, -1), uniform(4))
        for a, b in zip(columns_of(once), columns_of(often), strict=True):
            assert_close(a, b)
        assert once.spread is None
        assert often.spread is not None
        assert often.spread.abs().max() < 1e-12


def test_the_order_of_draws_does_not_matter() -> None:
    logits = torch.randn(5, 6, 4, dtype=torch.double)
    for reading in READINGS:
        a, b = (reading(drawn, uniform(4)) for drawn in (logits, logits.flip(0)))
        for left, right in zip([*columns_of(a), a.spread], [*columns_of(b), b.spread], strict=True):
            assert_close(left, right)


def test_draws_are_averaged_before_the_entropy() -> None:
    """Two confident draws that contradict each other are torn, not sure."""
    logits = torch.tensor([[[9.0, -9.0]], [[-9.0, 9.0]]], dtype=torch.double)
    for reading in (read_one_vs_all, read_entropy):
        assert_close(reading(logits, uniform(2)).aleatoric, torch.tensor([math.log(2)], dtype=torch.double))


def test_max_softmax_is_one_minus_the_largest_probability() -> None:
    logits = torch.randn(3, 6, 4, dtype=torch.double)
    expected = 1 - logits.softmax(2).mean(0).amax(1)
    assert_close(read_max_softmax(logits, uniform(4)).epistemic, expected)


def test_the_reading_of_every_method_has_units() -> None:
    assert {method.reading for method in METHODS.values()} <= set(UNITS)


def test_joined_parts_are_the_whole() -> None:
    logits = torch.randn(2, 6, 4)
    prior = torch.full((4,), 0.25)
    whole = read_one_vs_all(logits, prior)
    parts = Prediction.join([read_one_vs_all(logits[:, :2], prior), read_one_vs_all(logits[:, 2:], prior)])
    for name in (*COLUMNS, "spread"):
        assert_close(getattr(parts, name), getattr(whole, name))


@given(n=st.integers(2, 9), draws=st.integers(1, 8), seed=st.integers(0, 99))
def test_mutual_information_is_at_least_0_and_with_the_mean_entropy_the_entropy_of_the_mean(
    n: int, draws: int, seed: int
) -> None:
    logits = 4 * torch.randn(draws, 6, n, generator=torch.Generator().manual_seed(seed), dtype=torch.double)
    out = read_mutual_information(logits, uniform(n))
    assert (out.epistemic >= 0).all()
    assert_close(out.aleatoric + out.epistemic, entropy(out.probs))
    alike = read_mutual_information(logits[:1].repeat(draws, 1, 1), uniform(n))
    assert_close(alike.epistemic, torch.zeros(6, dtype=torch.double))


def test_mutual_information_of_sure_draws_keeps_its_digits() -> None:
    steps = torch.linspace(8, 16, 30)[:, None]
    logits = torch.stack([torch.cat([steps, -shift * torch.ones_like(steps)], 1) for shift in (0.0, 0.5)])
    information = read_mutual_information(logits, uniform(2).float()).epistemic
    assert (information.diff() < 0).all()
    p = torch.stack([logits[k, :, 1] - logits[k, :, 0] for k in (0, 1)]).double().sigmoid()  # of the other class
    mean = p.mean(0)
    wanted = (p * (p / mean).log() + (1 - p) * ((1 - p) / (1 - mean)).log()).mean(0)
    assert_close(information.double(), wanted, rtol=1e-4, atol=1e-14)
