"""The figures of the page on scale: what runs took, what the whole paper would take, what a grid costs."""

from collections.abc import Mapping, Sequence
from functools import cache
from heapq import heappop, heappush
from itertools import count
from statistics import mean
from typing import Any

import make_tables
from make_tables import ROOT, joined, record, short, table
from uqgan import paper
from uqgan.grid.cells import Cell, plan_cells
from uqgan.grid.schedule import Schedule
from uqgan.grid.times import Times
from uqgan.paper.results import set_title

PAGE = ROOT / "docs" / "scale.md"
DEVICE, SEEDS, GPUS = "cuda", range(3), (1, 2, 4, 10, 20, 40)
LIKE, MODEL = ("max-softmax", "uqgan-mc"), "cifar10"
"""Methods by whose recorded time others are estimated; the setting with the most recorded methods."""
RECORDED = """Minutes of one training on an H200 with nothing taken from the cache, testing left out: the median of the
records in `results/`, of several versions of the program. Most shared the GPU with up to fifteen others, and took
longer than they would alone. ≈ is an estimate where none is recorded: the time of
`max-softmax` on that task, or else of `uqgan-mc`, times the ratio of the two methods on CIFAR10 or, where that is not
recorded either, on the digits ([costs](results.md#cost-of-the-methods), on a CPU)."""
WHOLE = """{cells} cells: {methods} methods × {settings} settings × {seeds} seeds. One after another, each from nothing:
{alone:.0f} GPU hours, {share:.0f} % of them estimates, and less where recorded trainings shared their GPU. With what
cells share trained once (`max-softmax` and `entropy` are the same classifiers, members of an ensemble those of other
seeds): {shared:.0f} hours; autoencoders, which `uqgan`
and `uqgan-mc` share as well, are counted each time. The schedule is the program's own, played with these times; each
GPU runs one training at a time, and start-up, testing and the way to other machines are left out. No less than the
longest cell is possible: {longest}, {hours:.1f} hours."""
MPS = """Through the grid, several trainings at a time on one H200 under MPS, beside the same cells as fresh processes
one after another; both began with decoded data and empty caches for autoencoders and compiled code:"""
COSTS = """## What it costs

What several workers gain, and what handing out a cell costs:"""
KILLS = """## What a kill changes

A grid was killed and continued by the same command, several times. Beside the same grid undisturbed:"""
NODES = "### Seen on two nodes"
NO_MPS = """How many more trainings an H200 ends in an hour when the grid runs several of them at a time is not recorded
yet (`python benchmarks/grid.py sides mnist`)."""
ONE_SIDE = """{task}: {cells} trainings with evaluation, by one grid{mps}, at {rate:.0f} an hour, with empty caches
for autoencoders and compiled code ({conditions}). The same one after another are not recorded yet."""


def minutes(task: str, method: str) -> tuple[float, bool]:
    """Minutes of a training, and whether they were recorded."""
    found = recorded(task, method)
    return (found, True) if found is not None else (estimated(task, method), False)


@cache
def _times(_: str) -> Times:
    return Times.recorded([make_tables.RESULTS])


def recorded(task: str, method: str) -> float | None:
    seconds = _times(str(make_tables.RESULTS)).expected(Cell(task, method), DEVICE)
    return None if seconds is None else seconds / 60


def estimated(task: str, method: str) -> float:
    """By a method that is recorded on the task, and the ratio of both elsewhere."""
    like = next(name for name in LIKE if recorded(task, name) is not None)
    known = recorded(task, like)
    assert known
    return known * ratio(method, like)


def ratio(method: str, like: str) -> float:
    """How much longer a method takes than another, on CIFAR10 or else on the digits."""
    ours, theirs = recorded(MODEL, method), recorded(MODEL, like)
    if ours and theirs:
        return ours / theirs
    rows = {row["method"]: row["training_seconds"] for row in record("speed/costs.json") if row["task"] == "digits"}
    if theirs and (both := recorded(MODEL, LIKE[0])):  # by way of a method that is recorded in both places
        return both / theirs * float(rows[method] / rows[LIKE[0]])
    return float(rows[method] / rows[like])


def model() -> str:
    """Table of minutes by method and setting."""
    rows = []
    for method in paper.methods("mnist"):
        found = [minutes(task, method) for task in paper.settings()]
        rows.append([f"`{method}`", *(f"{'' if known else '≈ '}{value:.1f}" for value, known in found)])
    return joined(RECORDED, table(["method", *map(set_title, paper.settings())], rows))


def whole_paper() -> str:
    """The paper's runs on more and more GPUs."""
    methods = paper.methods("mnist")
    cells = plan_cells(paper.settings(), methods, SEEDS)
    hours = {(cell.task, cell.method): minutes(cell.task, cell.method)[0] / 60 for cell in cells}
    alone = sum(hours[cell.task, cell.method] for cell in cells)
    guessed = sum(hours[cell.task, cell.method] for cell in cells if not minutes(cell.task, cell.method)[1])
    longest = max(hours, key=lambda key: hours[key])
    ends = {gpus: makespan(cells, gpus, hours) for gpus in GPUS}
    words = WHOLE.format(
        cells=len(cells), methods=len(methods), settings=len(paper.settings()), seeds=len(SEEDS), alone=alone,
        share=100 * guessed / alone, shared=ends[1], longest=f"`{longest[1]}` on {set_title(longest[0])}",
        hours=hours[longest],
    )  # fmt: skip
    rows = [
        [str(n), f"{end:.1f}", f"{ends[1] / end:.1f}", f"{100 * ends[1] / end / n:.0f} %"] for n, end in ends.items()
    ]
    return joined(words, table(["GPUs", "hours", "times as fast", "of each GPU used"], rows, 0))


def makespan(cells: Sequence[Cell], workers: int, hours: Mapping[tuple[str, str], float]) -> float:
    """Hours until all cells are done by so many workers, by the program's own schedule; shared work counts once."""
    schedule, trained, now, order = Schedule.of(cells), set[str](), 0.0, count()
    idle: list[Cell | None] = [None] * workers
    running: list[tuple[float, int, Cell]] = []
    while schedule:
        for last in list(idle):
            if cell := schedule.take(last):
                idle.remove(last)
                share = len(cell.work - trained) / len(cell.work)
                heappush(running, (now + share * hours[cell.task, cell.method], next(order), cell))
        now, _, ended = heappop(running)
        schedule.finish(ended)
        trained |= ended.work
        idle.append(ended)
    return now


def machine() -> str:
    """What a grid costs and gains on one machine, and what kills change; sections without a record are left out."""
    parts = {COSTS: costs(), KILLS: kills()}
    return joined(*(joined(words, "\n".join(rows)) for words, rows in parts.items() if rows))


def costs() -> list[str]:
    """What several workers gain, and the time between cells."""
    rows: list[dict[str, Any]] = record("speed/grid.json") or []
    equal = [row for row in rows if row["what"].endswith("equal cells")]
    parts = []
    for row in (row for row in equal if "speedup" in row):
        parts.append(
            f"- {row['cells']} equal cells on one thread each: {row['workers']} workers end them "
            f"{row['speedup']} times as fast as one (`{row['command']}`; {conditions(row)})."
        )
    for row in (row for row in rows if row["what"] == "between cells"):
        parts.append(
            f"- Between the end of a cell and the beginning of the next: {row['ms_per_cell']} milliseconds (mean of "
            f"{row['cells']}; {conditions(row)})."
        )
    return parts


def kills() -> list[str]:
    """Whether killed grids ended as undisturbed ones did."""
    parts = []
    for row in record("speed/crash.json") or []:
        when = ", ".join(f"{kill['after_seconds']:.0f}" for kill in row["kills"])
        same = "the same" if row["tables_equal"] else "NOT the same"
        untouched = "untouched" if row["finished_untouched"] else "NOT untouched"
        parts.append(
            f"- {row['cells']} cells on {set_title(row['task'])}, killed with SIGKILL {when} seconds after a start: "
            f"scores {same}, files of finished cells {untouched} (`{row['command']}`; {conditions(row)})."
        )
    return parts


def gpu() -> str:
    """Runs per GPU hour, through the grid and one after another."""
    rows = [row for row in record("speed/grid.json") or [] if row.get("runs_per_hour") and "cuda" in row["device"]]
    sides = {(row["what"], row["side"]): row for row in rows}
    lines = []
    for task in dict.fromkeys(what for what, _ in sides):
        grid, alone = sides.get((task, "grid")), sides.get((task, "alone"))
        if grid and alone:
            gain = f"{grid['runs_per_hour'] / alone['runs_per_hour']:.2f}"
            known = [accuracy(alone), accuracy(grid)]
            rates = [f"{row['runs_per_hour']:.1f}" for row in (alone, grid)]
            lines.append(
                [set_title(task), f"{alone['cells']} and {grid['cells']}", *rates, gain, *known, conditions(grid)]
            )
    header = [
        "",
        "cells",
        "runs an hour, alone",
        "by the grid",
        "times",
        "accuracy, alone",
        "by the grid",
        "measured on",
    ]
    halves = [
        ONE_SIDE.format(
            task=set_title(task),
            cells=row["cells"],
            rate=row["runs_per_hour"],
            mps=" under MPS" * row.get("mps", False),
            conditions=conditions(row),
        )
        for (task, side), row in sides.items()
        if side == "grid" and (task, "alone") not in sides
    ]
    both = joined(MPS, table(header, lines)) if lines else ""
    return joined(*filter(None, [both, *halves])) or NO_MPS


def accuracy(row: Mapping[str, Any]) -> str:
    values = [each["accuracy"] for each in row["scores"].values()]
    return f"{100 * mean(values):.2f}"


def cluster() -> str:
    """What was seen on two Ray nodes of one machine."""
    rows = {row["what"]: row for row in record("speed/cluster.json") or []}
    parts = []
    if row := rows.get("cells"):
        found = "Each was" if row["checks"]["each_done_once"] else "NOT each was"
        same = "the same" if row["checks"]["same_bytes"] else "NOT the same"
        parts.append(
            f"- {row['cells']} cells on the digits, each training for {row['least_seconds_of_training']:.0f} seconds "
            "or more, on two nodes of one core, of which a process was killed by SIGKILL, then a whole node. "
            f"{found} done once; weights, logs and raw scores are {same}, byte for byte, as without Ray "
            f"(`{row['command']}`; {conditions(row)})."
        )
        parts.append(
            f"- From the end of a cell to that of the next one of the same process, if the cell does nothing: "
            f"{row['overhead_ms_per_cell']:.0f} milliseconds; until the first one, with the start of the process: "
            f"{row['seconds_until_first_cell']:.0f} seconds."
        )
    if row := rows.get("predict"):
        same = "the same, byte for byte," if row["same_bytes"] else "NOT the same"
        data = f", by Ray Data {row['data_seconds_scoring']:.0f}" if "data_seconds_scoring" in row else ""
        parts.append(
            f"- {row['pictures']:,} PNG files: the output of two nodes is {same} as that of this machine, in "
            f"{row['tasks_seconds']:.0f} seconds beside {row['here_seconds']:.0f} on the same two cores. Scoring by "
            f"tasks took {row['tasks_seconds_scoring']:.0f} seconds{data} "
            f"(`{row['command']}`; {conditions(row)})."
        )
    return joined(NODES, "\n".join(parts)) if parts else ""


def conditions(row: Mapping[str, Any]) -> str:
    return f"{row['device']}, torch {row['versions']['torch']}, {short(row['commit'])}"


BLOCKS = {"model": model, "paper": whole_paper, "machine": machine, "gpu": gpu, "cluster": cluster}


def scale(text: str) -> str:
    """The page with its figures made anew."""
    for name, made in BLOCKS.items():
        begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
        before, rest = text.split(begin)
        words = [begin, made().strip(), end]
        text = before + "\n\n".join(filter(None, words)) + rest.split(end)[1]
    return text


def main() -> None:
    PAGE.write_text(scale(PAGE.read_text()))


if __name__ == "__main__":
    main()
