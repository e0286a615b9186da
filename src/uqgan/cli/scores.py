"""Scores as tables on the terminal."""

from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table


def show_scores(found: dict[str, Any]) -> None:
    """A run's scores as a table on standard output."""
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
