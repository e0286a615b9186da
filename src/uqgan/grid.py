"""A grid of cells: which are done, which come next, and what became of each. It knows nothing of processes or clusters.

An executor (`pool`, `cluster`) takes cells from a `Schedule`, runs them anywhere, and reports every `Event`.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from uqgan.cells import Cell, has_failed, is_done
from uqgan.data.dataset import Say, silent
from uqgan.data.tasks import Task, load_task
from uqgan.methods import METHODS

State = Literal["waiting", "running", "done", "stopped", "failed"]
MOST_LOSSES = 3
"""Times that a cell may lose the process that ran it before it counts as failed."""


@dataclass(frozen=True)
class Event:
    """Something that happened to a cell: it began, went on by some steps, or came to an end."""

    cell: Cell
    state: State
    text: str = ""
    """What it says: its stage, a note, or why it stopped or failed."""
    step: int = 0
    total: int = 0
    seconds_left: float = 0.0
    """Estimate for the present stage; 0 if there is none."""
    worker: str = ""
    """Who runs it."""


Report = Callable[[Event], None]


@dataclass(frozen=True)
class Terms:
    """What all cells of a grid have in common."""

    root: Path
    """Folder of the results."""
    device: str = "auto"
    data_root: Path | None = None
    """Folder of the paper's data sets; UQGAN_DATA if not given."""
    image_size: int | None = None
    """Size at which own pictures are seen; chosen by what is there if not given."""
    skip_broken: bool = False
    """Whether pictures that cannot be read are left out."""
    max_minutes: float | None = None
    """Time after which running cells are stopped, to be gone on with later."""

    def load(self, task: str, say: Say = silent) -> Task:
        """Data of a task."""
        return load_task(task, 0, self.data_root, self.image_size, None, self.skip_broken, say)


class Executor(Protocol):
    """Runs all cells of a schedule, each to its end, and reports every event. It returns when none can go on.

    A cell whose process died is put back (`Schedule.lose`); one that raised an error is reported as failed, with the
    error kept in its folder (`cells.keep_failure`). Ctrl-C lets running cells save their state and is raised again.
    """

    def __call__(self, schedule: "Schedule", terms: Terms, report: Report) -> None: ...


@dataclass
class Schedule:
    """Cells still to do, in an order in which they share work and do little twice."""

    waiting: list[Cell]
    running: list[Cell] = field(default_factory=list)
    losses: dict[Cell, int] = field(default_factory=dict)

    @staticmethod
    def of(cells: Iterable[Cell]) -> "Schedule":
        """Cells of the same networks and data stand together; ensembles come after the members that they consist of."""
        cells = list(cells)
        tasks = list(dict.fromkeys(cell.task for cell in cells))
        order = {cell: k for k, cell in enumerate(cells)}

        def place(cell: Cell) -> tuple[int, int, int]:
            return tasks.index(cell.task), METHODS[cell.method].members, order[cell]

        return Schedule(sorted(cells, key=place))

    def __bool__(self) -> bool:
        return bool(self.waiting or self.running)

    def take(self, last: Cell | None = None, fits: Callable[[Cell], bool] = lambda _: True) -> Cell | None:
        """Next cell for a worker that ran `last` before; None if all that wait need what others are training now.

        A worker stays with the task and the kind of network that it has loaded and compiled, as long as there are any.
        A cell that does not fit beside those that run waits.
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
        """Put back a cell whose process died; False if that happened too often."""
        self.running.remove(cell)
        self.losses[cell] = self.losses.get(cell, 0) + 1
        if self.losses[cell] < MOST_LOSSES:
            self.waiting.insert(0, cell)
            return True
        return False


def _distance(cell: Cell, last: Cell | None, running: Sequence[Cell]) -> tuple[bool, bool, bool]:
    """What a worker that ran `last` would have to load, compile, or wait for."""
    method = METHODS[cell.method]
    needs_autoencoder = "autoencoder" in method.recipe.SETTINGS
    twins = [one for one in running if (one.task, one.seed) == (cell.task, cell.seed)]
    waits = needs_autoencoder and any("autoencoder" in METHODS[one.method].recipe.SETTINGS for one in twins)
    other_task = last is not None and last.task != cell.task
    other_network = last is not None and METHODS[last.method].section != method.section
    return other_task, waits, other_network


@dataclass
class Survey:
    """What is there of a grid before it runs."""

    done: list[Cell]
    failed: list[Cell]
    """Failed before, and left alone."""
    to_do: list[Cell]


def survey(cells: Iterable[Cell], root: Path, retry_failed: bool = False) -> Survey:
    """Sort the cells by what is there of them."""
    found = Survey([], [], [])
    for cell in cells:
        if is_done(cell, root):
            found.done.append(cell)
        elif has_failed(cell, root) and not retry_failed:
            found.failed.append(cell)
        else:
            found.to_do.append(cell)
    return found
