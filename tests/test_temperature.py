import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar
from torch import Tensor
from torch.testing import assert_close

from uqgan.metrics import calibration_error
from uqgan.temperature import FEW, best_temperature, fit_temperature, temper


def drawn(n: int, temperature: float, classes: int = 5) -> tuple[Tensor, Tensor]:
    """Probabilities that would be right if scaled by that temperature, and labels."""
    logits = 3 * torch.randn(n, classes)
    return logits.softmax(1), (logits / temperature).softmax(1).multinomial(1)[:, 0]


@pytest.mark.parametrize("temperature", [0.5, 1.5, 3.0])
def test_the_temperature_is_found_and_mends_the_calibration_error(temperature: float) -> None:
    probs, y = drawn(5000, temperature)
    found = fit_temperature(probs, y)
    assert found == pytest.approx(temperature, rel=0.1)
    probs, y = drawn(5000, temperature)
    right = probs.argmax(1) == y
    after = calibration_error(temper(probs, found).amax(1), right)
    assert after < 0.5 * calibration_error(probs.amax(1), right)


def test_probabilities_that_are_right_are_left_alone() -> None:
    kept = [fit_temperature(*drawn(1000, 1.0)) for _ in range(20)]
    assert kept.count(1.0) >= 18


def test_so_few_samples_fit_no_temperature() -> None:
    assert fit_temperature(*drawn(FEW - 1, 5.0)) == 1.0


def test_samples_without_a_wrong_prediction_fit_no_temperature() -> None:
    y = torch.randint(5, (1000,))
    probs = torch.full((1000, 5), 0.1).scatter(1, y[:, None], 0.6)
    assert fit_temperature(probs, y) == 1.0
    probs[0] = probs[0].roll(1)
    assert fit_temperature(probs, y) < 1.0, "it would help to be more certain"


def test_the_best_temperature_is_that_of_scipy() -> None:
    probs, y = drawn(500, 2.0)

    def loss(log_temperature: float) -> float:
        scaled = (probs.double().log() / math.exp(log_temperature)).log_softmax(1)
        return -float(scaled.gather(1, y[:, None]).mean())

    theirs = minimize_scalar(loss, bounds=(-3, 3), method="bounded", options={"xatol": 1e-8}).x
    assert math.log(best_temperature(probs, y)) == pytest.approx(theirs, abs=1e-4)


@given(st.integers(0, 2**31 - 1), st.floats(0.1, 10))
def test_classes_keep_their_order_and_probabilities_their_sum(seed: int, temperature: float) -> None:
    probs = (2 * torch.randn(20, 4, generator=torch.Generator().manual_seed(seed)).double()).softmax(1)
    scaled = temper(probs, temperature)
    assert torch.equal(scaled.argsort(1), probs.argsort(1))
    assert_close(scaled.sum(1), torch.ones(20).double())


def test_temperature_1_changes_nothing_and_probability_0_stays_finite() -> None:
    probs = torch.tensor([[1.0, 0.0], [0.3, 0.7]])
    assert torch.equal(temper(probs, 1.0), probs)
    assert temper(probs, 20.0).isfinite().all()
    assert temper(probs, 2.0).dtype == torch.float32


def test_a_perfect_classifier_has_a_temperature_too() -> None:
    probs = torch.eye(4).repeat(100, 1)
    assert fit_temperature(probs, probs.argmax(1)) == 1.0
