"""Several machines: the cells of a grid as work for a Ray cluster."""

import os
import platform
import signal
import socket
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from uqgan.cells import Cell, keep_failure
from uqgan.data.dataset import Say, silent
from uqgan.errors import RunFailed, UsageError, count, first_line
from uqgan.files import cache_folder, write_bytes
from uqgan.grid import MOST_LOSSES, Event, Report, Schedule, State, Terms
from uqgan.host import Arrival, Host, Order, Return, Station, versions
from uqgan.log import interrupts
from uqgan.parcels import Share, packed, unpack

LISTEN_SECONDS = 0.5
"""Seconds between two looks at clock and signals."""
COUNT_SECONDS = 2.0
"""Seconds between two counts of the nodes."""
GRACE_SECONDS = 30.0
"""Seconds after the time limit that a cell has until it is told to stop: training stops by itself."""
KNOCK_SECONDS = 10.0
"""Seconds that a cluster has to answer."""
MISSING = 'Ray is not installed (pip install "uqgan[cluster]")'
SIGNALS = (signal.SIGINT, signal.SIGTERM)


def ray_module() -> Any:
    """Ray, which tells nobody that it is used."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ImportError:
        raise UsageError(f"--ray: {MISSING}") from None
    return ray


@contextmanager
def connected(address: str) -> Iterator[Any]:
    """Ray, as a part of the cluster at an address while the block runs; `auto` is the one of this machine."""
    ray = ray_module()
    if ray.is_initialized():
        yield ray
        return
    before = {number: signal.getsignal(number) for number in SIGNALS}
    try:
        _knock(address)
        ray.init(address, log_to_driver=False, logging_level="ERROR")
    except (OSError, ValueError, RuntimeError, ImportError, AssertionError) as error:
        found = "no Ray cluster is there" if isinstance(error, OSError) else first_line(error)
        how = "start one with ray start --head, and see docs/scale.md"
        raise UsageError(f"--ray = {address}: {found} ({how})") from None
    finally:
        _restore(before)
    try:
        yield ray
    finally:
        ray.shutdown()
        _restore(before)


def _knock(address: str) -> None:
    """Refuse HOST:PORT where nothing answers, which Ray would wait for."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if colon:
        if not port.isdecimal():
            raise ValueError("must be auto, or HOST:PORT")
        socket.create_connection((host.strip("[]"), int(port)), KNOCK_SECONDS).close()
    elif address != "auto":
        raise ValueError("must be auto, or HOST:PORT")


def _restore(handlers: dict[signal.Signals, Any]) -> None:
    """Ray has its own idea of what signals do."""
    with suppress(ValueError):  # signals belong to the main thread
        for number, handler in handlers.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


@dataclass(frozen=True)
class Needs:
    """What a process on a node takes of it."""

    cpus: int = 1
    gpus: float | None = None
    """GPUs, or a share of one; None for one if there are any."""

    def of(self, ray: Any, device: str) -> "Needs":
        """The same with a number of GPUs."""
        if self.gpus is not None:
            return self
        there = ray.cluster_resources().get("GPU", 0) > 0
        return replace(self, gpus=1.0 if there and device != "cpu" else 0.0)

    def room(self, ray: Any) -> int:
        """Number of such processes that the nodes carry."""
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        wanted = {"CPU": self.cpus, "GPU": self.gpus or 0.0}
        return sum(min(int(node.get(kind, 0) / n + 1e-9) for kind, n in wanted.items() if n) for node in nodes)

    @property
    def options(self) -> dict[str, Any]:
        return {"num_cpus": self.cpus, "num_gpus": self.gpus or 0}


@dataclass(frozen=True)
class Cluster:
    """Executor that runs cells on the nodes of a Ray cluster.

    Data come from this machine. Nodes that see the grid's folder work in it; others get what is there of a run, and
    send back its saved states and its files, or leave them at `share`, a URL that all of them reach.
    """

    address: str = "auto"
    share: str | None = None
    needs: Needs = Needs()
    most: int | None = None
    """Most processes; None for as many as the nodes carry."""
    say: Say = silent

    def __call__(self, schedule: Schedule, terms: Terms, report: Report) -> None:
        if self.share:
            Share(self.share).check()
        with connected(self.address) as ray:
            needs = self.needs.of(ray, terms.device)
            room = needs.room(ray)
            if not room and not any(node["Alive"] for node in ray.nodes()):
                raise RunFailed(f"--ray = {self.address}: has no nodes")
            self.say(f"Ray: {count(room, 'process')} of {count(len(_alive(ray)), 'node')}")
            terms = replace(terms, root=terms.root.resolve())
            with tokens(terms.root, cache_folder()) as token:
                station = Station(terms, terms.device, self.needs.cpus, token, self.share)
                Fleet(ray, schedule, station, report, needs, self.most or len(schedule.waiting), self.say).run()


def _alive(ray: Any) -> list[dict[str, Any]]:
    return [node for node in ray.nodes() if node["Alive"]]


@contextmanager
def tokens(*folders: Path) -> Iterator[str]:
    """Hidden files in folders while the block runs, by whose name others know that they see the same folders."""
    name = f".seen-{uuid.uuid4().hex}"
    for folder in folders:
        write_bytes(folder / name, b"")
    try:
        yield name
    finally:
        for folder in folders:
            (folder / name).unlink(missing_ok=True)


@dataclass(eq=False)
class Hand:
    """A process on a node, and the cell that it runs."""

    actor: Any
    arrival: Arrival | None = None
    cell: Cell | None = None
    last: Cell | None = None

    @property
    def name(self) -> str:
        return self.arrival.name if self.arrival else "a node"


@dataclass
class Fleet:
    """The processes of one grid on all nodes while it runs."""

    ray: Any
    schedule: Schedule
    station: Station
    report: Report
    needs: Needs
    most: int
    say: Say
    hands: list[Hand] = field(default_factory=list)
    calls: dict[Any, tuple[Hand, Callable[[Hand, Any], None]]] = field(default_factory=dict)
    """Answers that are waited for: who gives them, and who takes them."""
    data: dict[str, Any] = field(default_factory=dict)
    """References to the data of tasks."""
    shelf: dict[str, Any] = field(default_factory=dict)
    """References to files of the cache that nodes have made."""
    stillborn: int = 0
    """Processes in a row that ended before they were ready."""
    told: bool = False
    room: int = 0
    counted: float = 0.0

    @property
    def terms(self) -> Terms:
        return self.station.terms

    @cached_property
    def kind(self) -> Any:
        """The actor that is started on nodes."""
        return self.ray.remote(max_restarts=0, max_concurrency=4, **self.needs.options)(Host)

    def run(self) -> None:
        """Run all cells; a signal lets them save their states, and is raised again then."""
        end = None if self.terms.max_minutes is None else time.monotonic() + 60 * self.terms.max_minutes
        self._collect()
        with interrupts() as interrupted:
            try:
                while self.schedule.running or (self.schedule.waiting and not interrupted() and not _late(end)):
                    if interrupted() or _late(end, GRACE_SECONDS):
                        self._stop()
                    elif not _late(end):
                        self._hire()
                        self._hand_out(end)
                    self._listen()
            finally:
                self._dismiss()
        if interrupted():
            raise KeyboardInterrupt(interrupted())

    def _collect(self) -> None:
        """Take finished cells from the share, where an earlier command left them."""
        share = Share(self.station.share) if self.station.share else None
        for cell in list(self.schedule.waiting) if share else []:
            if share and cell.result in share.names(cell.name):
                unpack(share.fetch(cell.name), self.terms.root / cell.name, cell.result, whole=True)
                self.schedule.waiting.remove(cell)
                self.report(Event(cell, "done", "taken from the share"))

    def _hire(self) -> None:
        """Start processes, as many as there is work and room for."""
        if time.monotonic() - self.counted > COUNT_SECONDS:
            self.room, self.counted = self.needs.room(self.ray), time.monotonic()
        wanted = min(self.most, self.room, len(self.schedule.waiting) + len(self.schedule.running))
        while len(self.hands) < wanted:
            hand = Hand(self.kind.remote(self.station))
            self.hands.append(hand)
            self._ask(hand, hand.actor.arrive.remote(), self._arrive)

    def _ask(self, hand: Hand, call: Any, take: Callable[[Hand, Any], None]) -> None:
        self.calls[call] = (hand, take)

    def _arrive(self, hand: Hand, arrival: Arrival) -> None:
        """A process is ready; versions other than those here would give other results."""
        if wrong := mismatch(versions(), arrival.versions, arrival.name):
            raise RunFailed(wrong)
        hand.arrival, self.stillborn = arrival, 0
        self._ask(hand, hand.actor.news.remote(), self._hear)

    def _hear(self, hand: Hand, news: Any) -> None:
        """Events, and files of a saved state of a run that is under way."""
        events, parcel = news
        for event in events:
            if event.cell == hand.cell:
                self.report(replace(event, worker=hand.name))
        if parcel and hand.cell:
            unpack(parcel, self.terms.root / hand.cell.name, hand.cell.result, whole=False)
        self._ask(hand, hand.actor.news.remote(), self._hear)

    def _hand_out(self, end: float | None) -> None:
        """Give each process that is free the next cell."""
        for hand in self.hands:
            if hand.arrival and not hand.cell and (cell := self.schedule.take(hand.last)):
                hand.cell = cell
                minutes = None if end is None else max(1e-9, (end - time.monotonic()) / 60)
                begun = {} if hand.arrival.sees_root else packed(self.terms.root / cell.name)
                shelf = {} if hand.arrival.sees_cache else dict(self.shelf)
                self.report(Event(cell, "running", worker=hand.name))
                order = Order(cell, minutes, [self._data(cell.task)], begun, shelf)
                self._ask(hand, hand.actor.run.remote(order), self._return)

    def _data(self, task: str) -> Any:
        """Reference to the data of a task, which every node gets once; those that no cell waits for are given up."""
        if task not in self.data:
            wanted = {cell.task for cell in (*self.schedule.waiting, *self.schedule.running)}
            self.data = {name: ref for name, ref in self.data.items() if name in wanted}
            self.data[task] = self.ray.put(self.terms.load(task))
        return self.data[task]

    def _return(self, hand: Hand, back: Return) -> None:
        """A cell has ended."""
        cell, ended = cast(Cell, hand.cell), back.ended
        hand.cell, hand.last = None, cell
        if back.parcel is not None:
            folder = self.terms.root / cell.name
            unpack(back.parcel, folder, cell.result, whole=ended.state in ("done", "stopped"))
        for name, data in back.made.items():
            if name not in self.shelf:
                self.shelf[name] = self.ray.put(data)
        if ended.state in ("done", "stopped", "failed"):
            self.schedule.finish(cell)
            self.report(Event(cell, cast(State, ended.state), ended.text, worker=hand.name))
        else:
            self._lose(hand, cell, ended.text)
        if ended.state == "lost":
            self._bury(hand, ended.text)

    def _listen(self) -> None:
        """Wait for what processes say, or for their end."""
        if not self.calls:
            time.sleep(LISTEN_SECONDS)
            return
        ready, _ = self.ray.wait(list(self.calls), timeout=LISTEN_SECONDS)
        for call in ready:
            hand, take = self.calls.pop(call)
            try:
                answer = self.ray.get(call)
            except self.ray.exceptions.RayError as error:
                self._bury(hand, why(error))
            else:
                if hand in self.hands:
                    take(hand, answer)

    def _bury(self, hand: Hand, why: str) -> None:
        """A process is gone; its cell is put back."""
        if hand not in self.hands:
            return
        self.hands.remove(hand)
        self.calls = {call: answer for call, answer in self.calls.items() if answer[0] is not hand}
        self.counted = 0.0
        self.ray.kill(hand.actor)
        if not hand.arrival:
            self.stillborn += 1
            if self.stillborn >= MOST_LOSSES:
                raise RunFailed(f"processes on nodes end before they can begin, {why} (is uqgan installed there?)")
        if hand.cell:
            self._lose(hand, hand.cell, why)

    def _lose(self, hand: Hand, cell: Cell, why: str) -> None:
        """Put back a cell, or give it up after several times."""
        hand.cell = None
        if self.told:
            self.schedule.finish(cell)
            self.report(Event(cell, "stopped", "ended before it was done", worker=hand.name))
        elif self.schedule.lose(cell):
            self.report(Event(cell, "waiting", f"{why}; it is tried again", worker=hand.name))
        else:
            keep_failure(cell, self.terms.root, f"{why}\n")
            self.report(Event(cell, "failed", why, worker=hand.name))

    def _stop(self) -> None:
        """Tell all processes, once, to save their states and end."""
        if not self.told:
            self.told = True
            for hand in self.hands:
                hand.actor.stop.remote()

    def _dismiss(self) -> None:
        """End all processes; those that still run a cell are killed."""
        leaving = [hand.actor.leave.remote() for hand in self.hands if hand.arrival and not hand.cell]
        with suppress(self.ray.exceptions.RayError):
            if leaving:
                self.ray.wait(leaving, num_returns=len(leaving), timeout=5)
        for hand in self.hands:
            self.ray.kill(hand.actor)


def _late(end: float | None, grace: float = 0.0) -> bool:
    return end is not None and time.monotonic() > end + grace


def mismatch(wanted: Mapping[str, str], found: Mapping[str, str] | None = None, node: str = "") -> str:
    """What a node, or this one, has in other versions than it should; empty if it has the same."""
    for name, version in (found or versions()).items():
        if version != wanted[name]:
            rule = f"must be {wanted[name]}, as on the machine of the command"
            return f"{node or platform.node()}: {name} = {version}: {rule} (install the same on all nodes)"
    return ""


def why(error: Exception) -> str:
    """What became of a process, in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
