"""The command grid: runs of all combinations of tasks, methods, seeds and settings."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Group, Parameter
from rich.console import Console

from uqgan.cli.app import Json, Voice, app, print_json, show_rows
from uqgan.cli.chosen import ConfigLists, chosen_methods, chosen_seeds, chosen_tasks, variants
from uqgan.cli.running import Place, check_outcome, outcome, run_cells, show_outcome, time_for
from uqgan.cli.work import Pictures
from uqgan.config import Settings
from uqgan.errors import count

if TYPE_CHECKING:
    from uqgan.grid.cells import Cell

Lists = Annotated[
    ConfigLists | None,  # type: ignore[valid-type]
    Parameter(name="*", group=Group("Settings (values joined by commas are combined)")),
]


@app.command
def grid(
    *,
    tasks: str,
    methods: str = "all",
    seeds: str = "0",
    validation: bool = False,
    dry_run: bool = False,
    times: Annotated[list[Path] | None, Parameter(negative=())] = None,
    place: Place = Place(),
    pictures: Pictures = Pictures(),
    settings: Lists = None,
    as_json: Json = False,
    voice: Voice = Voice(),
) -> None:
    """Train and test many runs in parallel: tasks × methods × seeds × settings.

    Each is a cell with a folder TASK/METHOD/seed-SEED. After Ctrl-C, a kill or a power cut the same command continues;
    finished cells are not changed. Exit status 1: some failed; 3: some are unfinished after --max-minutes.

    Parameters
    ----------
    tasks
        Names from `uqgan tasks`, or paths of user-supplied pictures, joined by commas.
    methods
        Names from `uqgan methods`, joined by commas; all takes the twelve of the paper.
    seeds
        Seeds such as 0-4 or 0,2.
    validation
        Score validation samples, known and OoD, and leave the test sets alone: to choose settings.
    dry_run
        Print the cells, their state, and the expected time of the others, by the times of finished ones.
    times
        Further folder with finished runs, or with their records, for --dry-run. May be given several times.
    as_json
        Print the cells with their scores as JSON.
    """
    cells = cells_of(tasks, methods, seeds, settings, validation)
    if dry_run:
        show_plan(cells, place, times or [], as_json)
        return
    run_cells(cells, place, pictures, voice)
    rows = outcome(cells, place.output)
    if as_json:
        print_json(rows)
    else:
        show_outcome(rows)
    check_outcome(rows)


def cells_of(tasks: str, methods: str, seeds: str, settings: Settings | None, validation: bool) -> list["Cell"]:
    """Cells of the chosen lists."""
    from uqgan import paper
    from uqgan.grid.cells import plan_cells

    names = chosen_methods(methods) or list(paper.methods("mnist"))
    return plan_cells(chosen_tasks(tasks), names, chosen_seeds(seeds or "0"), variants(settings), validation)


def show_plan(cells: Sequence["Cell"], place: Place, times: Sequence[Path], as_json: bool) -> None:
    """Cells with their state, and the expected minutes of the others."""
    from uqgan.grid.schedule import survey
    from uqgan.grid.times import Times

    found, device = survey(cells, place.output), place.kind
    known = Times.recorded([place.output, *times])
    rows: list[dict[str, Any]] = []
    for cell in cells:
        state = "done" if cell in found.done else "failed" if cell in found.failed else "to do"
        seconds = known.expected(cell, device)
        rows.append({"cell": cell.name, "state": state, "minutes": None if seconds is None else round(seconds / 60, 1)})
    if as_json:
        print_json(rows)
        return
    show_rows([row | {"minutes": expected(row["minutes"])} for row in rows], as_json=False, whole=True)
    to_do = [*found.to_do, *(found.failed if place.retry_failed else [])]
    words = [f"{count(len(to_do), 'cell')} to do", *([time_for(to_do, known, device)] if to_do else [])]
    if found.failed and not place.retry_failed:
        words.append(f"{len(found.failed)} failed before (--retry-failed)")
    Console(highlight=False).print(", ".join(words), soft_wrap=True)


def expected(minutes: float | None) -> str:
    return "unknown" if minutes is None else f"{minutes:.1f}"
