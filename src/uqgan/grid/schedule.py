"""A grid of cells: which are done, which come next, and how each ended, independently of processes and clusters.

An executor (`pool`, `cluster`) takes cells from a `Schedule`, runs them, and reports every `Event`.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from uqgan.data.dataset import Say, silent
from uqgan.data.tasks import Task, load_task
from uqgan.grid.cells import Cell, has_failed, is_done
from uqgan.methods import METHODS

State = Literal["waiting", "running", "done", "stopped", "failed"]
MOST_LOSSES = 3
"""Number of lost processes after which a cell counts as failed."""


@dataclass(frozen=True)
class Event:
    """An event of a cell: it started, made progress, or ended."""

    cell: Cell
    state: State
    text: str = ""
    """Its stage, a note, or the reason why it stopped or failed."""
    step: int = 0
    total: int = 0
    seconds_left: float = 0.0
    """Estimated remaining time of the present stage; 0 without an estimate."""
    worker: str = ""
    """Name of the worker that runs it."""


Report = Callable[[Event], None]


@dataclass(frozen=True)
class Terms:
    """Conditions common to all cells of a grid."""

    root: Path
    """Folder of the results."""
    device: str = "auto"
    data_root: Path | None = None
    """Folder of the paper's data sets; UQGAN_DATA if not given."""
    image_size: int | None = None
    """Size for user-supplied pictures; chosen by the pictures if not given."""
    skip_broken: bool = False
    """Whether unreadable pictures are left out."""
    max_minutes: float | None = None
    """Time limit after which running cells are stopped, to be resumed later."""

    def load(self, task: str, say: Say = silent) -> Task:
        """Function that loads the data of a task."""
        return load_task(task, 0, self.data_root, self.image_size, None, self.skip_broken, say)


class Executor(Protocol):
    """Runner of all cells of a schedule, which reports every event, and returns when no cell can continue.

    A cell whose process died is rescheduled (`Schedule.lose`); one that raised an error is reported as failed, with the
    error saved in its folder (`cells.keep_failure`). On Ctrl-C running cells save their states, and it is raised again.
    """

    def __call__(self, schedule: "Schedule", terms: Terms, report: Report) -> None: ...


@dataclass
class Schedule:
    """Remaining cells, in an order that avoids loading, compiling and training anything twice."""

    waiting: list[Cell]
    running: list[Cell] = field(default_factory=list)
    losses: dict[Cell, int] = field(default_factory=dict)

    @staticmethod
    def of(cells: Iterable[Cell]) -> "Schedule":
        """Order of cells: those with the same networks and data are adjacent, ensembles come after their members."""
        cells = list(cells)
        tasks = list(dict.fromkeys(cell.task for cell in cells))
        order = {cell: k for k, cell in enumerate(cells)}

        def place(cell: Cell) -> tuple[int, int, int]:
            return tasks.index(cell.task), METHODS[cell.method].members, order[cell]

        return Schedule(sorted(cells, key=place))

    def __bool__(self) -> bool:
        return bool(self.waiting or self.running)

    def take(self, last: Cell | None = None, fits: Callable[[Cell], bool] = lambda _: True) -> Cell | None:
        """Next cell for a worker that ran `last` before; None if all remaining cells need classifiers in training.

        A worker keeps the task and kind of network that it has loaded and compiled as long as possible.
        A cell without room beside the running ones waits.
        """
        busy = frozenset[str]().union(*(cell.work for cell in self.running))
        free = [cell for cell in self.waiting if not cell.work & busy and fits(cell)]
        if not free:
            return None
        chosen = min(free, key=lambda cell: _distance(cell, last, self.running))
        self.waiting.remove(chosen)
        self.running.append(chosen)
        return chosen

    def finish(self, cell: Cell) -> None:
        self.running.remove(cell)

    def lose(self, cell: Cell) -> bool:
        """Reschedule a cell whose process died; False if that happened too often."""
        self.running.remove(cell)
        self.losses[cell] = self.losses.get(cell, 0) + 1
        if self.losses[cell] < MOST_LOSSES:
            self.waiting.insert(0, cell)
            return True
        return False


def _distance(cell: Cell, last: Cell | None, running: Sequence[Cell]) -> tuple[bool, bool, bool]:
    """Cost for a worker that ran `last`: data to load, networks to compile, classifiers to wait for."""
    method = METHODS[cell.method]
    needs_autoencoder = "autoencoder" in method.recipe.SETTINGS
    twins = [one for one in running if (one.task, one.seed) == (cell.task, cell.seed)]
    waits = needs_autoencoder and any("autoencoder" in METHODS[one.method].recipe.SETTINGS for one in twins)
    other_task = last is not None and last.task != cell.task
    other_network = last is not None and METHODS[last.method].section != method.section
    return other_task, waits, other_network


@dataclass
class Survey:
    """State of a grid before it runs."""

    done: list[Cell]
    failed: list[Cell]
    """Cells that failed before and are not retried."""
    to_do: list[Cell]


def survey(cells: Iterable[Cell], root: Path, retry_failed: bool = False) -> Survey:
    """Sort the cells by their state on the disk."""
    found = Survey([], [], [])
    for cell in cells:
        if is_done(cell, root):
            found.done.append(cell)
        elif has_failed(cell, root) and not retry_failed:
            found.failed.append(cell)
        else:
            found.to_do.append(cell)
    return found
