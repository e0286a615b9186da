"""Temperature scaling: one number that softens or sharpens all class probabilities of a method."""

import math
from collections.abc import Callable

import torch

from uqgan.metrics import bootstrap_interval, calibration_error
from uqgan.ranking import Indices
from uqgan.shapes import Labels, Probs

COLDEST, HOTTEST = 0.05, 20.0
FEW = 50
"""Least number of samples to fit a temperature; an error over 15 bins is meaningless for fewer."""
RESAMPLES = 200


def temper(probs: Probs, temperature: float) -> Probs:
    """Softmax of log p̂ / T; the order of the classes stays the same, and T = 1 changes nothing."""
    if temperature == 1:
        return probs
    tiny = torch.finfo(torch.float32).tiny
    return torch.softmax(probs.double().clamp(min=tiny).log() / temperature, 1).to(probs.dtype)


def best_temperature(probs: Probs, y: Labels) -> float:
    """Temperature that minimises the mean -log p̂(y|x), which is convex in 1 / T, by golden-section search."""
    log_probs = probs.double().clamp(min=torch.finfo(torch.float32).tiny).log()

    def loss(log_temperature: float) -> float:
        return float(torch.nn.functional.cross_entropy(log_probs / math.exp(log_temperature), y))

    return math.exp(_least(loss, math.log(COLDEST), math.log(HOTTEST)))


def fit_temperature(probs: Probs, y: Labels) -> float:
    """Temperature for predictions of validation samples, or 1 where it does not measurably help.

    Without a wrong prediction the loss has no minimum above T = 0, so it is 1. For the test each half of the samples is
    scaled with the temperature of the other half: the expected calibration error must fall, and the 95 % interval of
    its change must lie below 0.
    """
    n, right = len(y), probs.argmax(1) == y
    if n < FEW or right.all():
        return 1.0
    first = torch.randperm(n, generator=torch.Generator().manual_seed(0)) < n // 2
    scaled = torch.empty_like(probs)
    for part in (first, ~first):
        scaled[part] = temper(probs[part], best_temperature(probs[~part], y[~part]))
    before, after = probs.amax(1), scaled.amax(1)

    def change(draw: Indices) -> float:
        return calibration_error(after[draw], right[draw]) - calibration_error(before[draw], right[draw])

    if calibration_error(after, right) >= calibration_error(before, right):
        return 1.0
    return best_temperature(probs, y) if bootstrap_interval(change, [n], RESAMPLES).high < 0 else 1.0


def _least(function: Callable[[float], float], low: float, high: float) -> float:
    """Minimiser of a unimodal function within (low, high), by golden-section search."""
    ratio = (math.sqrt(5) - 1) / 2
    a, b = high - ratio * (high - low), low + ratio * (high - low)
    at_a, at_b = function(a), function(b)
    while high - low > 1e-6:
        if at_a < at_b:
            high, b, at_b = b, a, at_a
            a = high - ratio * (high - low)
            at_a = function(a)
        else:
            low, a, at_a = a, b, at_b
            b = low + ratio * (high - low)
            at_b = function(b)
    return (low + high) / 2
