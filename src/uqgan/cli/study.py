"""The command study: repetition of the paper's studies."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Group, Parameter
from rich.console import Console

from uqgan.cli.app import Json, Voice, app, print_json, show_rows
from uqgan.cli.chosen import changes, chosen_methods, chosen_seeds
from uqgan.cli.grid import show_plan
from uqgan.cli.running import Place, check_outcome, command_of, outcome, percent, run_cells
from uqgan.cli.work import Pictures
from uqgan.config import Config

if TYPE_CHECKING:
    from uqgan.paper.studies import Curve

FOLDER = "studies"
"""Subfolder for curves."""
Fixed = Annotated[Config | None, Parameter(name="*", group=Group("Settings (kept fixed, in place of the paper's)"))]


@app.command
def study(
    name: str,
    /,
    *,
    task: str,
    methods: str = "",
    seeds: str = "0",
    values: str = "",
    dry_run: bool = False,
    place: Place = Place(),
    pictures: Pictures = Pictures(),
    settings: Fixed = None,
    as_json: Json = False,
    voice: Voice = Voice(),
) -> None:
    """Repeat a study of the paper: runs over the values of one setting, and the curves of their validation scores.

    Only validation samples, known and OoD, are used. Of several OoD sets together each has the same weight. The
    same command continues after Ctrl-C or a kill. The curves are in OUTPUT/studies as SVG, PNG and JSON.

    Parameters
    ----------
    name
        lambda-cl, lambda-real, lambda-reg, latent-dim, n-classes or regulariser.
    task
        One of `uqgan tasks`, or user-supplied pictures. On mnist and cifar10 fixed settings are the paper's.
    methods
        Names from `uqgan methods`, joined by commas; those of the paper's study if not given.
    seeds
        Seeds such as 0-4 or 0,2.
    values
        Values joined by commas; those of the paper's study if not given.
    dry_run
        Print the runs, their state, and the expected time of the others, by the times of finished ones.
    as_json
        Print the curves as JSON.
    """
    from uqgan.paper.studies import gather, study_cells

    fixed = changes(settings)
    chosen = [value.strip() for value in values.split(",") if value.strip()]
    cells = study_cells(name, task, chosen_methods(methods or "all"), chosen_seeds(seeds or "0"), chosen, fixed)
    all_cells = list(dict.fromkeys(cell for each in cells.values() for cell in each))
    if dry_run:
        show_plan(all_cells, place, [], as_json)
        return
    run_cells(all_cells, place, pictures, voice)
    options = {"task": task, "methods": methods, "seeds": seeds if seeds != "0" else "", "values": values, **fixed}
    curve = gather(name, task, cells, fixed, place.output, command_of(f"study {name}", options))
    if curve.points:
        show(curve, place.output / FOLDER, as_json, voice)
    check_outcome(outcome(all_cells, place.output))


def show(curve: "Curve", folder: Path, as_json: bool, voice: Voice) -> None:
    """Write the curves, and print them with the paper's findings."""
    from uqgan.paper.findings import findings
    from uqgan.paper.study_plots import sizes_in_words

    if as_json:
        print_json(curve.as_json())
    else:
        show_rows(rows_of(curve), as_json=False, whole=True)
        out = Console(highlight=False)
        for words in sizes_in_words(curve):
            out.print(f"validation samples: {words}", markup=False, soft_wrap=True)
        for found in findings(curve):
            out.print(f"paper: {found.words}; {found.verdict}: {found.evidence}", markup=False, soft_wrap=True)
    written = write(curve, folder)
    voice.say(f"wrote {written}.json, .svg and .png")


def rows_of(curve: "Curve") -> list[dict[str, Any]]:
    """Table of the means over the seeds."""
    from uqgan.paper import TITLES
    from uqgan.paper.studies import STUDIES

    rows = []
    for method in curve.methods:
        columns = {title: curve.means(metric, method) for metric, title in TITLES.items()}
        for value in curve.values:
            seconds = [point.seconds for point in curve.points if (point.value, point.method) == (value, method)]
            row = {STUDIES[curve.study].title: value if isinstance(value, str) else f"{value:g}"}
            row |= {"method": method} if len(curve.methods) > 1 else {}
            if seconds:
                scores = {title: percent(found.get(value)) for title, found in columns.items()}
                rows.append(row | scores | {"seeds": len(seconds), "min": f"{sum(seconds) / 60:.1f}"})
    return rows


def write(curve: "Curve", folder: Path) -> Path:
    """Write JSON, SVG and PNG of a curve; returns their path without an ending."""
    from functools import partial

    from uqgan.files import write_bytes, write_json
    from uqgan.grid.cells import title_of
    from uqgan.paper.study_plots import study_figure
    from uqgan.report.plots import saved

    path = folder / f"{title_of(curve.task)}-{curve.study}"
    write_json(path.with_name(f"{path.name}.json"), curve.as_json())
    for form in ("svg", "png"):
        write_bytes(path.with_name(f"{path.name}.{form}"), saved(partial(study_figure, curve), form))
    return path
