"""Execution of a grid's cells on several machines, by a Ray cluster."""

import platform
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from uqgan.data.dataset import Say, silent
from uqgan.errors import RunFailed, count
from uqgan.files import cache_folder, write_bytes
from uqgan.grid.cells import Cell, keep_failure
from uqgan.grid.connection import Needs, alive_nodes, connected
from uqgan.grid.host import Arrival, Host, Order, Return, Station, versions
from uqgan.grid.parcels import Share, packed, unpack
from uqgan.grid.schedule import MOST_LOSSES, Event, Report, Schedule, State, Terms
from uqgan.log import interrupts

LISTEN_SECONDS = 0.5
"""Interval between checks of the clock and of signals, in seconds."""
COUNT_SECONDS = 2.0
"""Interval between counts of the nodes, in seconds."""
GRACE_SECONDS = 30.0
"""Delay after the time limit until a cell is asked to stop, in seconds, as training stops by itself."""


@dataclass(frozen=True)
class Cluster:
    """Executor that runs cells on the nodes of a Ray cluster.

    Data come from this machine. Nodes with access to the grid's folder work in it. Others get the existing files of a
    run and send back its saved states and files, or store them at `share`, a URL that all nodes can access.
    """

    address: str = "auto"
    share: str | None = None
    needs: Needs = field(default_factory=Needs)
    most: int | None = None
    """Limit of processes; None for as many as fit on the nodes."""
    say: Say = silent

    def __call__(self, schedule: Schedule, terms: Terms, report: Report) -> None:
        if self.share:
            Share(self.share).check()
        with connected(self.address) as ray:
            needs = self.needs.of(ray, terms.device)
            room = needs.room(ray)
            if not room and not alive_nodes(ray):
                raise RunFailed(f"--ray = {self.address}: has no nodes")
            self.say(f"Ray: {count(room, 'process')} of {count(len(alive_nodes(ray)), 'node')}")
            terms = replace(terms, root=terms.root.resolve())
            with tokens(terms.root, cache_folder()) as token:
                station = Station(terms, terms.device, self.needs.cpus, token, self.share)
                Fleet(ray, schedule, station, report, needs, self.most or len(schedule.waiting), self.say).run()


@contextmanager
def tokens(*folders: Path) -> Iterator[str]:
    """Hidden files in folders within the block, by whose names nodes recognise shared folders."""
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
    """A remote process, and the cell that it runs."""

    actor: Any
    arrival: Arrival | None = None
    cell: Cell | None = None
    last: Cell | None = None

    @property
    def name(self) -> str:
        return self.arrival.name if self.arrival else "a node"


@dataclass
class Fleet:
    """Processes of a running grid on all nodes."""

    ray: Any
    schedule: Schedule
    station: Station
    report: Report
    needs: Needs
    most: int
    say: Say
    hands: list[Hand] = field(default_factory=list)
    calls: dict[Any, tuple[Hand, Callable[[Hand, Any], None]]] = field(default_factory=dict)
    """Pending answers, with their process and their handler."""
    data: dict[str, Any] = field(default_factory=dict)
    """References to the data of tasks."""
    shelf: dict[str, Any] = field(default_factory=dict)
    """References to files of the cache that nodes have made."""
    stillborn: int = 0
    """Number of consecutive processes that ended before they were ready."""
    told: bool = False
    room: int = 0
    counted: float = 0.0

    @property
    def terms(self) -> Terms:
        return self.station.terms

    @cached_property
    def kind(self) -> Any:
        """Actor class for the nodes."""
        return self.ray.remote(max_restarts=0, max_concurrency=4, **self.needs.options)(Host)

    def run(self) -> None:
        """Run all cells; after a signal they save their states, and it is raised again."""
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
        """Start as many processes as there is work and room for."""
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
        """Handle a ready process; one with other versions is refused, as its results would differ."""
        if wrong := mismatch(versions(), arrival.versions, arrival.name):
            raise RunFailed(wrong)
        hand.arrival, self.stillborn = arrival, 0
        self._ask(hand, hand.actor.news.remote(), self._hear)

    def _hear(self, hand: Hand, news: Any) -> None:
        """Handle events, and the files of a running cell's saved state."""
        events, parcel = news
        for event in events:
            if event.cell == hand.cell:
                self.report(replace(event, worker=hand.name))
        if parcel and hand.cell:
            unpack(parcel, self.terms.root / hand.cell.name, hand.cell.result, whole=False)
        self._ask(hand, hand.actor.news.remote(), self._hear)

    def _hand_out(self, end: float | None) -> None:
        """Give each idle process the next cell."""
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
        """Reference to the data of a task, sent once per node; data that no remaining cell needs are released."""
        if task not in self.data:
            wanted = {cell.task for cell in (*self.schedule.waiting, *self.schedule.running)}
            self.data = {name: ref for name, ref in self.data.items() if name in wanted}
            self.data[task] = self.ray.put(self.terms.load(task))
        return self.data[task]

    def _return(self, hand: Hand, back: Return) -> None:
        """Handle the end of a cell."""
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
        """Wait for messages of processes, or for their end."""
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
        """Handle the end of a process; its cell is rescheduled."""
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
        """Reschedule a cell, or give it up after several attempts."""
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
        """Ask all processes, once, to save their states and end."""
        if not self.told:
            self.told = True
            for hand in self.hands:
                hand.actor.stop.remote()

    def _dismiss(self) -> None:
        """Stop all processes; those that still run a cell are killed."""
        leaving = [hand.actor.leave.remote() for hand in self.hands if hand.arrival and not hand.cell]
        with suppress(self.ray.exceptions.RayError):
            if leaving:
                self.ray.wait(leaving, num_returns=len(leaving), timeout=5)
        for hand in self.hands:
            self.ray.kill(hand.actor)


def _late(end: float | None, grace: float = 0.0) -> bool:
    return end is not None and time.monotonic() > end + grace


def mismatch(wanted: Mapping[str, str], found: Mapping[str, str] | None = None, node: str = "") -> str:
    """Sentence about an unexpected version on a node, by default this one; empty if there is none."""
    for name, version in (found or versions()).items():
        if version != wanted[name]:
            rule = f"must be {wanted[name]}, as on the machine of the command"
            return f"{node or platform.node()}: {name} = {version}: {rule} (install the same on all nodes)"
    return ""


def why(error: Exception) -> str:
    """Description of how a process ended, in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
