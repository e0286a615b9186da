"""Figures of a training log over its steps: losses, accuracy, and the shield's health."""

import math
from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

from uqgan.health import FAULTS, measured_classes
from uqgan.log import headline
from uqgan.report.plots import CLASS_COLOURS, as_svg, colour_of

Rows = Sequence[Mapping[str, Any]]
LINES_SHOWN = 10
"""Largest number of classes drawn as a line each; more are drawn as one band."""
LEAST = 1e-3
"""Lower limit of values on a logarithmic axis."""


def group_by(key: str, rows: Rows) -> dict[Any, list[Mapping[str, Any]]]:
    """Rows by their value of a key, such as stage or member; None for rows without it."""
    return {value: [row for row in rows if row.get(key) == value] for value in dict.fromkeys(r.get(key) for r in rows)}


@as_svg
def training_curves(rows: Rows) -> Figure:
    """Losses of a stage above, its validation accuracy below, a line per member; a ring marks the weights kept."""
    logged = dict.fromkeys(key for row in rows for key in headline(row))
    accuracies, losses = (["accuracy"] if "accuracy" in logged else []), [key for key in logged if key != "accuracy"]
    figure = Figure((3.6, 1.5 + 1.3 * bool(accuracies)), layout="constrained")
    panels = figure.subplots(1 + bool(accuracies), 1, sharex=True, squeeze=False)[:, 0]
    members = group_by("member", rows).values()
    for axes, keys, name in zip(panels, (losses, accuracies), ("loss", "validation accuracy"), strict=False):
        for key, colour in zip(keys, cycle(CLASS_COLOURS[:4]), strict=False):
            for member in members:
                steps = [row["step"] for row in member]
                axes.plot(steps, [row.get(key, math.nan) for row in member], color=colour, lw=1, label=key)
                if len(steps) == 1:
                    axes.plot(steps, [member[0].get(key, math.nan)], ".", color=colour)
        axes.set_ylabel(name, fontsize=7)
        axes.grid(alpha=0.25, lw=0.5)
        if keys == losses and losses:
            shown = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
            axes.legend(shown.values(), shown.keys(), fontsize=7, ncols=3, loc="lower center", bbox_to_anchor=(0.5, 1))
    for member in members:
        kept = best_row(member)
        if kept:
            value = kept["accuracy" if accuracies else "validation"]
            panels[-1].plot(kept["step"], value, "o", mfc="none", mec="#cc3377", ms=7, mew=1.4, clip_on=False)
    panels[-1].set_xlabel("step")
    return figure


def best_row(member: Rows) -> Mapping[str, Any] | None:
    """Row of the weights that a stage keeps: highest accuracy or lowest validation loss, of equal ones the last."""
    if all("accuracy" in row for row in member):
        return max(member, key=lambda row: (float(row["accuracy"]), row["step"]))
    if all("validation" in row for row in member):
        return min(member, key=lambda row: (float(row["validation"]), -row["step"]))
    return None


@as_svg
def distance_curve(rows: Rows) -> Figure:
    """Mean difference of the critic's output between real and generated codes."""
    figure, axes = _panel()
    _line(axes, rows, "critic.distance", CLASS_COLOURS[0])
    axes.axhline(0, color="#888888", lw=0.6)
    axes.set_ylabel("D(z) - D(z̃)", fontsize=7)
    return figure


@as_svg
def gradient_curves(rows: Rows) -> Figure:
    """Gradient norm per network at the last step before each validation."""
    figure, axes = _panel()
    for name, colour in zip(("classifier C", "generator G", "critic D"), CLASS_COLOURS, strict=False):
        _line(axes, rows, f"gradient.{name[-1]}", colour, LEAST, label=name)
    _logarithmic(axes)
    axes.set_ylabel("norm of the gradient", fontsize=7)
    axes.legend(fontsize=7, ncols=3, loc="lower center", bbox_to_anchor=(0.5, 1))
    return figure


@as_svg
def class_curves(rows: Rows, kind: str) -> Figure:
    """One kind of measurement per class: a line each, or minimum, median and maximum of many."""
    figure, axes = _panel()
    least = LEAST if kind == "spread" else 0.0
    classes = measured_classes(rows)
    if len(classes) > LINES_SHOWN:
        values = np.array([[max(row[f"{kind}.{k}"], least) for k in classes] for row in rows])
        steps = [row["step"] for row in rows]
        axes.fill_between(steps, values.min(1), values.max(1), color=CLASS_COLOURS[0], alpha=0.2, lw=0)
        for line, width in ((values.min(1), 0.6), (np.median(values, 1), 1.4), (values.max(1), 0.6)):
            axes.plot(steps, line, color=CLASS_COLOURS[0], lw=width)
    else:
        for k in classes:
            _line(axes, rows, f"{kind}.{k}", colour_of(k), least)
    axes.axhline(FAULTS[kind].limit, color="#cc3377", lw=0.9, ls="--")
    if kind == "spread":
        axes.axhline(1, color="#888888", lw=0.6)
        _logarithmic(axes)
    else:
        axes.set_ylim(-0.03, 1.03)
    names = {"spread": "spread, relative to the class", "out_of_class": "share called out-of-class"}
    axes.set_ylabel(names[kind], fontsize=7)
    return figure


def _panel() -> tuple[Figure, Axes]:
    figure = Figure((3.6, 2.2), layout="constrained")
    axes = figure.subplots()
    axes.set_xlabel("step")
    axes.grid(alpha=0.25, lw=0.5)
    return figure, axes


def _logarithmic(axes: Axes) -> None:
    """Logarithmic axis with plain numbers: `STYLE` turns Matplotlib's math text off."""
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 300 * low else (1,)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter("{x:g}")


def _line(axes: Axes, rows: Rows, key: str, colour: str, least: float = -math.inf, label: str = "") -> None:
    """Line of a value over the steps; a dot if there is only one."""
    steps, values = [row["step"] for row in rows], [max(row[key], least) for row in rows]
    axes.plot(steps, values, "-" if len(rows) > 1 else ".", color=colour, lw=1, label=label)
