"""Training times of finished cells, from their records, and estimates for others."""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

from uqgan.environment import training_seconds
from uqgan.grid.cells import Cell, config_of, title_of
from uqgan.methods import METHODS
from uqgan.methods.facts import costs

RECORDS = ("scores.json", "validation_scores.json", "seed-*.json")

Key = tuple[str, str, str]
"""Key of a time: task, method, and kind of device."""


@dataclass
class Times:
    """Seconds of finished cells by task, method and kind of device, each with a digest of its settings."""

    seconds: dict[Key, list[tuple[str, float]]] = field(default_factory=lambda: defaultdict(list))

    @staticmethod
    def recorded(folders: Iterable[Path]) -> "Times":
        """Times of all records in these folders and below."""
        found = Times()
        for file in sorted({file for place in folders for name in RECORDS for file in place.rglob(name)}):
            try:
                record = json.loads(file.read_bytes())
                key = (title_of(record["task"]), str(record["method"]), str(record["device"]).partition(" ")[0])
                own = _own(record["method"], record.get("settings") or {})
                found.seconds[key].append((own, training_seconds(record)))
            except (OSError, ValueError, KeyError, TypeError, AttributeError):
                continue
        return found

    def add(self, cell: Cell, device: str, seconds: float) -> None:
        """Add the time of a finished cell."""
        self.seconds[title_of(cell.task), cell.method, device].append((_settings(cell), seconds))

    def expected(self, cell: Cell, device: str) -> float | None:
        """Estimate for a cell on a kind of device, in seconds, without cached networks; None without similar cells.

        Cells with the same settings are used, or else all of its method on its task.
        """
        found = self.seconds.get((title_of(cell.task), cell.method, device), [])
        alike = [seconds for settings, seconds in found if settings == _settings(cell)]
        return median(alike or [seconds for _, seconds in found]) if found else None

    def left(self, cells: Iterable[Cell], device: str) -> float | None:
        """Estimate for these cells in sequence, in seconds; that of an unknown method is scaled from other methods.

        The others are methods finished on the same task, or else those of these cells. A classifier that several cells
        need is counted once.
        """
        cells = list(cells)
        expected = [self.expected(cell, device) for cell in cells]
        known = [
            seconds / cost(cell.method) for cell, seconds in zip(cells, expected, strict=True) if seconds is not None
        ]
        total, counted = 0.0, set[str]()
        for cell, seconds in zip(cells, expected, strict=True):
            units = self._units(cell.task, device) or known
            if seconds is None and not units:
                return None
            whole = cost(cell.method) * median(units) if seconds is None else seconds
            total += whole * len(cell.work - counted) / len(cell.work)
            counted |= cell.work
        return total if cells else None

    def _units(self, task: str, device: str) -> list[float]:
        """Time of each method on a task, divided by its relative cost."""
        found = ((key[1], each) for key, each in self.seconds.items() if key[::2] == (title_of(task), device))
        return [median(seconds for _, seconds in each) / cost(method) for method, each in found]


def cost(method: str) -> float:
    """Cost of training by a method, relative to `max-softmax`."""
    return float(costs()["methods"].get(method, {"training": 1.0})["training"])


@cache
def _settings(cell: Cell) -> str:
    return _own(cell.method, config_of(cell).model_dump())


def _own(method: str, settings: Mapping[str, Any]) -> str:
    """Settings that a method reads, as text for comparison."""
    return json.dumps([settings.get(name) for name in METHODS[method].sections], sort_keys=True)
