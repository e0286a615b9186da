"""Progress of long operations: a bar on a terminal, elsewhere a line every half minute."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.table import Column
from rich.text import Text

LINE_SECONDS = 30.0
"""Interval between lines without a terminal, in seconds."""
SETTLED = 5
"""Number of first steps excluded from estimates, as they include compilation and graph capture."""


class Pace:
    """Number of steps done and in total, their duration, and the latest losses."""

    def __init__(self, name: str, done: int, total: int, unit: str = "step") -> None:
        self.name, self.done, self.total, self.unit = name, done, total, unit
        self.values: Mapping[str, float] = {}
        self.start = self.settled = time.monotonic()
        self.steps = 0

    def advance(self, n: int = 1) -> None:
        self.steps += n
        self.done += n
        if self.steps <= SETTLED:
            self.settled = time.monotonic()

    @property
    def judged(self) -> float:
        """Duration of the steps behind the estimate of the remaining time."""
        return time.monotonic() - self.settled if self.steps > SETTLED else 0.0

    @property
    def left(self) -> float:
        """Estimate of the remaining seconds, after more than SETTLED steps."""
        return self.judged / (self.steps - SETTLED) * (self.total - self.done)

    @property
    def words(self) -> str:
        """Progress as one line of text."""
        took = time.monotonic() - self.start
        when = f"{spell(self.left)} left" if self.judged and self.done < self.total else f"after {spell(took)}"
        return ", ".join([f"{self.name}: {self.unit} {self.done} of {self.total}", when, *pairs(self.values)])


@contextmanager
def shown(pace: Pace, console: Console) -> Iterator[Callable[[], None]]:
    """Show progress within the block; yields a function to call after each step."""
    if console.quiet or not (console.is_terminal or console.is_jupyter):
        printed = pace.start

        def print_line() -> None:
            nonlocal printed
            if time.monotonic() - printed >= LINE_SECONDS:
                printed = time.monotonic()
                console.print(pace.words, highlight=False, markup=False, soft_wrap=True)

        yield print_line
        console.print(pace.words, highlight=False, markup=False, soft_wrap=True)
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(max(4, min(20, console.width - 60)), table_column=Column(no_wrap=True)),
        MofNCompleteColumn(table_column=Column(no_wrap=True)),
        TimeRemainingColumn(table_column=Column(no_wrap=True)),
        _Losses(pace),  # the only column that may shrink
    )
    with Progress(*columns, console=console, get_time=time.monotonic) as progress:
        task = progress.add_task(pace.name, total=pace.total, completed=pace.done)
        yield lambda: progress.update(task, completed=pace.done)


class _Losses(ProgressColumn):
    """Losses and accuracy, as many as fit."""

    def __init__(self, pace: Pace) -> None:
        super().__init__()
        self.pace = pace

    def render(self, task: Task) -> "_Fitting":
        return _Fitting(pairs(self.pace.values))


class _Fitting:
    """Words on one line, as many as fit."""

    def __init__(self, words: list[str]) -> None:
        self.words = words

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(0, min(len("  ".join(self.words)), options.max_width))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        words = list(self.words)
        while words and len("  ".join(words)) > options.max_width:
            words.pop()
        yield Text("  ".join(words), no_wrap=True)


def pairs(values: Mapping[str, Any]) -> list[str]:
    return [f"{key} {value:.3g}" for key, value in values.items()]


def spell(seconds: float) -> str:
    """Duration as text."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
