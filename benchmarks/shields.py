"""Real pictures of each class above the out-of-class examples that two or more runs of one task made for it.

python benchmarks/shields.py RUN RUN … --output FILE.png [--per-class 8] [--classes 5] [--data-root DATA]

A row of examples is named by the settings in which its run differs from the others.
"""

import argparse
from pathlib import Path

import matplotlib as mpl
import torch
from matplotlib.figure import Figure
from torch import Tensor

import uqgan
from uqgan.errors import UsageError
from uqgan.plots import STYLE
from uqgan.runs import run_titles

TILE, LABEL, GAP = 0.52, 1.5, 0.14
"""Sizes in inches: a picture, the name of a row, the space between classes."""


def sheet(rows: dict[str, list[tuple[str, Tensor]]], per_class: int) -> Figure:
    """Figure with the named rows of pictures of each class."""
    n_rows = max(map(len, rows.values()))
    width, height = LABEL + TILE * per_class, len(rows) * (n_rows * TILE + GAP) - GAP
    figure = Figure((width, height), dpi=150)
    for k, (name, strips) in enumerate(rows.items()):
        for row, (title, pictures) in enumerate(strips):
            bottom = height - k * (n_rows * TILE + GAP) - (row + 1) * TILE
            words, weight = (f"{name}: {title}", "bold") if row == 0 else (title, "normal")
            middle = (bottom + TILE / 2) / height
            figure.text((LABEL - 0.08) / width, middle, words, ha="right", va="center", weight=weight)
            axes = figure.add_axes((LABEL / width, bottom / height, TILE * len(pictures) / width, TILE / height))
            axes.imshow(side_by_side(pictures), cmap="gray", vmin=0, vmax=1, interpolation="nearest", aspect="auto")
            axes.set_axis_off()
    return figure


def side_by_side(pictures: Tensor) -> Tensor:
    """(N, channels, height, width) in [0, 1] to one picture, a white line around each."""
    framed = torch.nn.functional.pad(pictures[:, : 3 if pictures.shape[1] == 3 else 1], (1, 1, 1, 1), value=1.0)
    return torch.cat(list(framed), 2).permute(1, 2, 0)


def read(folders: list[Path], data_root: Path | None) -> list[uqgan.Run]:
    """Runs that can be shown in one picture; others are refused."""
    runs = [uqgan.load(folder, data_root=data_root) for folder in folders]
    plans = [run.record.plan for run in runs]
    if len({(plan.task, plan.class_names) for plan in plans}) > 1:
        raise UsageError(f"runs of {', '.join(sorted({plan.task for plan in plans}))}: must be of one task")
    if len(plans[0].shape) != 3:
        raise UsageError(f"task = {plans[0].task}: has no pictures (its report shows the plane)")
    return runs


def labels(runs: list[uqgan.Run]) -> list[str]:
    """Name of each run by the settings in which it differs, without the method if all have the same."""
    plans = [run.record.plan for run in runs]
    titles = run_titles(plans)
    if len({plan.method for plan in plans}) > 1:
        return titles
    apart = [title.partition(", ")[2].replace(", ", "\n") for title in titles]
    return [words or "generated" for words in apart]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--per-class", type=int, default=8)
    parser.add_argument("--classes", type=int, default=5, help="how many, the first ones")
    parser.add_argument("--data-root", type=Path, default=None)
    arguments = parser.parse_args()
    try:
        runs = read(arguments.runs, arguments.data_root)
    except UsageError as error:
        parser.error(str(error))
    test, n = runs[0].task.test, arguments.per_class
    rows = {
        name: [
            ("real", test.x[test.y == k][:n].float() / 255),
            *((words, run.generate(k, n, seed=k).cpu()) for words, run in zip(labels(runs), runs, strict=True)),
        ]
        for k, name in enumerate(runs[0].class_names[: arguments.classes])
    }
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context(STYLE):
        sheet(rows, n).savefig(arguments.output, facecolor="white")
    print(f"wrote {arguments.output}")


if __name__ == "__main__":
    main()
