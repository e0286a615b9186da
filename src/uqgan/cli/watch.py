"""Progress of a grid: a live table on a terminal, elsewhere lines at start and end of cells, and every half minute."""

import time
from collections import Counter
from types import TracebackType

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from uqgan.cli.app import Voice
from uqgan.grid.cells import FAILED, Cell
from uqgan.grid.schedule import Event, State, Survey, Terms
from uqgan.grid.times import Times
from uqgan.progress import LINE_SECONDS, spell

ENDS = {"done": "done", "failed": "failed", "stopped": "stopped", "waiting": "lost"}
"""Words for the outcomes of a cell."""


class Watch:
    """Receiver of the events of a grid, which shows its progress within the block."""

    def __init__(self, found: Survey, terms: Terms, times: Times, device: str, voice: Voice) -> None:
        self.terms, self.times, self.device = terms, times, device
        self.console, self.verbose = voice.console(), voice.verbose
        self.states: dict[Cell, State] = dict.fromkeys(found.to_do, "waiting")
        self.before = Counter(done=len(found.done), failed=len(found.failed))
        self.latest: dict[Cell, Event] = {}
        self.began: dict[Cell, float] = {}
        self._said = time.monotonic()
        live = self.console.is_terminal and not self.console.quiet
        self._live = Live(console=self.console, transient=True, get_renderable=self.table) if live else None

    def __enter__(self) -> "Watch":
        if self._live:
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self._live:
            self._live.stop()

    def __call__(self, event: Event) -> None:
        """Handle an event of an executor."""
        cell, fresh = event.cell, self.states.get(event.cell) != "running"
        self.states[cell] = event.state
        if event.state != "running":
            self._end(event)
        elif fresh:
            self.began[cell], self.latest[cell] = time.monotonic(), event
            if not self._live:
                self.say(f"{cell.name}: begins")
        elif event.total:
            self.latest[cell] = event
        elif self.verbose:
            self.say(f"{cell.name}: {event.text}")
        if not self._live and time.monotonic() - self._said >= LINE_SECONDS:
            self._said = time.monotonic()
            self.say("; ".join([*(_words(self.latest[each]) for each in self.running), self.summary]))

    def say(self, sentence: str) -> None:
        """Print one line, above the table if there is one."""
        self.console.print(sentence, markup=False, soft_wrap=True)

    @property
    def running(self) -> list[Cell]:
        return [cell for cell, state in self.states.items() if state == "running"]

    @property
    def summary(self) -> str:
        """Counts of the cells, and the remaining time."""
        counts = Counter(self.states.values()) + self.before
        words = [f"{counts[state]} {state}" for state in ("done", "failed", "stopped", "running", "waiting")]
        left = self.seconds_left
        shown = [word for word in words if not word.startswith("0 ")]
        return ", ".join([*shown, *([f"about {spell(left)} left"] if left else [])])

    @property
    def seconds_left(self) -> float | None:
        """Estimate of the remaining time by cells of the same task and method; None until a cell has ended."""
        waiting = [cell for cell, state in self.states.items() if state == "waiting"]
        left = self.times.left([*waiting, *self.running], self.device)
        if left is None:
            return None
        gone = sum(time.monotonic() - self.began[cell] for cell in self.running)
        stages = [self.latest[cell].seconds_left for cell in self.running]
        return max(left - gone, *stages, 0.0) / max(1, len(stages)) if stages else left

    def table(self) -> RenderableType:
        """Table with a row per running cell, and the summary."""
        table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
        for title in ("worker", "cell", "stage", "step", "left"):
            table.add_column(title, justify="right" if title in ("step", "left") else "left", no_wrap=True)
        for cell in self.running:
            event = self.latest[cell]
            step = f"{event.step:,} of {event.total:,}" if event.total > 1 else ""
            left = spell(event.seconds_left) if event.seconds_left else ""
            table.add_row(event.worker, escape(cell.name), escape(event.text), step, left)
        return Group(table, self.summary)

    def _end(self, event: Event) -> None:
        """Record the time of a cell that has ended, and print it."""
        cell, took = event.cell, time.monotonic() - self.began.pop(event.cell, time.monotonic())
        self.latest.pop(cell, None)
        if event.state == "done":
            self.times.add(cell, self.device, took)
        why = f": {event.text}" if event.text else ""
        log = f" (see {self.terms.root / cell.name / FAILED})" if event.state == "failed" else ""
        if not self._live or event.state != "done":
            self.say(f"{cell.name}: {ENDS[event.state]} after {spell(took)}{why}{log}")


def _words(event: Event) -> str:
    """Progress of a cell as text."""
    step = f" {event.step:,} of {event.total:,}" if event.total > 1 else ""
    return f"{event.cell.name}: {event.text or 'begins'}{step}"
