"""What the pages of results share: reading results/, and words for values, data sets and commits."""

import json
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from uqgan.paper.results import ORIGIN, check_keys, check_origin

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "results"
Record = dict[str, Any]
used: set[Path] = set()
"""Files that the pages show."""


MADE = ("command", "commit", "device", "versions")
NEEDED: dict[str, tuple[str, ...]] = {
    "causes.json": (),  # reasons in words, with figures of the records
    "*/uqgan-against-one-vs-all.json": (),  # worked out from the records beside it
    "speed/authors.json": (),  # of the authors' program
    "speed/iteration.json": ("commit", "device", "versions"),  # its command stands above the table
    "speed/*.json": MADE,
    "toys/*.json": (*MADE, "seconds"),
    "backbones/*.json": ("command", "commit"),  # its runs have their devices
    "decisions/*.json": (*MADE, "seconds"),
    "studies/digits-lambda-reg.json": (*MADE, "seconds"),  # these two are older than digests of raw scores
    "studies/digits-regulariser.json": (*MADE, "seconds"),
    "studies/*.json": (*MADE, *ORIGIN),
    "*/detection.json": (*MADE, "seconds"),
    "*/retrained.json": (*MADE, *ORIGIN),
}
"""What the records of each kind of file must have; first fits count, and all other files are records of runs."""


@cache
def read(path: Path) -> Any:
    """What a file of results/ holds; one that does not say how it was made is refused."""
    used.add(path)
    found = json.loads(path.read_text())
    name = path.relative_to(RESULTS).as_posix()
    for pattern, keys in NEEDED.items():
        if fnmatch(name, pattern):
            for each in rows(found):
                check_keys(path, each, keys)
            return found
    check_origin(path, found)
    return found


def rows(found: Any) -> list[Record]:
    """The records in a file: one, several, or the points of a study, each with the facts that they share."""
    if isinstance(found, list):
        return found
    return [{**found.get("facts", {}), **point} for point in found["points"]] if "points" in found else [found]


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
