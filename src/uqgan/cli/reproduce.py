"""The command that sets our runs beside the paper's tables."""

import math
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
from uqgan.config import suggest
from uqgan.errors import UsageError, count

if TYPE_CHECKING:
    from uqgan.layouts import Line, Text
    from uqgan.reproduction import Block, Reproduction

SHORT = {"difference": "Δ"}
COLOURS = {"better": "green", "worse": "red"}
MOST_NOTES = 5
METHOD, SIDE, CELL = 17, 27, 12
"""Columns of the terminal for a method's name, for all that stands beside the values, and for a value."""


@app.command
def reproduce(
    setting: str,
    /,
    *,
    methods: str = "all",
    seeds: str = "",
    runs: Annotated[list[Path] | None, Parameter(negative=())] = None,
    form: Annotated[str, Parameter("--format")] = "",
    output: Annotated[Path | None, Parameter(("--output", "-o"))] = None,
    dry_run: bool = False,
    voice: Voice = Voice(),
) -> None:
    """Set evaluated runs beside the paper's tables: its value, ours over the seeds, and the difference.

    Parameters
    ----------
    setting
        mnist, cifar10, cifar100 or tiny-imagenet.
    methods
        Names from `uqgan methods`, joined by commas; all takes those of the paper, and others that have runs.
    seeds
        Seeds such as 0-4 or 0,2; all that there are if not given.
    runs
        Folder with evaluated runs, or with their records as JSON files; runs if not given. May be given several times.
    form
        md, csv, latex or html, on standard output or in the file of -o; a coloured table if not given.
    output
        The file to write; its ending .md, .csv, .tex or .html chooses the format.
    dry_run
        Say which runs there are, and what is missing.
    """
    from uqgan.layouts import FORMATS

    check_setting(setting)
    names, numbers = chosen_methods(methods), chosen_seeds(seeds)
    form = chosen_format(form, output, list(FORMATS))
    places = runs or [Path("runs")]
    for place in runs or []:
        if not place.is_dir():
            raise UsageError(f"--runs = {place}: no such folder")
    from uqgan.reproduction import reproduce as set_beside
    from uqgan.results import find_results

    found = find_results(places, setting, names, numbers)
    shown = found.notes if voice.verbose else found.notes[:MOST_NOTES]
    for note in shown:
        voice.say(note)
    if len(found.notes) > len(shown):
        voice.say(f"{len(found.notes) - len(shown):,} more were left out (-v names them)")
    if dry_run:
        show_plan(set_beside(setting, found, names, numbers, resamples=0))
        return
    with voice.busy("comparing"):
        table = set_beside(setting, found, names, numbers)
    if not form:
        show(table)
    elif output:
        from uqgan.files import write_text

        write_text(output, FORMATS[form](table))
        voice.say(f"wrote {output}")
    else:
        Console(highlight=False, soft_wrap=True).out(FORMATS[form](table), highlight=False, end="")


def check_setting(setting: str) -> None:
    from uqgan import paper

    known = list(paper.settings())
    if setting not in known:
        close = suggest(setting, known) or f" (known: {', '.join(known)})"
        raise UsageError(f"setting = {setting}: is none of the paper{close}")


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
    """All tables, as wide as the terminal, then what there is to say about them."""
    from uqgan.layouts import lines, sentences

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
    """A part of a block's columns; a method's lines are one row, beside which its name has room."""
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


def show_plan(found: "Reproduction") -> None:
    """Which runs there are for each method, and what is missing."""
    out = Console(highlight=False)
    for row in found.rows:
        there = f"{count(len(row.seeds), 'seed')}: {', '.join(map(str, row.seeds))}" if row.seeds else "no run"
        out.print(f"{row.method:15} {there}", markup=False)
    if found.missing:
        out.print(f"missing: {', '.join(found.missing)}", markup=False, soft_wrap=True)
