"""What one gains for what one gives up, over all thresholds of a score: ROC curves, and risk over coverage.

A larger score means more uncertain. Samples with equal scores are decided alike.
"""

import numpy as np
from torch import Tensor

from uqgan.ranking import Floats

GRID = 201
"""Number of points at which curves of several runs are averaged."""


def roc(score: Tensor, positive: Tensor) -> tuple[Floats, Floats]:
    """Shares of negatives and of positives at or above each distinct score, from none to all."""
    values, flags = score.double().numpy(), positive.numpy()
    order = np.argsort(-values, kind="stable")
    ends = np.flatnonzero(np.append(np.diff(values[order]) != 0, True))
    found = np.cumsum(flags[order])[ends], np.cumsum(~flags[order])[ends]
    shares = [np.concatenate([[0.0], count / max(1, count[-1])]) for count in found]
    return shares[1], shares[0]


def risk_coverage(score: Tensor, right: Tensor) -> tuple[Floats, Floats]:
    """Share of samples kept, the most certain ones, and share of wrong predictions among them; per distinct score."""
    values, wrong = score.double().numpy(), ~right.numpy()
    order = np.argsort(values, kind="stable")
    ends = np.flatnonzero(np.append(np.diff(values[order]) != 0, True))
    kept = ends + 1.0
    return kept / len(values), np.cumsum(wrong[order])[ends] / kept


def mean_curve(curves: list[tuple[Floats, Floats]]) -> tuple[Floats, Floats]:
    """Mean of curves over their common axis, from 0 to 1; a single curve unchanged."""
    if len(curves) == 1:
        return curves[0]
    grid = np.linspace(0, 1, GRID)
    mean: Floats = np.mean([np.interp(grid, x, y) for x, y in curves], axis=0)
    return grid, mean
