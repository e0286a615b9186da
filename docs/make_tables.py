"""What the pages of results share: reading results/, and words for values, data sets and commits."""

import json
from functools import cache
from pathlib import Path
from statistics import mean, stdev
from typing import Any

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "results"
Record = dict[str, Any]
used: set[Path] = set()
"""Files that the pages show."""


@cache
def read(path: Path) -> Any:
    used.add(path)
    return json.loads(path.read_text())


def record(name: str) -> Any:
    """What a file of results/ holds; None where it is missing."""
    path = RESULTS / name
    return read(path) if path.exists() else None


def records(folder: str) -> dict[str, Any]:
    """What the files of a folder of results/ hold, by their names; nothing where it is missing."""
    return {path.stem: read(path) for path in sorted((RESULTS / folder).glob("*.json"), key=lambda path: path.stem)}


def joined(*sections: str) -> str:
    """A page of those sections that have something to show."""
    return "\n\n".join(section.strip() for section in sections if section) + "\n"


def ours(values: list[float | None]) -> str:
    """Fractions as percent: mean ± standard deviation, or the value of a single seed."""
    known = [100 * value for value in values if value is not None]
    if not known:
        return "–"
    return f"{mean(known):.2f}" + (f" ± {stdev(known):.2f}" if len(known) > 1 else "")


def short(commit: str | None) -> str:
    """Seven digits; a + says that the tree had changes."""
    return commit[:7] + "+" * commit.endswith("+") if commit else "–"


def percent(value: float) -> str:
    return f"{100 * value:.1f}"


def table(header: list[str], rows: list[list[str]], left: int = 1) -> str:
    """A Markdown table whose first columns are aligned to the left."""
    lines = [header, ["---"] * left + ["--:"] * (len(header) - left), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)
