"""How long cells took, by the records of finished ones, and what others are expected to take."""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from statistics import mean, median
from typing import Any

from uqgan.cells import Cell, config_of, title_of
from uqgan.methods import METHODS

RECORDS = ("scores.json", "validation_scores.json", "seed-*.json")
MEMBERS = "members"
"""Stage in which members of an ensemble are trained side by side; they are stages of their own beside it."""

Key = tuple[str, str, str]
"""Task, method, and kind of device."""


@dataclass
class Times:
    """Seconds of finished cells by task, method and kind of device, each with a digest of its settings."""

    seconds: dict[Key, list[tuple[str, float]]] = field(default_factory=lambda: defaultdict(list))

    @staticmethod
    def recorded(folders: Iterable[Path]) -> "Times":
        """Those of all records in folders and below them."""
        found = Times()
        for file in sorted({file for place in folders for name in RECORDS for file in place.rglob(name)}):
            try:
                record = json.loads(file.read_bytes())
                key = (title_of(record["task"]), str(record["method"]), str(record["device"]).partition(" ")[0])
                own = _own(record["method"], record.get("settings") or {})
                found.seconds[key].append((own, _whole(record)))
            except (OSError, ValueError, KeyError, TypeError, AttributeError):
                continue
        return found

    def add(self, cell: Cell, device: str, seconds: float) -> None:
        """Take note of a cell that has been finished."""
        self.seconds[title_of(cell.task), cell.method, device].append((_settings(cell), seconds))

    def expected(self, cell: Cell, device: str) -> float | None:
        """Seconds that a cell may take on a kind of device if nothing of it is trained yet; None if none like it ended.

        Those with the same settings tell best; without one, all of its method on its task do.
        """
        found = self.seconds.get((title_of(cell.task), cell.method, device), [])
        alike = [seconds for settings, seconds in found if settings == _settings(cell)]
        return median(alike or [seconds for _, seconds in found]) if found else None

    def left(self, cells: Iterable[Cell], device: str) -> float | None:
        """Seconds of all these cells, one after another; those of unknown methods count as the mean of the others.

        The others are methods finished on the same task, or else those of these cells. A classifier that several cells
        need is counted once.
        """
        cells = list(cells)
        expected = [self.expected(cell, device) for cell in cells]
        known = [seconds for seconds in expected if seconds is not None]
        total, counted = 0.0, set[str]()
        for cell, seconds in zip(cells, expected, strict=True):
            alike = self._medians(cell.task, device) or known
            if seconds is None and not alike:
                return None
            whole = mean(alike) if seconds is None else seconds
            total += whole * len(cell.work - counted) / len(cell.work)
            counted |= cell.work
        return total if cells else None

    def _medians(self, task: str, device: str) -> list[float]:
        """What each method took on a task."""
        found = (each for key, each in self.seconds.items() if key[::2] == (title_of(task), device))
        return [median(seconds for _, seconds in each) for each in found]


@cache
def _settings(cell: Cell) -> str:
    return _own(cell.method, config_of(cell).model_dump())


def _own(method: str, settings: Mapping[str, Any]) -> str:
    """The settings that a method reads, as text to compare."""
    return json.dumps([settings.get(name) for name in METHODS[method].sections], sort_keys=True)


def _whole(record: dict[str, Any]) -> float:
    """Seconds of a training with all its stages, as if none had been taken from the cache."""
    stages = record.get("stage_seconds") or {}
    return max(float(record["seconds"]), sum(float(seconds) for name, seconds in stages.items() if name != MEMBERS))
