"""Drift is told by intervals that unchanged batches rarely leave."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from uqgan.decisions import Calibration, Rule
from uqgan.drift import drift
from uqgan.errors import UsageError
from uqgan.uncertainty import Prediction


def scored(scores: Tensor) -> Calibration:
    n = len(scores)
    return Calibration(torch.zeros(n, dtype=torch.long), Prediction(torch.ones(n, 2) / 2, *scores.repeat(3, 1)))


def usual(draw: Callable[[int], Tensor], n: int, m: int, trials: int = 150) -> float:
    """How often the share flagged of a batch lies within its interval, where nothing has changed."""
    found = [drift(scored(draw(n)), draw(m), Rule()) for _ in range(trials)]
    return sum(each.low <= each.share <= each.high for each in found) / trials


@pytest.mark.parametrize(("n", "m"), [(40, 2000), (200, 200), (2000, 60)])
def test_the_share_flagged_of_unchanged_batches_lies_within_its_interval(n: int, m: int) -> None:
    """With few calibration samples and a large batch, an interval for a known rate would hold it far too seldom."""
    assert 0.92 < usual(torch.randn, n, m) <= 1


def test_ties_raise_no_alarm() -> None:
    found = [drift(scored(torch.randn(200).relu()), torch.randn(500).relu() ** 2, Rule(0.6)) for _ in range(100)]
    assert sum(each.share > each.high for each in found) < 10


def test_the_interval_is_the_beta_binomial_one() -> None:
    found = drift(scored(torch.arange(199.0)), torch.zeros(50), Rule())
    # 10 of 200 may be flagged: the share of known samples above the threshold is Beta(10, 190).
    shares = torch.distributions.Beta(10.0, 190.0).sample((200_000,))
    counts = torch.binomial(torch.full_like(shares, 50.0), shares)
    assert ((counts / 50 < found.low).double().mean()) <= 0.03
    assert ((counts / 50 > found.high).double().mean()) <= 0.03
    assert ((counts / 50 >= found.high).double().mean()) > 0.025


def test_ks_is_that_of_the_two_distribution_functions() -> None:
    known, new = torch.randn(60), torch.randn(80) + 0.5
    at = torch.cat([known, new])
    gap = ((known[:, None] <= at).double().mean(0) - (new[:, None] <= at).double().mean(0)).abs().max()
    assert drift(scored(known), new, Rule()).ks == pytest.approx(float(gap))


@pytest.mark.parametrize(
    ("new", "verdict"),
    [
        (torch.arange(200.0) + 0.5, "as calibrated"),
        (torch.arange(200.0) + 50, "more strange pictures than calibrated"),
        (torch.full((3,), 300.0), "more strange pictures than calibrated"),
        (torch.arange(3.0), "too few pictures to tell"),
        (torch.zeros(0), "too few pictures to tell"),
        (torch.arange(1000.0) / 10, "fewer strange pictures than calibrated"),
        (torch.cat([torch.zeros(100), torch.full((5,), 300.0)]), "as many strange pictures as calibrated, but"),
    ],
)
def test_the_verdict_on_a_batch(new: Tensor, verdict: str) -> None:
    assert drift(scored(torch.arange(200.0)), new, Rule()).verdict.startswith(verdict)


def test_drift_reads_the_rules_score_and_takes_all_labels_together() -> None:
    probs = torch.rand(100, 3).softmax(1)
    known = Calibration(probs.argmax(1), Prediction(probs, *torch.rand(3, 100)))
    assert drift(known, torch.rand(50), Rule(score="foreignness", per_label=True)).n == 50
    with pytest.raises(UsageError, match="needs 999 calibration samples"):
        drift(known, torch.rand(50), Rule(0.001))
