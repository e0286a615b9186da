"""Part of the report that compares methods: a leaderboard, AUROC per OoD set, curves, reliability."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, stdev
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from uqgan.evaluation import Outputs, ranking, set_names
from uqgan.metrics import paired_bootstrap, reliability
from uqgan.ranking import Floats
from uqgan.report.plots import CLASS_COLOURS, DASHES, Pictures, as_svg, colour_of, data_uri
from uqgan.report.tradeoffs import mean_curve, risk_coverage, roc

RESAMPLES, LEVEL = 1000, 0.05
Curve = tuple[Floats, Floats]
METRICS = {
    "accuracy": (("accuracy",), True),
    "auroc_sf": (("auroc_sf",), True),
    "ece": (("ece",), False),
    "auroc": (("sets", "{set}", "auroc"), True),
    "fpr95": (("sets", "{set}", "fpr95_id_positive"), False),
}
"""Columns of the leaderboard: their path in the scores, and whether larger is better."""


@dataclass(frozen=True)
class Contestant:
    """Runs that differ only in their seed."""

    title: str
    seeds: tuple[int, ...]
    outputs: tuple[Outputs, ...]
    found: tuple[Mapping[str, Any], ...]
    """Results of `evaluation.evaluate`."""
    sees_ood: bool

    def values(self, path: Sequence[str], part: str = "scores") -> list[Any]:
        """Values of its runs at a path in their results; None if undefined."""
        return [_at(each[part], path) for each in self.found]

    def mean(self, path: Sequence[str]) -> float | None:
        known = [value for value in self.values(path) if value is not None]
        return mean(known) if known else None


def compare(contestants: Sequence[Contestant], resamples: int = RESAMPLES) -> dict[str, Any]:
    """Template variables of the comparison; the best come first, by AUROC over all OoD sets or by accuracy."""
    sets = shared_sets(contestants)
    key = ("sets", sets[0], "auroc") if sets else ("accuracy",)
    ordered = sorted(contestants, key=lambda one: -(one.mean(key) or 0.0))
    best = next((one for one in ordered if not one.sees_ood), ordered[0])
    rows = [row_of(one, best, sets, resamples) for one in ordered]
    return {
        "together": sets[0] if sets else "",
        "sets": sets,
        "rows": rows,
        "resamples": resamples,
        "best": best.title,
        "bold": bold(rows),
        "heat": [(one.title, [one.mean(("sets", name, "auroc")) for name in sets]) for one in ordered],
        "figures": figures(ordered, sets[0] if sets else ""),
    }


def shared_sets(contestants: Sequence[Contestant]) -> list[str]:
    """OoD sets common to all runs, preceded by `all` if there are several."""
    every = [outputs for one in contestants for outputs in one.outputs]
    return [name for name in set_names(every[0]) if all(name in set_names(outputs) for outputs in every)]


def row_of(one: Contestant, best: Contestant, sets: Sequence[str], resamples: int) -> dict[str, Any]:
    """Row of the leaderboard: means with their spread over seeds or a single run's interval, and the paired test."""
    cells = {}
    for name, (place, _) in METRICS.items():
        if "{set}" in place and not sets:
            continue
        path = [sets[0] if key == "{set}" else key for key in place]
        known = [value for value in one.values(path) if value is not None]
        ends = one.values(path, "intervals")[0] if len(one.found) == 1 else None
        cells[name] = {
            "mean": mean(known) if known else None,
            "std": stdev(known) if len(known) > 1 else None,
            "interval": ends,
        }
    p_value = None if one is best or not sets else p_against(one, best, sets[0], resamples)
    return {"title": one.title, "n": len(one.seeds), "cells": cells, "p": p_value, "sees_ood": one.sees_ood}


def p_against(one: Contestant, best: Contestant, name: str, resamples: int = RESAMPLES) -> float | None:
    """P-value of "no difference in AUROC" to the best, the largest of the pairs with one seed; None without a pair.

    Later pairs are not looked at once one shows no difference.
    """
    largest = None
    for seed in sorted(set(one.seeds) & set(best.seeds)):
        pair = [each.outputs[each.seeds.index(seed)] for each in (best, one)]
        (first, is_ood), (second, other) = (ranking(outputs, "epistemic", name) for outputs in pair)
        if not torch.equal(is_ood, other) or not torch.equal(pair[0].y, pair[1].y):
            continue
        largest = max(largest or 0.0, paired_bootstrap(first, second, is_ood, resamples).p_value)
        if largest > LEVEL:
            break
    return largest


def bold(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Titles of the best in each column, among methods without outliers."""
    found: dict[str, list[str]] = {}
    for name, (_, more) in METRICS.items():
        means = {
            row["title"]: row["cells"][name]["mean"]
            for row in rows
            if name in row["cells"] and row["cells"][name]["mean"] is not None and not row["sees_ood"]
        }
        if len(means) > 1:
            top = (max if more else min)(means.values())
            found[name] = [title for title, value in means.items() if value == top]
    return found


def figures(contestants: Sequence[Contestant], name: str) -> Pictures:
    """Curves of all methods, averaged over their seeds."""
    titles = [one.title for one in contestants]
    risks = [mean_curve([risk_of(outputs) for outputs in one.outputs]) for one in contestants]
    drawn = {"risk": curve_figure(titles, risks, "share kept, most certain first", "share wrong of those kept")}
    if name:
        rocs = [mean_curve([roc(*ranking(o, "epistemic", name)) for o in one.outputs]) for one in contestants]
        drawn = {"roc": curve_figure(titles, rocs, "share of the known flagged", "share of OoD flagged")} | drawn
    sure = [torch.cat([outputs.test.probs.amax(1) for outputs in one.outputs]) for one in contestants]
    right = [torch.cat([outputs.right for outputs in one.outputs]) for one in contestants]
    drawn["reliability"] = reliability_figure(titles, sure, right)
    return {key: data_uri(svg) for key, svg in drawn.items()}


def risk_of(outputs: Outputs) -> Curve:
    return risk_coverage(outputs.test.aleatoric, outputs.right)


@as_svg
def curve_figure(titles: Sequence[str], curves: Sequence[Curve], x: str, y: str) -> Figure:
    """Figure with a line per method, whose colour and dashes are the same in all figures."""
    figure = Figure((4.4, 2.9), layout="constrained")
    axes = figure.subplots()
    for k, (title, (across, up)) in enumerate(zip(titles, curves, strict=True)):
        dash = DASHES[k // len(CLASS_COLOURS) % len(DASHES)]
        thin = slice(None, None, max(1, len(across) // 1000))
        x_thin, y_thin = (np.append(line[thin], line[-1]) for line in (across, up))
        axes.plot(x_thin, y_thin, lw=1.2, label=title, color=colour_of(k), ls=dash)
    axes.set(xlabel=x, ylabel=y, xlim=(0, 1))
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.25, lw=0.5)
    figure.legend(fontsize=6.5, loc="outside right upper", handlelength=2.2)
    return figure


@as_svg
def reliability_figure(titles: Sequence[str], confidence: Sequence[Tensor], right: Sequence[Tensor]) -> Figure:
    """Reliability diagrams, a small panel per method, with the runs of all seeds together."""
    across = min(4, len(titles))
    down = -(-len(titles) // across)
    figure = Figure((1.5 * across + 0.3, 1.5 * down + 0.3), layout="constrained")
    panels: list[Axes] = list(figure.subplots(down, across, sharex=True, sharey=True, squeeze=False).flat)
    for k, axes in enumerate(panels):
        if k >= len(titles):
            axes.set_axis_off()
            continue
        diagram = reliability(confidence[k], right[k])
        centres = (np.arange(len(diagram.counts)) + 0.5) / len(diagram.counts)
        axes.bar(centres, np.nan_to_num(diagram.accuracy), 0.92 / len(centres), color=colour_of(k), alpha=0.75, lw=0)
        axes.plot([0, 1], [0, 1], "--", color="#888888", lw=0.8)
        axes.set(xlim=(0, 1), ylim=(0, 1), xticks=[0, 0.5, 1], yticks=[0, 0.5, 1])
        axes.set_title(f"{titles[k]}\nECE {100 * diagram.calibration_error():.1f} %", fontsize=6.5)
        axes.tick_params(labelsize=6, length=2)
    figure.supxlabel("confidence", fontsize=7)
    figure.supylabel("accuracy", fontsize=7)
    return figure


def _at(tree: Any, path: Sequence[str]) -> Any:
    for key in path:
        tree = tree.get(key) if tree else None
    return tree
