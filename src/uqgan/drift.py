"""Drift: whether a batch of new samples is distributed as the calibration samples are, by their scores."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from uqgan.decisions import Calibration, Rule, check_rule, thresholds
from uqgan.shapes import Scores


@dataclass(frozen=True)
class Drift:
    """Comparison of the scores of a batch of new samples with those of the calibration samples."""

    n: int
    """Number of samples in the batch."""
    share: float
    """Share of flagged samples, whatever their label."""
    low: float
    high: float
    """Bounds of the share flagged in 95 % of batches of this size from the distribution of the calibration samples."""
    ks: float
    """Kolmogorov-Smirnov statistic, the largest gap between the two distribution functions, and its p-value."""
    ks_p_value: float
    verdict: str


def drift(calibration: Calibration, scores: Scores, rule: Rule) -> Drift:
    """Comparison of the scores of new samples, in the rule's column, with those of the calibration samples.

    The threshold comes from n samples only, so the share of known samples above it differs from the stated one: the
    number flagged is beta-binomial. A Clopper-Pearson interval assumes an exact threshold, and would alarm too often.
    """
    from scipy.stats import betabinom, ks_2samp

    whole = Rule(rule.false_alarm, rule.coverage, rule.score)
    check_rule(calibration, whole)
    known, m = getattr(calibration.prediction, rule.score).double(), len(scores)
    if not m:
        return Drift(0, 0.0, 0.0, 1.0, 0.0, 1.0, "too few pictures to tell: there are none")
    ((n, limit),) = thresholds(calibration, whole).values()
    above = int((known > limit).sum()) + 1  # without ties, the rank of the limit among the calibration scores
    chances = np.exp(betabinom.logpmf(np.arange(m + 1), m, above, n + 1 - above)).cumsum()
    low, high = (float(end) / m for end in np.searchsorted(chances, (0.025, 0.975)))
    ks: Any = ks_2samp(known.numpy(), scores.double().numpy(), method="asymp")
    share = float((scores.double() > limit).double().mean())
    verdict = _verdict(share, low, high, float(ks.pvalue), m * rule.false_alarm)
    flagged = "above the threshold for all labels" if rule.per_label else "flagged"
    usual = f"{share:.1%} of {m:,} {flagged}, {low:.1%} to {high:.1%} are usual; KS {ks.statistic:.2f}"
    return Drift(m, share, low, high, float(ks.statistic), float(ks.pvalue), f"{verdict} ({usual})")


def _verdict(share: float, low: float, high: float, ks_p_value: float, expected: float) -> str:
    if share > high:
        return "more strange pictures than calibrated: they differ from the known ones, or the known ones have changed"
    if expected < 1:
        return "too few pictures to tell"
    if share < low:
        return "fewer strange pictures than calibrated: these are easier, or known from training"
    if ks_p_value < 0.01:
        return "as many strange pictures as calibrated, but their scores are distributed differently"
    return "as calibrated"
