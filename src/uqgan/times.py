"""How long cells took, by the records of finished ones, and what others are expected to take."""

import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, median
from typing import Any

from uqgan.cells import Cell, title_of

RECORDS = ("scores.json", "validation_scores.json", "seed-*.json")
MEMBERS = "members"
"""Stage in which members of an ensemble are trained side by side; they are stages of their own beside it."""


@dataclass
class Times:
    """Seconds of finished cells by task, method and kind of device."""

    seconds: dict[tuple[str, str, str], list[float]] = field(default_factory=lambda: defaultdict(list))

    @staticmethod
    def recorded(folders: Iterable[Path]) -> "Times":
        """Those of all records in folders and below them."""
        found = Times()
        for file in sorted({file for place in folders for name in RECORDS for file in place.rglob(name)}):
            try:
                record = json.loads(file.read_bytes())
                key = (title_of(record["task"]), str(record["method"]), str(record["device"]).partition(" ")[0])
                found.seconds[key].append(_whole(record))
            except (OSError, ValueError, KeyError, TypeError, AttributeError):
                continue
        return found

    def add(self, cell: Cell, device: str, seconds: float) -> None:
        """Take note of a cell that has been finished."""
        self.seconds[title_of(cell.task), cell.method, device].append(seconds)

    def expected(self, cell: Cell, device: str) -> float | None:
        """Seconds that a cell may take on a kind of device; None if none like it has been finished."""
        found = self.seconds.get((title_of(cell.task), cell.method, device))
        return median(found) if found else None

    def left(self, cells: Iterable[Cell], device: str) -> float | None:
        """Seconds of all these cells, one after another; those of unknown methods count as the mean of the others.

        The others are methods finished on the same task, or else those of these cells.
        """
        cells = list(cells)
        expected = [self.expected(cell, device) for cell in cells]
        known = [seconds for seconds in expected if seconds is not None]
        total = 0.0
        for cell, seconds in zip(cells, expected, strict=True):
            alike = [median(found) for key, found in self.seconds.items() if key[::2] == (title_of(cell.task), device)]
            if seconds is None and not (alike or known):
                return None
            total += mean(alike or known) if seconds is None else seconds
        return total if cells else None


def _whole(record: dict[str, Any]) -> float:
    """Seconds of a training with all its stages, as if none had been taken from the cache."""
    stages = record.get("stage_seconds") or {}
    return max(float(record["seconds"]), sum(float(seconds) for name, seconds in stages.items() if name != MEMBERS))
