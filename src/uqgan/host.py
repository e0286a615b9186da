"""What runs on the nodes of a Ray cluster: cells of a grid, one after another, in a process that stays.

It does not import Ray when it is loaded; `cluster` makes an actor of it.
"""

import os
import platform
import shutil
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from uqgan import __version__
from uqgan.acceleration import choose_device
from uqgan.cells import Cell
from uqgan.data.tasks import Task
from uqgan.files import cache_folder, write_bytes
from uqgan.grid import Event, Terms
from uqgan.parcels import Marks, Parcel, Share, marks_of, packed, unpack
from uqgan.worker import Ended, Post, run

PATIENCE_SECONDS = 5.0
"""Seconds after which `news` answers, with or without any."""
PAUSE_SECONDS = 0.5
"""Seconds in which news are gathered."""
STATES = "resume/"
"""Start of the paths of saved states in a run's folder."""
SHELF = ".safetensors"
"""Ending of the files of the cache that are passed on."""


@dataclass(frozen=True)
class Station:
    """What a host is told when it starts."""

    terms: Terms
    device: str
    threads: int
    token: str
    """Name of a hidden file in the grid's folder, and in the cache's: who sees it shares that folder."""
    share: str | None = None
    """URL that runs go through, where the grid's folder is not seen."""


@dataclass(frozen=True)
class Arrival:
    """The first word of a host."""

    name: str
    versions: dict[str, str]
    sees_root: bool
    sees_cache: bool


@dataclass(frozen=True)
class Order:
    """A cell to run, and what it needs."""

    cell: Cell
    minutes: float | None
    task: Any
    """Reference to its data."""
    begun: Parcel
    """Files of the run, if it was begun before."""
    shelf: dict[str, Any]
    """References to files of the cache."""


@dataclass(frozen=True)
class Return:
    """How a cell ended, the files of its run where nothing is shared, and those that the cache got."""

    ended: Ended
    parcel: Parcel | None
    made: Parcel


def versions() -> dict[str, str]:
    """Versions that results depend on."""
    return {"uqgan": __version__, "torch": str(torch.__version__), "python": platform.python_version()}


class Host:
    """Runs cells in one thread, and tells of them from another."""

    def __init__(self, station: Station) -> None:
        os.environ["OMP_NUM_THREADS"] = os.environ["LOKY_MAX_CPU_COUNT"] = str(station.threads)
        self.station, self.parent = station, os.getppid()
        self.sees_root = (station.terms.root / station.token).exists()
        self.sees_cache = (cache_folder() / station.token).exists()
        root = station.terms.root if self.sees_root else Path(tempfile.mkdtemp(prefix="uqgan-"))
        self.terms = replace(station.terms, root=root)
        self.share = Share(station.share) if station.share and not self.sees_root else None
        self.device = choose_device(station.device)
        self.tasks: dict[str, Task] = {}
        self.events: list[Event] = []
        self.told = threading.Condition()
        self.running: Cell | None = None
        self.marks: Marks = {}
        self.carrying = threading.Lock()
        self.asked = False

    def arrive(self) -> Arrival:
        """Say who it is, and what it sees."""
        name = f"{platform.node()}:{os.getpid()}"
        return Arrival(name, versions(), self.sees_root, self.sees_cache)

    def run(self, order: Order) -> Return:
        """Run a cell, and return what became of it."""
        torch.set_num_threads(self.station.threads)  # each thread has a number of its own
        cell, before = order.cell, self._cached()
        self._take_from_shelf(order)
        if not self.sees_root:
            self._begin(order)
        self.running = cell
        post = Post(self.terms, str(self.device), self.station.threads, self.parent)
        ended = run(cell, order.minutes, post, self.device, lambda _: self._task(order), self._tell, lambda: self.asked)
        with self.carrying:
            self.running = None
            parcel = None if self.sees_root else self._end(cell, ended)
        made = {} if self.sees_cache else {name: _read(name) for name in self._cached() - before - order.shelf.keys()}
        return Return(ended, parcel, made)

    def news(self) -> tuple[Sequence[Event], Parcel]:
        """What happened since the last call, and states that were saved; waits for something to happen."""
        with self.told:
            self.told.wait_for(lambda: bool(self.events), PATIENCE_SECONDS)
        time.sleep(PAUSE_SECONDS)
        with self.told:
            events, self.events = self.events, []
        return events, self._saved()

    def stop(self) -> None:
        """Let the running cell save its state and end."""
        self.asked = True

    def leave(self) -> None:
        """Delete the folder that nobody else sees."""
        if not self.sees_root:
            shutil.rmtree(self.terms.root, ignore_errors=True)

    def _tell(self, event: Event) -> None:
        with self.told:
            if event.total and self.events and self.events[-1].total:
                self.events.pop()  # of the steps only the latest counts
            self.events.append(event)
            self.told.notify_all()

    def _task(self, order: Order) -> Task:
        """The data of a cell's task; those of the last one are kept."""
        import ray

        if order.cell.task not in self.tasks:
            self.tasks.clear()
            self.tasks[order.cell.task] = ray.get(order.task[0])
        return self.tasks[order.cell.task]

    def _begin(self, order: Order) -> None:
        """Fill the folder of a cell with what is there of it."""
        folder = self.terms.root / order.cell.name
        shutil.rmtree(folder, ignore_errors=True)
        begun = (self.share.fetch(order.cell.name) if self.share else {}) or order.begun
        unpack(begun, folder, order.cell.result, whole=True)
        self.marks = marks_of(folder)

    def _end(self, cell: Cell, ended: Ended) -> Parcel | None:
        """The files of a run that has ended; they go to the share if there is one."""
        folder = self.terms.root / cell.name
        parcel = packed(folder)
        shutil.rmtree(folder, ignore_errors=True)
        if self.share and ended.state != "failed":
            self.share.keep(cell.name, parcel, cell.result, whole=ended.state == "done")
        return parcel

    def _saved(self) -> Parcel:
        """Files that changed, if the running cell has saved a state since the last time."""
        with self.carrying:
            if self.sees_root or self.running is None:
                return {}
            folder, cell = self.terms.root / self.running.name, self.running
            now = marks_of(folder)
            if all(self.marks.get(name) == mark for name, mark in now.items() if name.startswith(STATES)):
                return {}
            parcel, self.marks = packed(folder, self.marks), now
            parcel.pop(cell.result, None)
            if not self.share:
                return parcel
            self.share.keep(cell.name, parcel, cell.result, whole=False)
            return {}

    def _cached(self) -> set[str]:
        """Files of the cache that another machine could use."""
        if self.sees_cache:
            return set()
        place = cache_folder()
        return {file.relative_to(place).as_posix() for file in place.glob(f"*/*{SHELF}")}

    def _take_from_shelf(self, order: Order) -> None:
        import ray

        for name in order.shelf.keys() - self._cached():
            write_bytes(cache_folder() / name, ray.get(order.shelf[name]))


def _read(name: str) -> bytes:
    return (cache_folder() / name).read_bytes()
