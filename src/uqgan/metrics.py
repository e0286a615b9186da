"""Metrics of the paper's tables, their bootstrap intervals, and a paired test of two methods.

A larger score means more uncertain. Everything is computed in float64 on the CPU; equal scores share one threshold.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from uqgan.errors import count
from uqgan.ranking import Bools, Counts, Curve, Floats, Indices, Resampling, count_pairs, draw_counts, draws, rank

LEVEL = 0.95
"""Confidence level of every interval."""


@dataclass(frozen=True)
class Interval:
    """A metric with its percentile bootstrap interval."""

    estimate: float
    low: float
    high: float


@dataclass(frozen=True)
class Comparison:
    """AUROC of the first method minus that of the second, and the two-sided p-value of "no difference"."""

    difference: Interval
    p_value: float


@dataclass(frozen=True)
class Reliability:
    """Reliability diagram, one entry per bin; confidence and accuracy of an empty bin are NaN."""

    counts: tuple[int, ...]
    confidence: tuple[float, ...]
    accuracy: tuple[float, ...]

    def calibration_error(self) -> float:
        """Sum of (n_bin / N) * |accuracy - confidence| over the non-empty bins."""
        gaps = np.abs(np.subtract(self.accuracy, self.confidence))
        return float(np.nansum(self.counts * gaps) / sum(self.counts))


def accuracy(probs: Tensor, y: Tensor) -> float:
    """Share of samples whose most probable class is y."""
    if probs.ndim != 2 or y.shape != probs.shape[:1]:
        found = f"probs has shape {tuple(probs.shape)} and y {tuple(y.shape)}"
        raise ValueError(f"{found}: they must be (samples, classes) and (samples,)")
    _numbers(probs.flatten(), "probs")
    return int((probs.argmax(1).cpu() == y.cpu()).sum()) / len(y)


def confusion(labels: Tensor, y: Tensor, n_classes: int) -> Tensor:
    """Number of samples by class (row) and predicted class (column)."""
    return torch.bincount(y.cpu() * n_classes + labels.cpu(), minlength=n_classes**2).reshape(n_classes, n_classes)


def auroc(score: Tensor, positive: Tensor) -> float:
    """Area under the ROC curve, ties counted half. For success/failure: score = aleatoric, positive = wrong."""
    values, mask = _classes(score, positive)
    return count_pairs(values, mask).auroc(*_once(mask))


def aupr(score: Tensor, positive: Tensor) -> float:
    """Area under the precision-recall curve by the trapezoid rule, as in the paper's tables."""
    return _curve(score, positive).areas()[0]


def average_precision(score: Tensor, positive: Tensor) -> float:
    """Area under the precision-recall step function, as scikit-learn defines it; ties make it differ from `aupr`."""
    return _curve(score, positive).areas()[1]


def fpr_at_tpr(score: Tensor, positive: Tensor, tpr: float = 0.95) -> float:
    """False-positive rate at the highest threshold whose true-positive rate is at least `tpr`."""
    if not 0 < tpr <= 1:
        raise ValueError(f"tpr = {tpr}: must be above 0 and at most 1 (a share of the positives)")
    return _curve(score, positive).fpr_at_tpr(tpr)


def ood_scores(score: Tensor, is_ood: Tensor, weight: Tensor | None = None) -> dict[str, float]:
    """OoD metrics of the paper's tables and of other benchmarks, from one sort.

    `*_out`, `fpr95_ood_positive`: OoD is positive. `*_in`, `fpr95_id_positive`: in-distribution is positive
    and the score negated. The paper's are `auroc`, `aupr_in`, `aupr_out` and `fpr95_id_positive`. `weight`, above 0,
    says how much each sample counts; only ratios matter.
    """
    values, mask = _classes(score, is_ood, flag="is_ood")
    if weight is None:
        return rank(values, mask).ood_scores(*_once(mask))
    shares = _numbers(weight, "weight")
    if shares.shape != values.shape or shares.min() <= 0:
        raise ValueError(f"weight has shape {tuple(weight.shape)}: must be above 0, one per sample")
    counts = shares / shares.min()  # a ranking takes counts, of at least 1
    return rank(values, mask).ood_scores(counts[mask], counts[~mask])


def reliability(confidence: Tensor, correct: Tensor, bins: int = 15) -> Reliability:
    """Reliability over bins of equal width (lo, hi] on (0, 1]; confidence 0 belongs to the first."""
    place, values, right = _bin(confidence, correct, bins)
    counts = np.bincount(place, minlength=bins)
    with np.errstate(invalid="ignore"):  # 0 / 0 is the NaN of an empty bin
        means = [np.bincount(place, column, bins) / counts for column in (values, right)]
    return Reliability(tuple(counts.tolist()), *(tuple(mean.tolist()) for mean in means))


def calibration_error(confidence: Tensor, correct: Tensor, bins: int = 15) -> float:
    """Expected calibration error; the paper takes the largest class probability as confidence."""
    return reliability(confidence, correct, bins).calibration_error()


def bootstrap_interval(
    statistic: Callable[..., float], sizes: Sequence[int], resamples: int = 1000, seed: int = 0
) -> Interval:
    """Interval of any statistic of samples in strata of these sizes, each resampled separately.

    `statistic` gets one array of indices per stratum: for the estimate every sample once, then resamples.
    """
    replicates = [statistic(*draw) for draw in draws(sizes, _checked(resamples), seed)]
    return _interval(statistic(*(np.arange(size) for size in sizes)), replicates)


def mean_interval(values: Tensor, resamples: int = 1000, seed: int = 0) -> Interval:
    """Interval of a mean over samples, such as the accuracy where `values` flags the correct predictions."""
    numbers = _numbers(values, "values")
    return bootstrap_interval(lambda draw: float(numbers[draw].mean()), [len(numbers)], resamples, seed)


def auroc_interval(score: Tensor, positive: Tensor, resamples: int = 1000, seed: int = 0) -> Interval:
    """Interval of `auroc`; positives and negatives are resampled separately."""
    values, mask = _classes(score, positive)
    pairs = count_pairs(values, mask)
    return _interval(pairs.auroc(*_once(mask)), [pairs.auroc(*drawn) for drawn in _counts(mask, resamples, seed)])


def ood_intervals(
    score: Tensor,
    is_ood: Tensor,
    resamples: int = 1000,
    seed: int = 0,
    second_score: Tensor | None = None,
    processes: int = 1,
) -> dict[str, Interval]:
    """Intervals of `ood_scores` from the same resamples; in- and out-of-distribution are resampled separately.

    `auroc_second` is the AUROC of `second_score`, another score of the same samples, on these resamples.
    """
    _checked(resamples)
    values, mask = _classes(score, is_ood, flag="is_ood")
    second = None if second_score is None else count_pairs(*_classes(second_score, is_ood, "second_score", "is_ood"))
    resampling = Resampling(rank(values, mask), second, _sizes(mask))
    found = resampling.replicates(resamples, seed, processes)
    estimates = resampling.measure(*_once(mask))
    return {name: _interval(value, [each[name] for each in found]) for name, value in estimates.items()}


def paired_ood(first: Tensor, second: Tensor, is_ood: Tensor, resamples: int = 1000, seed: int = 0) -> dict[str, float]:
    """P-value of "no difference" for each of `ood_scores`, found as by `paired_bootstrap` for the AUROC."""
    values, mask = _classes(first, is_ood, "first", "is_ood")
    a, b = rank(values, mask), rank(*_classes(second, is_ood, "second", "is_ood"))
    found = [(a.ood_scores(*drawn), b.ood_scores(*drawn)) for drawn in _counts(mask, resamples, seed)]
    p_values = {}
    for name in found[0][0]:
        differences = np.array([one[name] - other[name] for one, other in found])
        tail = min((differences <= 0).sum(), (differences >= 0).sum())
        p_values[name] = float(min(1.0, 2 * (tail + 1) / (resamples + 1)))
    return p_values


def calibration_interval(
    confidence: Tensor, correct: Tensor, bins: int = 15, resamples: int = 1000, seed: int = 0
) -> Interval:
    """Interval of `calibration_error`. Resampling noise only increases it: near 0 it may lie above the estimate."""
    place, values, right = _bin(confidence, correct, bins)
    gap = right - values

    def error(draw: Indices) -> float:
        # n_bin * |accuracy - confidence| is the absolute sum of the bin's gaps: no mean is needed.
        return float(np.abs(np.bincount(place[draw], gap[draw])).sum() / len(draw))

    return bootstrap_interval(error, [len(values)], resamples, seed)


def paired_bootstrap(first: Tensor, second: Tensor, is_ood: Tensor, resamples: int = 1000, seed: int = 0) -> Comparison:
    """Difference in AUROC of two methods' scores of the same samples, on the same resamples.

    `is_ood` may be any flag that the scores rank, such as "prediction is wrong". One is added to the number of
    resamples in the tail, so that the p-value is never 0.
    """
    values, mask = _classes(first, is_ood, "first", "is_ood")
    a, b = count_pairs(values, mask), count_pairs(*_classes(second, is_ood, "second", "is_ood"))

    def difference(*drawn: Counts) -> float:
        return a.auroc(*drawn) - b.auroc(*drawn)

    replicates = [difference(*drawn) for drawn in _counts(mask, resamples, seed)]
    tail = min(np.less_equal(replicates, 0).sum(), np.greater_equal(replicates, 0).sum())
    p_value = float(min(1.0, 2 * (tail + 1) / (resamples + 1)))
    return Comparison(_interval(difference(*_once(mask)), replicates), p_value)


def _checked(resamples: int) -> int:
    if resamples < 1:
        raise ValueError(f"resamples = {resamples}: must be at least 1 (1000 is usual)")
    return resamples


def _counts(positive: Bools, resamples: int, seed: int) -> Iterator[tuple[Counts, ...]]:
    """How often each positive and each negative is drawn, per resample; both classes keep their size."""
    sizes = _sizes(positive)
    return (draw_counts(draw, sizes) for draw in draws(sizes, _checked(resamples), seed))


def _sizes(positive: Bools) -> tuple[int, int]:
    """Number of positives and of negatives."""
    return int(positive.sum()), int((~positive).sum())


def _once(positive: Bools) -> tuple[Counts, Counts]:
    """Counts of the original samples: each once."""
    ones = np.ones(len(positive), np.intp)
    return ones[positive], ones[~positive]


def _interval(estimate: float, replicates: Sequence[float]) -> Interval:
    low, high = np.quantile(replicates, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(estimate, float(low), float(high))


def _bin(confidence: Tensor, correct: Tensor, bins: int) -> tuple[Indices, Floats, Bools]:
    """Bin, confidence and success per sample; bin k, from 0, is (k / bins, (k + 1) / bins]."""
    if bins < 1:
        raise ValueError(f"bins = {bins}: must be at least 1 (15 in the paper)")
    values = _numbers(confidence, "confidence")
    worst = values[np.argmax(np.abs(values - 0.5))]
    if not -1e-6 <= worst <= 1 + 1e-6:  # float32 sums of probabilities may pass 1 by this much
        raise ValueError(f"confidence = {worst}: must be between 0 and 1 (take probabilities, not logits)")
    values = np.clip(values, 0, 1)
    upper_edges = np.arange(1, bins + 1) / bins
    return np.searchsorted(upper_edges, values), values, _flags(correct, "correct", len(values))


def _curve(score: Tensor, positive: Tensor) -> Curve:
    values, mask = _classes(score, positive)
    return rank(values, mask).curves(*_once(mask))[0]


def _classes(score: Tensor, positive: Tensor, name: str = "score", flag: str = "positive") -> tuple[Floats, Bools]:
    """Scores and flags as checked arrays; errors call the arguments `name` and `flag`."""
    values = _numbers(score, name)
    mask = _flags(positive, flag, len(values))
    if mask.all() or not mask.any():
        found = f"{flag} is {mask[0]} for all {count(len(mask), 'sample')}"
        raise ValueError(f"{found}: both classes must be present (a ranking metric compares them)")
    return values, mask


def _numbers(values: Tensor, name: str) -> Floats:
    if values.ndim != 1 or not len(values):
        raise ValueError(f"{name} has shape {tuple(values.shape)}: must be (samples,), with a sample or more")
    numbers: Floats = values.detach().cpu().double().numpy()
    if nans := np.count_nonzero(np.isnan(numbers)):
        found = f"{name} has {nans} NaN of {len(numbers)}"
        raise ValueError(f"{found}: every {name} must be a number (did training diverge?)")
    return numbers


def _flags(flags: Tensor, name: str, length: int) -> Bools:
    if flags.dtype != torch.bool or flags.shape != (length,):
        found = f"{name} is {flags.dtype} of shape {tuple(flags.shape)}"
        raise ValueError(f"{found}: must be torch.bool of shape ({length},) (one flag per sample)")
    return np.asarray(flags.cpu())
