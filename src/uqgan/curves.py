"""Figures of what was logged over the steps of training: losses and accuracy, and the shield's health."""

import math
from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

from uqgan.health import FAULTS, classes
from uqgan.log import headline
from uqgan.plots import CLASS_COLOURS, colour_of, drawn

Rows = Sequence[Mapping[str, Any]]
LINES_SHOWN = 10
"""Of more classes a band is drawn instead of a line each."""
LEAST = 1e-3
"""What is less is drawn as this on a logarithmic axis."""


def by_stage(log: Rows) -> dict[str, list[Mapping[str, Any]]]:
    """A log's rows by the stage of training that wrote them."""
    return {name: [row for row in log if row["stage"] == name] for name in dict.fromkeys(row["stage"] for row in log)}


@drawn
def training_curves(rows: Rows) -> Figure:
    """A stage's losses above, its validation accuracy below; the weights that were kept are ringed."""
    logged = dict.fromkeys(key for row in rows for key in headline(row))
    accuracies, losses = (["accuracy"] if "accuracy" in logged else []), [key for key in logged if key != "accuracy"]
    figure = Figure((3.6, 1.5 + 1.3 * bool(accuracies)), layout="constrained")
    panels = figure.subplots(1 + bool(accuracies), 1, sharex=True, squeeze=False)[:, 0]
    members = _members(rows)
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
    """The logged row whose weights a stage keeps: highest accuracy or least validation loss, the last of equals."""
    if all("accuracy" in row for row in member):
        return max(member, key=lambda row: (float(row["accuracy"]), row["step"]))
    if all("validation" in row for row in member):
        return min(member, key=lambda row: (float(row["validation"]), -row["step"]))
    return None


@drawn
def distance_curve(rows: Rows) -> Figure:
    """How far apart real and generated codes are for the critic."""
    figure, axes = _panel()
    _line(axes, rows, "critic.distance", CLASS_COLOURS[0])
    axes.axhline(0, color="#888888", lw=0.6)
    axes.set_ylabel("D(z) - D(z̃)", fontsize=7)
    return figure


@drawn
def gradient_curves(rows: Rows) -> Figure:
    """Norms of the gradients of the last step before each validation."""
    figure, axes = _panel()
    for name, colour in zip(("classifier C", "generator G", "critic D"), CLASS_COLOURS, strict=False):
        _line(axes, rows, f"gradient.{name[-1]}", colour, LEAST, label=name)
    _logarithmic(axes)
    axes.set_ylabel("norm of the gradient", fontsize=7)
    axes.legend(fontsize=7, ncols=3, loc="lower center", bbox_to_anchor=(0.5, 1))
    return figure


@drawn
def class_curves(rows: Rows, kind: str) -> Figure:
    """A number of each class's shield: a line each, of many the range from least to most with the median in it."""
    figure, axes = _panel()
    least = LEAST if kind == "spread" else 0.0
    measured = classes(rows)
    if len(measured) > LINES_SHOWN:
        values = np.array([[max(row[f"{kind}.{k}"], least) for k in measured] for row in rows])
        steps = [row["step"] for row in rows]
        axes.fill_between(steps, values.min(1), values.max(1), color=CLASS_COLOURS[0], alpha=0.2, lw=0)
        for line, width in ((values.min(1), 0.6), (np.median(values, 1), 1.4), (values.max(1), 0.6)):
            axes.plot(steps, line, color=CLASS_COLOURS[0], lw=width)
    else:
        for k in measured:
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
    """With plain numbers: the house's style reads no mathematics."""
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 300 * low else (1,)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter("{x:g}")


def _line(axes: Axes, rows: Rows, key: str, colour: str, least: float = -math.inf, label: str = "") -> None:
    """A value over the steps; a single one as a dot."""
    steps, values = [row["step"] for row in rows], [max(row[key], least) for row in rows]
    axes.plot(steps, values, "-" if len(rows) > 1 else ".", color=colour, lw=1, label=label)


def _members(rows: Rows) -> list[list[Mapping[str, Any]]]:
    """A stage's rows, cut where its steps start anew: an ensemble trains its members one after another."""
    members: list[list[Mapping[str, Any]]] = []
    for row in rows:
        if not members or row["step"] <= members[-1][-1]["step"]:
            members.append([])
        members[-1].append(row)
    return members
