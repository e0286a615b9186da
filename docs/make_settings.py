"""The pages of the paper's settings and of the digits: every method beside the paper, and short tables of them."""

import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import make_tables
from make_causes import below, order
from make_detection import detection
from make_tables import joined, read, record, short, table
from uqgan import paper
from uqgan.paper.layouts import (
    RUNS,
    counted,
    explanations,
    lines,
    markdown_table,
    runs_table,
)
from uqgan.paper.reproduction import Block, Column, Reproduction, reproduce
from uqgan.paper.results import find_results, names_of, set_title

SEEDS = {"mnist": 3, "cifar10": 3}
"""Seeds that each method should have; UQGANs should have two more."""
OTHERS = ("digits",)
"""Tasks with a page that the paper does not have."""
PAGE = """# {title}

Made by `make results` from `results/{task}/`{others}.
[Results](../results.md) has all settings."""
REPRODUCE = "; `uqgan reproduce {task}` makes such tables of other runs"
AGAIN = """## Trained again from its record

`{command}`: task, method, seed and settings of `{record}` and nothing else;
{minutes} min; {device}, torch {torch}, commit {commit}; the record is of {recorded_on}. {inside[seeds]} values
lie in the 95 % interval of a further run among the {seeds} seeds (Student's t, cut at 0 and 100 %), {inside[samples]}
in the record's own, over its test samples: on another device the same seed rounds otherwise, and soon is another
run."""


def reproduction(task: str) -> Reproduction:
    return _reproduction(task, make_tables.RESULTS)


@cache
def _reproduction(task: str, results: Path) -> Reproduction:
    """All results of a task beside the paper; one that does not say how it was made is refused."""
    found = find_results([results / task], task)
    for group in found.results.values():
        for result in group.values():
            read(result.file)
    return reproduce(task, found, resamples=0)


def tasks() -> list[str]:
    """Tasks with results: the paper's settings first."""
    return [task for task in (*paper.settings(), *OTHERS) if any(row.results for row in reproduction(task).rows)]


def conditions(found: Reproduction) -> str:
    """Command, device, versions and commits of all records of a task."""
    records = [result.record for row in found.rows for result in row.results]
    commands = {
        re.sub(r"--seed \d+", "--seed SEED", one["command"].replace(f"--method {one['method']}", "--method METHOD"))
        for one in records
    }
    devices = {f"{one['device']}, torch {one['versions']['torch']}" for one in records}
    commits = {short(one["commit"]) for one in records}
    imported = sorted(
        {f"{one['method']} seed {one['seed']}: {one['imported']}" for one in records if "imported" in one}
    )
    words = [*(f"`{command}`" for command in sorted(commands)), *sorted(devices)]
    return "; ".join([*words, f"commit {', '.join(sorted(commits))}"]) + "." + "".join(f" {each}." for each in imported)


def summary(task: str) -> str:
    """A short section: the count, what is missing, and the rows of our own methods beside the paper."""
    found = reproduction(task)
    shown = replace(found, rows=tuple(row for row in found.rows if row.method.startswith("uqgan") and row.results))
    words = [counted(found)] if task in paper.settings() else []
    missing = [f"Without {names_of(found.lacking)}."] if found.lacking else []
    link = f"Every method and set: [{set_title(task)}](results/{task}.md)."
    return joined(
        f"## {set_title(task)}", " ".join([*words, *missing, link]), markdown_table(shown, found.blocks[0])
    ).strip()


def page(task: str) -> str:
    """The page of a task."""
    found = reproduction(task)
    kept = replace(found, rows=tuple(row for row in found.rows if row.results or row.printed))
    words = [counted(found)] if task in paper.settings() else []
    words += [f"Not run yet: {', '.join(found.missing)}."] if found.missing else []
    words += filter(None, [short_of_seeds(found)]) if task in SEEDS else []
    others = REPRODUCE.format(task=task) if task in paper.settings() else ""
    parts = [PAGE.format(title=set_title(task), task=task, others=others), conditions(found), " ".join(words)]
    parts += [order(found), *explanations(found), below(found)]
    for block in found.blocks:
        if lines(kept, block):
            parts += [f"## {block.title}", markdown_table(kept, block)]
    runs = runs_table(found)
    return joined(*parts, detection(found), f"## {RUNS}\n\n{runs}" if runs else "", again(task), comparison(task))


def short_of_seeds(found: Reproduction) -> str:
    """Methods with fewer seeds than they should have."""
    least = SEEDS[found.task]
    few = [
        f"{row.method} ({len(row.results)})"
        for row in found.rows
        if row.printed and 0 < len(row.results) < least + 2 * row.method.startswith("uqgan")
    ]
    return f"Fewer seeds than {least}, of UQGANs {least + 2}: {', '.join(few)}." if few else ""


def again(task: str) -> str:
    """A recorded run that was trained again from its record alone, with the intervals in which it should lie."""
    found = record(f"{task}/retrained.json")
    if not found:
        return ""
    rows, inside = found["rows"], {}
    for kind in ("samples", "seeds"):
        known = [row[f"inside_{kind}"] for row in rows if row[kind]]
        inside[kind] = f"{sum(known)} of {len(known)}"
    words = AGAIN.format(
        **{key: found[key] for key in ("command", "record", "recorded_on", "device")},
        torch=found["versions"]["torch"],
        commit=short(found["commit"]),
        minutes=f"{found['seconds'] / 60:.0f}",
        seeds=len(found["seeds"]),
        inside=inside,
    )
    body = [
        [
            row["set"] if row["set"] in ("all", "known classes") else set_title(row["set"]),
            paper.TITLES[row["metric"]],
            *(f"{100 * row[key]:.2f}" for key in ("recorded", "retrained")),
            *(ends(row, kind) for kind in inside),
        ]
        for row in rows
    ]
    return joined(words, table(["", "", "recorded", "again", "over samples", "over seeds"], body, 2)).strip()


def ends(row: dict[str, Any], kind: str) -> str:
    """An interval of a retrained value within 0 to 100 %, marked where the value lies outside."""
    if not row[kind]:
        return "–"
    low, high = (f"{100 * min(max(end, 0.0), 1.0):.2f}" for end in row[kind])
    return f"{low} to {high}" + ("" if row[f"inside_{kind}"] else " (outside)")


def comparison(task: str) -> str:
    """AUROC of two methods on the same samples, if they were compared."""
    rows = record(f"{task}/uqgan-against-one-vs-all.json")
    if not rows:
        return ""
    seeds = sorted({row["seed"] for row in rows})
    found = {(row["set"], row["seed"]): row["difference"] for row in rows}

    def cell(d: dict[str, float]) -> str:
        return f"{100 * d['estimate']:+.2f} ({100 * d['low']:+.2f} to {100 * d['high']:+.2f})"

    sets = dict.fromkeys(row["set"] for row in rows)
    body = [[set_title(key), *(cell(found[key, seed]) for seed in seeds)] for key in sets]
    words = (
        "AUROC of `uqgan` minus that of `one-vs-all` on the same test samples (paired bootstrap, 95 % interval), by "
        f"`python benchmarks/collect.py runs/{task}`:"
    )
    return joined("## UQGAN against one-vs-all", words, table(["OoD set", *(f"seed {seed}" for seed in seeds)], body))


def readme_tables() -> str:
    """The README's table: our own methods beside the paper."""
    rows, header = [], ["", "", "accuracy", "AUROC S/F", "ECE", "AUROC near", "AUROC all", "FPR95 all"]
    for task in (task for task in tasks() if task in paper.settings()):
        found = reproduction(task)
        sets = found.sets
        known = [Column(metric) for metric in paper.KNOWN]
        block = Block("", (*known, Column("auroc", sets[:1]), *(Column(metric, sets) for metric in paper.AVERAGED)))
        own = tuple(row for row in found.compared if row.method.startswith("uqgan"))
        for line in lines(replace(found, rows=own), block):
            if line.who != "difference":
                n = f", {line.seeds} seed{'s' * (line.seeds != '1')}" if line.seeds else ""
                title = f"{set_title(task)}, {line.method}" if line.method else ""
                rows.append([title, line.who + n, *(text.words for text in line.cells)])
    lacking: dict[str, list[str]] = {}
    for task in tasks():
        lacking.setdefault(names_of(reproduction(task).lacking), []).append(set_title(task))
    out = [f"{what} is left out of {' and '.join(which)}, in both lines." for what, which in lacking.items() if what]
    words = " ".join(["Near: the other classes of the same set.", *out])
    return joined(table(header, rows, 2), words).strip() if rows else ""
