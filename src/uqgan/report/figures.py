"""The paper's figures from runs: uncertainties in the plane, and out-of-class examples of several runs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from matplotlib.figure import Figure
from torch import Tensor

from uqgan.errors import UsageError
from uqgan.report.page import POINTS_SHOWN
from uqgan.report.plots import Frame, Points, cells_of, draw_density, draw_heat, frame_around
from uqgan.report.shields import examples
from uqgan.run import Run
from uqgan.runs import run_titles
from uqgan.uncertainty import UNITS, read_one_vs_all

GENERATED = 1200
"""Generated points of which the density is drawn."""
PANEL = 1.9
"""Inches of a panel in the plane."""
TILE, LABEL, GAP = 0.52, 1.5, 0.14
"""Inches: a picture, the name of a row, the space between classes."""


@dataclass(frozen=True)
class Panel:
    """A map in the plane."""

    title: str
    draw: Callable[..., object]


def titles_of(runs: Sequence[Run]) -> list[str]:
    """The settings by which each run differs from the others, with its method and task where these differ."""
    plans = [run.record.plan for run in runs]
    titles = run_titles(plans)
    if len({plan.method for plan in plans}) == 1 and len(plans) > 1:
        titles = [title.partition(", ")[2] for title in titles]
    if len({plan.task for plan in plans}) > 1:
        titles = [", ".join(filter(None, (plan.task, title))) for plan, title in zip(plans, titles, strict=True)]
    return [title.replace(", ", "\n") for title in titles]


def plane_figure(runs: Sequence[Run]) -> Callable[[], Figure]:
    """A row of maps per run: both uncertainties, foreignness, and the density of the generated points."""
    for run in runs:
        if len(run.record.plan.shape) != 1:
            raise UsageError(f"task = {run.record.plan.task}: its samples are pictures (uqgan figure shields)")
    rows = [panels_of(run) for run in runs]
    frames, titles = [frame_of(run) for run in runs], titles_of(runs)

    def draw() -> Figure:
        across = max(len(row) for row in rows)
        figure = Figure(
            (PANEL * across + 0.3, sum(PANEL * shape(frame) + 0.3 for frame in frames)), layout="constrained"
        )
        grid = figure.subplots(len(rows), across, squeeze=False, height_ratios=[shape(frame) for frame in frames])
        for row, panels, frame, title in zip(grid, rows, frames, titles, strict=True):
            for k, axes in enumerate(row):
                if k >= len(panels):
                    axes.set_axis_off()
                    continue
                axes.set(xlim=frame[:2], ylim=frame[2:], aspect="equal", xticks=[], yticks=[])
                axes.spines[:].set_visible(True)
                axes.set_rasterization_zorder(1)
                panels[k].draw(axes)
                axes.set_title(panels[k].title, fontsize=7)
            row[0].set_ylabel(title, fontsize=7)
        return figure

    return draw


def shape(frame: Frame) -> float:
    """Height over width, within what fits a figure."""
    return min(max((frame[3] - frame[2]) / (frame[1] - frame[0]), 0.5), 1.3)


def frame_of(run: Run) -> Frame:
    return frame_around(run.task.test.x, 0.5 if run.task.name.startswith("moons") else 0.2)


def panels_of(run: Run) -> list[Panel]:
    """Maps of a run; one of a method with a single uncertainty, and no density without a generator."""
    plan, task, frame = run.record.plan, run.task, frame_of(run)
    y = torch.arange(GENERATED) % task.n_classes
    generated, real = examples(run.record, y), task.test[torch.arange(min(POINTS_SHOWN, len(task.test)))]
    alone = points = Points(real.x, real.y)
    if generated is not None:
        points = Points(real.x, real.y, generated[:POINTS_SHOWN], y[:POINTS_SHOWN])
    found, reading = run.record.predictor.predict(cells_of(frame), plan.seed).cpu(), run.record.predictor.reading
    aleatoric, epistemic = (top_of(unit, task.n_classes) for unit in UNITS[reading])

    def heat(title: str, values: Tensor, top: float) -> Panel:
        return Panel(title, lambda axes: draw_heat(axes, values, frame, top, points))

    if torch.equal(found.aleatoric, found.epistemic):
        return [heat("uncertainty", found.epistemic, epistemic)]
    panels = [heat("epistemic", found.epistemic, epistemic), heat("aleatoric", found.aleatoric, aleatoric)]
    if reading is read_one_vs_all:
        panels.append(heat("foreignness", found.foreignness, 1.0))
    if generated is not None:
        density = Panel("generated", lambda axes: draw_density(axes, generated, y, task.n_classes, frame, alone))
        panels.append(density)
    return panels


def top_of(unit: str, n_classes: int) -> float:
    """Upper bound of an uncertainty in this unit."""
    return float(torch.tensor(float(n_classes)).log()) if unit == "nats" else 1.0


def shields_figure(runs: Sequence[Run], per_class: int = 8, classes: int = 5) -> Callable[[], Figure]:
    """Real pictures of each class above the out-of-class examples that each run makes for it."""
    plans = [run.record.plan for run in runs]
    if len({(plan.task, plan.class_names) for plan in plans}) > 1:
        raise UsageError(f"runs of {', '.join(sorted({plan.task for plan in plans}))}: must be of one task")
    if len(plans[0].shape) != 3:
        raise UsageError(f"task = {plans[0].task}: its samples are points (uqgan figure toys)")
    words = [title or "generated" for title in titles_of(runs)]
    test = runs[0].task.test
    rows = {
        name: [
            ("real", test.x[test.y == k][:per_class].float() / 255),
            *((title, run.generate(k, per_class, seed=k)) for title, run in zip(words, runs, strict=True)),
        ]
        for k, name in enumerate(plans[0].class_names[:classes])
    }
    return lambda: sheet(rows, per_class)


def sheet(rows: dict[str, list[tuple[str, Tensor]]], per_class: int) -> Figure:
    """For each class its named rows of pictures, one below another."""
    n_rows = max(map(len, rows.values()))
    width, height = LABEL + TILE * per_class, len(rows) * (n_rows * TILE + GAP) - GAP
    figure = Figure((width, height))
    for k, (name, strips) in enumerate(rows.items()):
        for row, (title, pictures) in enumerate(strips):
            bottom = height - k * (n_rows * TILE + GAP) - (row + 1) * TILE
            words, weight = (f"{name}: {title}", "bold") if row == 0 else (title, "normal")
            if not len(pictures):  # a class without test pictures
                continue
            middle = (bottom + TILE / 2) / height
            figure.text((LABEL - 0.08) / width, middle, words, ha="right", va="center", weight=weight)
            axes = figure.add_axes((LABEL / width, bottom / height, TILE * len(pictures) / width, TILE / height))
            pixels = side_by_side(pictures).numpy()
            axes.imshow(pixels, cmap="gray", vmin=0, vmax=1, interpolation="nearest", aspect="auto")
            axes.set_axis_off()
    return figure


def side_by_side(pictures: Tensor) -> Tensor:
    """(N, channels, height, width) in [0, 1] to one picture, a white line around each."""
    framed = torch.nn.functional.pad(pictures[:, : 3 if pictures.shape[1] == 3 else 1], (1, 1, 1, 1), value=1.0)
    return torch.cat(list(framed), 2).permute(1, 2, 0)
