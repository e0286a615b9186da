"""Host process on a node of a Ray cluster, which runs cells of a grid in sequence.

Ray is not imported here; `cluster` makes an actor of the class.
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
from uqgan.data.tasks import Task
from uqgan.files import cache_folder, write_bytes
from uqgan.grid.cells import Cell
from uqgan.grid.parcels import Marks, Parcel, Share, marks_of, packed, unpack
from uqgan.grid.schedule import Event, Terms
from uqgan.grid.worker import Ended, Post, run

PATIENCE_SECONDS = 5.0
"""Time limit of `news`, in seconds, after which it answers without any."""
PAUSE_SECONDS = 0.5
"""Interval in which news are collected, in seconds."""
STATES = "resume/"
"""Prefix of the paths of saved states in a run's folder."""
SHELF = ".safetensors"
"""Ending of the cache files that are transferred."""


@dataclass(frozen=True)
class Station:
    """Arguments of a host."""

    terms: Terms
    device: str
    threads: int
    token: str
    """Name of a hidden file in the grid's folder and in the cache's, by which a node recognises a shared folder."""
    share: str | None = None
    """URL for the transfer of runs to nodes without access to the grid's folder."""


@dataclass(frozen=True)
class Arrival:
    """First message of a host."""

    name: str
    versions: dict[str, str]
    sees_root: bool
    sees_cache: bool


@dataclass(frozen=True)
class Order:
    """A cell to run, with its data and files."""

    cell: Cell
    minutes: float | None
    task: Any
    """Reference to the data of its task."""
    begun: Parcel
    """Files of the run, if it was started before."""
    shelf: dict[str, Any]
    """References to cache files."""


@dataclass(frozen=True)
class Return:
    """Outcome of a cell, the files of its run if no folder is shared, and new cache files."""

    ended: Ended
    parcel: Parcel | None
    made: Parcel


def versions() -> dict[str, str]:
    """Versions of packages that results depend on."""
    return {"uqgan": __version__, "torch": str(torch.__version__), "python": platform.python_version()}


class Host:
    """Runner of cells in one thread, which reports from another."""

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
        """First message: node, versions, and shared folders."""
        name = f"{platform.node()}:{os.getpid()}"
        return Arrival(name, versions(), self.sees_root, self.sees_cache)

    def run(self, order: Order) -> Return:
        """Run a cell, and return its outcome."""
        torch.set_num_threads(self.station.threads)  # the number of threads is set per thread
        cell, before = order.cell, self._cached()
        self._take_from_shelf(order)
        if not self.sees_root:
            self._begin(order)
        self.running = cell
        post = Post(self.terms, str(self.device), self.station.threads, self.parent)
        ended = run(cell, order.minutes, post, self.device, lambda _: self._task(order), self._tell, lambda: self.asked)
        if ended.state == "stopped" and os.getppid() != self.parent:
            ended = Ended("lost", "its node is gone")  # Ray ends this process soon; the cell goes on elsewhere
        with self.carrying:
            self.running = None
            parcel = None if self.sees_root else self._end(cell, ended)
        made = {} if self.sees_cache else {name: _read(name) for name in self._cached() - before - order.shelf.keys()}
        return Return(ended, parcel, made)

    def news(self) -> tuple[Sequence[Event], Parcel]:
        """Events and saved states since the last call; waits for the first."""
        with self.told:
            self.told.wait_for(lambda: bool(self.events), PATIENCE_SECONDS)
        time.sleep(PAUSE_SECONDS)
        with self.told:
            events, self.events = self.events, []
        return events, self._saved()

    def stop(self) -> None:
        """Ask the running cell to save its state and end."""
        self.asked = True

    def leave(self) -> None:
        """Delete the folder, unless it is shared."""
        if not self.sees_root:
            shutil.rmtree(self.terms.root, ignore_errors=True)

    def _tell(self, event: Event) -> None:
        with self.told:
            if event.total and self.events and self.events[-1].total:
                self.events.pop()  # only the latest step is reported
            self.events.append(event)
            self.told.notify_all()

    def _task(self, order: Order) -> Task:
        """Data of a cell's task; those of the last task are kept in memory."""
        import ray

        if order.cell.task not in self.tasks:
            self.tasks.clear()
            self.tasks[order.cell.task] = ray.get(order.task[0])
        return self.tasks[order.cell.task]

    def _begin(self, order: Order) -> None:
        """Write the existing files of a cell into its folder."""
        folder = self.terms.root / order.cell.name
        shutil.rmtree(folder, ignore_errors=True)
        begun = (self.share.fetch(order.cell.name) if self.share else {}) or order.begun
        unpack(begun, folder, order.cell.result, whole=True)
        self.marks = marks_of(folder)

    def _end(self, cell: Cell, ended: Ended) -> Parcel | None:
        """Files of a run that has ended, which are also stored at the share, if there is one."""
        folder = self.terms.root / cell.name
        parcel = packed(folder)
        shutil.rmtree(folder, ignore_errors=True)
        if self.share and ended.state != "failed":
            self.share.keep(cell.name, parcel, cell.result, whole=ended.state == "done")
        return parcel

    def _saved(self) -> Parcel:
        """Changed files, if the running cell has saved a state since the last call."""
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
        """Cache files that other machines can use."""
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
