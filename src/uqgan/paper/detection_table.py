"""Tables of joint detection: results of the runs of a task, beside the paper's values."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from uqgan import paper
from uqgan.detection import GROUPS, KINDS
from uqgan.methods import METHODS
from uqgan.paper.layouts import MARKS, Line, Text, values_of
from uqgan.paper.reproduction import Cell, Ours

Record = Mapping[str, Any]
"""Result of joint detection for one run, as `uqgan detect` saves it."""
TITLES = {"tp": "TP", "fp": "FP", "ood": "OoD"}
WORDS = {"scores_and_probs": "scores and probabilities", "scores": "scores only"}
COLUMNS = tuple((kind, group) for kind in KINDS for group in GROUPS)
"""Columns in the paper's order."""


@dataclass(frozen=True)
class Row:
    """Records of one method with equal settings except for the seed."""

    method: str
    title: str
    records: tuple[Record, ...]


def table_lines(task: str, rows: Sequence[Row]) -> list[Line]:
    """Lines of each row: the paper's values, ours, and the difference, with a verdict if both had the same OoD sets."""
    made = []
    for row in rows:
        cells = [cell_of(task, row, kind, group) for kind, group in COLUMNS]
        same = all(set(record["tested_on"]["ood"]) == set(paper.sizes(task)) for record in row.records)
        title = row.title
        for who, texts in values_of(cells).items():
            shown = texts if same else tuple(map(without_verdict, texts))
            made.append(Line(title, who, str(len(row.records)) if who == "ours" else "", shown))
            title = ""
    return made


def without_verdict(text: Text) -> Text:
    return replace(text, words=text.words.rstrip("".join(MARKS.values())), verdict="")


def cell_of(task: str, row: Row, kind: str, group: str) -> Cell:
    """Accuracy on a group over the runs, in percent; runs without samples of it are left out."""
    found = [record[kind]["per_class"][group] for record in row.records]
    values = tuple(100 * value for value in found if value is not None)
    return Cell(group, paper.detection_value(task, row.method, kind, group), Ours(values) if values else None)


def rows_of_methods(task: str, records: Sequence[Record]) -> list[Row]:
    """Rows of the methods in the paper's table, and of others with records, in the order of METHODS."""
    rows = []
    for name, method in METHODS.items():
        own = tuple(record for record in records if record["method"] == name)
        if own or paper.detection_value(task, name, *COLUMNS[0]):
            rows.append(Row(name, method.title, own))
    return rows


def header() -> list[str]:
    return [f"{TITLES[group]}, {WORDS[kind]}" for kind, group in COLUMNS]


def markdown(task: str, rows: Sequence[Row]) -> str:
    """Table as Markdown."""
    lines = [["method", "from", "seeds", *header()], ["---", "---", *["--:"] * (1 + len(COLUMNS))]]
    lines += [
        [line.method, line.who, line.seeds, *(text.words for text in line.cells)] for line in table_lines(task, rows)
    ]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def confusion_markdown(records: Sequence[Record], kind: str) -> str:
    """Confusion matrix in percent, averaged over the runs: group (row), prediction (column)."""
    lines = [["", *(f"taken for {TITLES[group]}" for group in GROUPS)], ["---", "--:", "--:", "--:"]]
    for k, group in enumerate(GROUPS):
        shares = [
            [n / sum(one[kind]["confusion"][k]) for n in one[kind]["confusion"][k]]
            for one in records
            if sum(one[kind]["confusion"][k])
        ]
        means = [f"{100 * sum(column) / len(shares):.2f}" for column in zip(*shares, strict=True)] or ["–"] * 3
        lines.append([TITLES[group], *means])
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)
