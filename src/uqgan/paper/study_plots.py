"""Figures of a study's curves, in the manner of the paper."""

import math
from collections.abc import Callable, Sequence
from itertools import cycle

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from uqgan.paper import TITLES
from uqgan.paper.studies import N_CLASSES, STUDIES, Curve, Value
from uqgan.report.plots import CLASS_COLOURS, DASHES, colour_of

LEFT = ("accuracy", "auroc", "aupr_out", "auroc_sf")
RIGHT = ("aupr_in", "fpr95_id_positive", "ece")
"""Metrics of both axes, as in the paper."""
NAMED = ("accuracy", "auroc", "fpr95_id_positive")
"""Those drawn of a study of names, side by side: marks without lines would hide each other."""
STEP = 0.15
"""Distance of marks side by side, as a share of the distance of names."""
MARKERS = "osD^vPX"


def study_figure(curve: Curve) -> Figure:
    """All metrics of one method, or AUROC and accuracy of several."""
    return methods_figure(curve) if len(curve.methods) > 1 or curve.study == N_CLASSES else metrics_figure(curve)


def metrics_figure(curve: Curve) -> Figure:
    """Metrics on two axes over the values, hollow on the right one: means over the seeds, with a dot per seed."""
    figure = Figure((6.2, 3.3), layout="constrained")
    left = figure.subplots()
    right = left.twinx()
    right.spines["right"].set_visible(True)
    colours, markers = iter(CLASS_COLOURS), iter(MARKERS)
    drawn = NAMED if STUDIES[curve.study].axis == "names" else LEFT + RIGHT
    for axes, side, dash in ((left, LEFT, DASHES[0]), (right, RIGHT, DASHES[1])):
        metrics = [metric for metric in side if metric in drawn]
        for metric in metrics:
            _line(axes, curve, metric, curve.methods[0], TITLES[metric], (next(colours), next(markers), dash))
        axes.set_ylabel(", ".join(TITLES[metric] for metric in metrics) + " in %", fontsize=7)
    _values(left, curve)
    left.grid(alpha=0.25, lw=0.5)
    figure.legend(fontsize=7, ncols=7, loc="outside upper center", handlelength=2.6, columnspacing=1)
    return figure


def methods_figure(curve: Curve) -> Figure:
    """AUROC and accuracy over the values, a line per method."""
    figure = Figure((6.2, 2.9), layout="constrained")
    panels = figure.subplots(1, 2)
    for axes, metric in zip(panels, ("auroc", "accuracy"), strict=True):
        for k, (method, dash) in enumerate(zip(curve.methods, cycle(DASHES), strict=False)):
            label = method if metric == "auroc" else ""
            _line(axes, curve, metric, method, label, (colour_of(k), MARKERS[k % len(MARKERS)], dash))
        axes.set_ylabel(f"{TITLES[metric]} in %", fontsize=7)
        axes.grid(alpha=0.25, lw=0.5)
        _values(axes, curve)
    figure.legend(fontsize=7, ncols=5, loc="outside upper center", handlelength=2.6)
    return figure


def _line(axes: Axes, curve: Curve, metric: str, method: str, label: str, look: tuple[str, str, object]) -> None:
    """Line of a metric's means over the values; unordered names are not connected."""
    place, (colour, marker, dash) = _places(curve, metric), look
    found = curve.means(metric, method)
    x, y = [place(value) for value in curve.values], [100 * found.get(value, math.nan) for value in curve.values]
    joined = dash if STUDIES[curve.study].axis != "names" else "none"
    fill, size = ("none", 5) if metric in RIGHT else (colour, 3.8)
    axes.plot(x, y, color=colour, marker=marker, mfc=fill, ms=size, lw=1.2, ls=joined, label=label)
    if len(curve.seeds) > 1:
        each = [point for point in curve.points if point.method == method and point.scores[metric] is not None]
        scores = [100 * float(point.scores[metric] or 0) for point in each]
        axes.plot([place(point.value) for point in each], scores, ".", color=colour, ms=2, alpha=0.6)


def _places(curve: Curve, metric: str = "") -> Callable[[Value], float]:
    """Positions of values on the axis: logarithms, with 0 one step before the smallest, or beside indices of names."""
    axis, values = STUDIES[curve.study].axis, curve.values
    if axis == "names":
        shift = STEP * (NAMED.index(metric) - (len(NAMED) - 1) / 2) if metric else 0.0
        return lambda value: values.index(value) + shift
    if axis == "linear":
        return float
    first = min((float(value) for value in values if float(value) > 0), default=1.0)
    return lambda value: math.log2(float(value) or first / 2)


def _values(axes: Axes, curve: Curve) -> None:
    place, values = _places(curve), curve.values
    axes.set_xticks([place(value) for value in values], [_words(value) for value in values])
    axes.set_xlabel(STUDIES[curve.study].title)


def _words(value: Value) -> str:
    return value if isinstance(value, str) else f"{value:g}"


def sizes_in_words(curve: Curve) -> Sequence[str]:
    """Sentences with the numbers of validation samples, one for all values with equal numbers."""
    found: dict[str, list[Value]] = {}
    for point in curve.points:
        words = ", ".join(f"{name} {size:,}" for name, size in point.sizes.items())
        found.setdefault(words, []).append(point.value)
    if len(found) == 1:
        return list(found)
    return [f"{', '.join(dict.fromkeys(map(_words, values)))}: {words}" for words, values in found.items()]
