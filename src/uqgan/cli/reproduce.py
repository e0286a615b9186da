"""The command reproduce: comparison of runs with the paper's tables, with training of missing ones."""

import math
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from uqgan.cli.app import Voice, app
from uqgan.cli.chosen import chosen_methods, chosen_seeds
from uqgan.cli.running import How, Place, check_outcome, failures, outcome, run_cells, time_for
from uqgan.cli.work import Pictures
from uqgan.config import suggest
from uqgan.errors import UsageError, count
from uqgan.progress import spell

if TYPE_CHECKING:
    from uqgan.grid.cells import Cell
    from uqgan.paper.layouts import Line, Text
    from uqgan.paper.reproduction import Block, Reproduction
    from uqgan.paper.results import Found

SHORT = {"difference": "Δ"}
COLOURS = {"better": "green", "worse": "red"}
MOST_NOTES = 5
METHOD, SIDE, CELL = 17, 27, 12
"""Widths on the terminal, in characters: of a method's name, of all columns besides values, and of a value."""


@app.command
def reproduce(
    setting: str,
    /,
    *,
    methods: str = "all",
    seeds: str = "",
    runs: Annotated[list[Path] | None, Parameter(negative=())] = None,
    compare_only: bool = False,
    dry_run: bool = False,
    how: How = How(),
    data_root: Path | None = None,
    form: Annotated[str, Parameter("--format")] = "",
    output: Annotated[Path | None, Parameter(("--output", "-o"))] = None,
    voice: Voice = Voice(),
) -> None:
    """Train missing runs of a setting, and compare all runs with the paper: its value, ours, and the difference.

    Existing runs are not trained again; after Ctrl-C, a kill or --max-minutes the same command continues.
    Exit status 1: some runs failed; 3: some are unfinished.

    Parameters
    ----------
    setting
        mnist, cifar10, cifar100 or tiny-imagenet.
    methods
        Names from `uqgan methods`, joined by commas; all takes those of the paper, and others that have runs.
    seeds
        Seeds such as 0-4 or 0,2; if not given, all existing ones, and seed 0 of each method without a run.
    runs
        Folders with evaluated runs or their records; new ones go to the first. Default: runs and results.
    compare_only
        Train nothing.
    dry_run
        Print existing runs, runs that would be trained, and their expected time, and stop.
    data_root
        Folder of the paper's data sets; UQGAN_DATA if not given.
    form
        md, csv, latex or html, on standard output or in the file of -o; a coloured table if not given.
    output
        The file to write; its ending .md, .csv, .tex or .html chooses the format.
    """
    from uqgan.paper.layouts import FORMATS

    check_setting(setting)
    chosen = Chosen(setting, chosen_methods(methods), chosen_seeds(seeds), places_of(runs))
    form = chosen_format(form, output, list(FORMATS))
    found = chosen.find()
    say_notes(found.notes, voice)
    cells = [] if compare_only else chosen.missing(found)
    if dry_run:
        show_plan(chosen.beside(found, resamples=0), cells, chosen, how)
        return
    if cells:
        train_missing(cells, chosen, how, data_root, voice)
        known, found = set(found.notes), chosen.find()
        say_notes([note for note in found.notes if note not in known], voice)
    with voice.busy("comparing"):
        table = chosen.beside(found)
    if not form:
        show(table)
    elif output:
        from uqgan.files import write_text

        write_text(output, FORMATS[form](table))
        voice.say(f"wrote {output}")
    else:
        Console(highlight=False, soft_wrap=True).out(FORMATS[form](table), highlight=False, end="")
    rows = outcome(cells, chosen.root)
    for sentence in failures(rows):
        voice.say(sentence)
    check_outcome(rows)


@dataclass(frozen=True)
class Chosen:
    """Runs to compare with the paper."""

    setting: str
    methods: list[str]
    seeds: list[int]
    places: list[Path]
    """Folders with runs."""

    @property
    def root(self) -> Path:
        """Folder of new runs."""
        return self.places[0]

    def find(self) -> "Found":
        from uqgan.paper.results import find_results

        return find_results(self.places, self.setting, self.methods, self.seeds)

    def missing(self, found: "Found") -> list["Cell"]:
        """Requested runs that are missing, first one of each method."""
        from uqgan import paper
        from uqgan.grid.cells import Cell
        from uqgan.paper.reproduction import missing_runs

        names = self.methods or list(paper.methods(self.setting))
        runs = sorted(missing_runs(found, names, self.seeds), key=lambda run: run[1])
        return [Cell(self.setting, method, seed) for method, seed in runs]

    def beside(self, found: "Found", resamples: int | None = None) -> "Reproduction":
        from uqgan.paper.reproduction import reproduce as set_beside
        from uqgan.paper.ties import RESAMPLES

        draws = RESAMPLES if resamples is None else resamples
        return set_beside(self.setting, found, self.methods, self.seeds, draws)


def places_of(runs: list[Path] | None) -> list[Path]:
    """Folders with runs: the given ones, which must exist, or the default ones."""
    for place in runs or []:
        if not place.is_dir():
            raise UsageError(f"--runs = {place}: no such folder (make it, and new runs go into it)")
    return runs or [Path("runs"), *(place for place in [Path("results")] if place.is_dir())]


def say_notes(notes: list[str], voice: Voice) -> None:
    """Reasons why runs were excluded; of many the first ones."""
    shown = notes if voice.verbose else notes[:MOST_NOTES]
    for note in shown:
        voice.say(note)
    if len(notes) > len(shown):
        voice.say(f"{len(notes) - len(shown):,} more were left out (-v names them)")


def train_missing(cells: list["Cell"], chosen: Chosen, how: How, data_root: Path | None, voice: Voice) -> None:
    """Print the runs to train and their expected time, and train them."""
    by_method: dict[str, list[str]] = {}
    for cell in cells:
        by_method.setdefault(cell.method, []).append(str(cell.seed))
    names = "; ".join(f"{method} seed {', '.join(seeds)}" for method, seeds in by_method.items())
    voice.say(f"{count(len(cells), 'run')} to train into {chosen.root}: {names}")
    voice.say(duration(cells, chosen, how))
    place = Place(**vars(how), output=chosen.root)
    run_cells(cells, place, Pictures(data_root=data_root), voice, chosen.places[1:])


def duration(cells: list["Cell"], chosen: Chosen, how: How) -> str:
    from uqgan.grid.times import Times

    return time_for(cells, Times.recorded(chosen.places), how.kind)


def check_setting(setting: str) -> None:
    from uqgan import paper

    known = list(paper.settings())
    if setting not in known:
        close = suggest(setting, known) or f" (known: {', '.join(known)})"
        raise UsageError(f"setting = {setting}: no such setting in the paper{close}")


def chosen_format(form: str, output: Path | None, known: list[str]) -> str:
    """Format by its name, or by the ending of the file; empty for a table on the terminal."""
    by_ending = {".md": "md", ".csv": "csv", ".tex": "latex", ".html": "html"}
    if form and form not in known:
        raise UsageError(f"--format = {form}: must be one of {', '.join(known)}")
    if output is None or form:
        return form
    if output.suffix.lower() not in by_ending:
        raise UsageError(f"--output = {output}: must end in {', '.join(by_ending)} (or give --format)")
    return by_ending[output.suffix.lower()]


def show(found: "Reproduction") -> None:
    """Print all tables, fitted to the terminal, and sentences about them."""
    from uqgan.paper.layouts import lines, sentences

    out = Console(highlight=False)
    for block in found.blocks:
        rows = lines(found, block)
        parts = math.ceil(len(block.columns) / max(1, (out.width - SIDE) // CELL))
        ends = [k * len(block.columns) // parts for k in range(parts + 1)]
        out.print(f"[bold]{escape(block.title)}[/bold]")
        for first, last in pairwise(ends):
            out.print(table_of(block, rows, slice(first, last)))
    for sentence in sentences(found):
        out.print(sentence, markup=False, soft_wrap=True)


def table_of(block: "Block", rows: "list[Line]", part: slice) -> Table:
    """Table of a part of a block's columns, with the lines of a method in one row."""
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    table.add_column("", width=METHOD)
    table.add_column("", no_wrap=True)
    for column in block.columns[part]:
        table.add_column(escape(column.title), justify="right", min_width=CELL - 1)
    starts = [k for k, line in enumerate(rows) if line.method]
    for first, last in pairwise([*starts, len(rows)]):
        group = rows[first:last]
        who = "\n".join(f"{SHORT.get(line.who, line.who)} {line.seeds}" for line in group)
        cells = zip(*(line.cells[part] for line in group), strict=True)
        table.add_row(escape(group[0].method), who, *("\n".join(map(coloured, cell)) for cell in cells))
    return table


def coloured(text: "Text") -> str:
    words = text.words.replace(" ", "")
    words = f"[bold]{words}[/bold]" if text.best else words
    colour = COLOURS.get(text.verdict)
    return f"[{colour}]{words}[/{colour}]" if colour else words


def show_plan(found: "Reproduction", cells: list["Cell"], chosen: Chosen, how: How) -> None:
    """Table of existing runs per method, runs to train, and their expected time."""
    from uqgan.grid.times import Times

    out = Console(highlight=False)
    for row in found.rows:
        there = f"{count(len(row.seeds), 'seed')}: {', '.join(map(str, row.seeds))}" if row.seeds else "no run"
        out.print(f"{row.method:15} {there}", markup=False)
    if found.missing:
        out.print(f"missing: {', '.join(found.missing)}", markup=False, soft_wrap=True)
    if not cells:
        return
    known, device = Times.recorded(chosen.places), how.kind
    out.print(f"to train into {chosen.root}, {time_for(cells, known, device)}:", markup=False, soft_wrap=True)
    for cell in cells:
        seconds = known.expected(cell, device)
        out.print(f"{cell.name:40} {'unknown' if seconds is None else spell(seconds)}", markup=False)
