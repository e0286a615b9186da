"""Scores as tables on the terminal."""

from typing import Any

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.markup import escape
from rich.table import Table

MOST_CLASSES, LOWEST, WIDEST = 20, 5, 24
"""Limits: classes that are shown in full, classes shown of more than that, and characters of a class's name."""


def show_scores(found: dict[str, Any]) -> None:
    """Print the scores of a run as a table on standard output."""
    scores, intervals = found["scores"], found["intervals"]

    def cell(value: float | None, ends: list[float] | None) -> str:
        if value is None:
            return "–"
        return f"{100 * value:.2f}" + (f" ({100 * ends[0]:.1f} – {100 * ends[1]:.1f})" if ends else "")

    table = Table("%", "value (95 % interval)", title="known classes", title_justify="left")
    for key, title in (("accuracy", "accuracy"), ("auroc_sf", "AUROC success/failure"), ("ece", "ECE")):
        table.add_row(title, cell(scores[key], intervals[key]))
    out = Console(highlight=False)
    out.print(table)
    if "tempered" in found:
        beside = found["tempered"]
        out.print(f"ECE of probabilities at temperature {beside['temperature']:.3f}: {cell(beside['ece'], None)}")
    for line in class_lines(scores):
        out.print(line, markup=False, soft_wrap=True)
    if not scores["sets"] and not found["missing"]:
        return
    table = Table(
        "%", "AUROC", "AUROC by foreignness", "FPR95 (known positive)", title="OoD sets", title_justify="left"
    )
    for name, row in scores["sets"].items():
        ends, other = intervals["sets"][name], scores["foreignness"][name]["auroc"]
        table.add_row(
            escape(name),
            cell(row["auroc"], ends["auroc"]),
            cell(other, intervals["foreignness"][name]["auroc"]),
            cell(row["fpr95_id_positive"], ends["fpr95_id_positive"]),
        )
    for name in found["missing"]:
        table.add_row(escape(name), "left out", "left out", "left out")
    out.print(table)
    for name, why in found["missing"].items():
        out.print(f"{name}: left out, {why}", markup=False, soft_wrap=True)
    if "decisions" in found:
        out.print(decisions_table(found["decisions"]))
    if "no_decisions" in found:
        out.print(f"no decisions: {found['no_decisions']}", markup=False, soft_wrap=True)


def class_lines(scores: dict[str, Any]) -> list[str]:
    """Accuracy per class and confusion matrix as text; of many classes those with the lowest accuracy."""
    rows = scores.get("per_class", [])
    if len(rows) > MOST_CLASSES:
        lowest = sorted((row for row in rows if row["n"]), key=lambda row: row["accuracy"])[:LOWEST]
        words = ", ".join(f"{row['class']} {100 * row['accuracy']:.1f} (n {row['n']})" for row in lowest)
        return [f"lowest accuracy of {len(rows)} classes, in %: {words}"]
    width = min(WIDEST, max(5, *(cell_len(row["class"]) for row in rows))) if rows else 0
    digits = max((len(str(n)) for row in scores.get("confusion", []) for n in row), default=1)
    lines = []
    for k, (row, counts) in enumerate(zip(rows, scores.get("confusion", []), strict=True)):
        share = "–" if row["accuracy"] is None else f"{100 * row['accuracy']:.1f}"
        cells = " ".join(f"{n or '·':>{max(digits, 2)}}" for n in counts)
        lines.append(f"{k:>2} {set_cell_size(row['class'], width)} {row['n']:>6} {share:>6}  {cells}")
    numbers = " ".join(f"{k:>{max(digits, 2)}}" for k in range(len(rows)))
    heading = f"   {'class':<{width}} {'n':>6} {'%':>6}  {numbers}  predicted as"
    return [heading, *lines] if lines else []


def decisions_table(decisions: dict[str, Any]) -> Table:
    """Print rates of the decisions: shares flagged and of each word, coverage and size of the prediction sets."""
    keys = [key for key in decisions["known"] if key not in ("n", "set_size", "coverage")]
    table = Table("%", *keys, "coverage", "classes in a set", title="decisions", title_justify="left")
    for name, row in {"known": decisions["known"], **decisions["sets"]}.items():
        shares = [f"{100 * row[key]:.1f}" for key in keys]
        covered = f"{100 * row['coverage']:.1f}" if "coverage" in row else "–"
        table.add_row(escape(name), *shares, covered, f"{row['set_size']:.2f}")
    return table
