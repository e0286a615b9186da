"""Values printed in the paper, in percent, and the verdict on a measured value."""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

FILE = "values.json"
KNOWN = ("accuracy", "auroc_sf", "ece")
"""Metrics of the known classes."""
RANKED = ("auroc", "aupr_in", "aupr_out", "fpr95_id_positive")
"""Metrics of an OoD set, and of several sets together."""
LOWER_IS_BETTER = ("ece", "fpr95_id_positive")
AVERAGED = ("auroc", "fpr95_id_positive")
"""Metrics whose value for several OoD sets together is the mean over their samples, unlike AUPR."""
TITLES = {
    "accuracy": "accuracy",
    "auroc_sf": "AUROC S/F",
    "ece": "ECE",
    "auroc": "AUROC",
    "aupr_in": "AUPR-In",
    "aupr_out": "AUPR-Out",
    "fpr95_id_positive": "FPR95",
}
"""Columns of the paper's tables, in their order."""
WITHIN, BETTER, WORSE = "within", "better", "worse"
BAND = 2
"""Number of the paper's standard deviations within which values count as equal."""


@dataclass(frozen=True)
class Value:
    """Mean and standard deviation, in percent."""

    mean: float
    std: float

    def __str__(self) -> str:
        return f"{self.mean:.2f} ± {self.std:.2f}"


@cache
def _content() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((resources.files("uqgan.paper") / FILE).read_text())
    return found


def _row(setting: str, method: str) -> dict[str, Any] | None:
    found: dict[str, Any] | None = _content()["settings"].get(setting, {}).get(method)
    return found


def settings() -> tuple[str, ...]:
    """The paper's settings, by the names of their tasks."""
    return tuple(_content()["settings"])


def methods(setting: str) -> tuple[str, ...]:
    """Methods with a row in a setting's tables, in the paper's order; none for other tasks."""
    return tuple(_content()["settings"].get(setting, ()))


def sizes(setting: str) -> dict[str, int]:
    """Number of test samples of each OoD set, in the paper's order; none for other tasks."""
    return dict(_content()["sizes"].get(setting, {}))


def known_value(setting: str, method: str, metric: str) -> Value | None:
    """Value of a metric of the known classes; None for a method without a row."""
    row = _row(setting, method)
    return Value(*row["known"][metric]) if row else None


def ood_value(setting: str, method: str, metric: str, names: Iterable[str]) -> Value | None:
    """Value for OoD sets together: printed for one or all of them, otherwise computed if that is exact.

    The standard deviation of a computed mean is that of sets that vary independently.
    """
    row, counts, chosen = _row(setting, method), sizes(setting), set(names)
    if not row or not chosen or not chosen <= set(counts):
        return None
    if chosen == set(counts) or len(chosen) == 1:
        return Value(*row["all" if len(chosen) > 1 else chosen.pop()][metric])
    if metric not in AVERAGED:
        return None
    shares = {name: counts[name] / sum(counts[each] for each in chosen) for name in chosen}
    mean = pooled({name: row[name][metric][0] for name in chosen}, counts)
    return Value(mean, math.hypot(*(share * row[name][metric][1] for name, share in shares.items())))


def detection_value(setting: str, method: str, features: str, group: str) -> Value | None:
    """Accuracy of joint detection on a group (`tp`, `fp`, `ood`), from `scores` or `scores_and_probs`."""
    row = _content()["detection"].get(setting, {}).get(method)
    return Value(*row[features][group]) if row else None


def pooled(values: Mapping[str, float], counts: Mapping[str, int]) -> float:
    """Mean over the samples of several sets, from the means of the sets."""
    return sum(value * counts[name] for name, value in values.items()) / sum(counts[name] for name in values)


def verdict(ours: float, theirs: Value, metric: str) -> str:
    """Verdict on our mean, in two decimals: within ± BAND of the paper's standard deviations, better, or worse."""
    difference = round(ours, 2) - round(theirs.mean, 2)
    if abs(difference) <= BAND * theirs.std + 1e-9:
        return WITHIN
    return WORSE if (difference > 0) == (metric in LOWER_IS_BETTER) else BETTER
