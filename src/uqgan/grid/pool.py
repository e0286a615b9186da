"""One machine: long-lived worker processes that run the cells of a grid."""

import os
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing import get_context, resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import cast

import joblib
import torch

from uqgan.acceleration import choose_device
from uqgan.data.dataset import Say, silent
from uqgan.errors import RunFailed
from uqgan.grid import mps
from uqgan.grid.cells import Cell, keep_failure
from uqgan.grid.schedule import MOST_LOSSES, Event, Report, Schedule, State, Terms
from uqgan.grid.worker import OUTPUT, SIGNALS, Ended, Post, Ready, work
from uqgan.log import interrupts
from uqgan.methods import METHODS

SHARE_A_GPU = 8
"""Limit of workers on a GPU that they use concurrently."""
GPU_SHARE = 0.9
"""Share of a GPU's memory for all of its cells."""
COMPILERS = "TORCHINDUCTOR_COMPILE_THREADS"
"""Variable with the number of processes that compile for one worker."""
LISTEN_SECONDS = 0.5
"""Interval between checks of the clock and of signals, in seconds."""
GRACE_SECONDS = 30.0
"""Delay after the time limit until a cell is asked to stop, in seconds, as training stops by itself."""


@dataclass(frozen=True)
class Pool:
    """Executor that runs cells in processes of this machine."""

    workers: int | None = None
    """Number of processes; None for one per core, or several per GPU."""
    say: Say = silent

    def __call__(self, schedule: Schedule, terms: Terms, report: Report) -> None:
        with ExitStack() as stack:
            devices = devices_of(terms.device)
            shared, size = None, self.workers or len(devices)
            if devices[0].startswith("cuda") and (self.workers or SHARE_A_GPU) > len(devices):
                shared = stack.enter_context(mps.shared(self.say))
                size = self.workers or len(devices) * (SHARE_A_GPU if shared is not None else 1)
            elif devices == ["cpu"]:
                size = self.workers or joblib.cpu_count()
            terms.root.mkdir(parents=True, exist_ok=True)
            Crew(schedule, terms, report, size, devices, shared or {}).run()


def devices_of(name: str) -> list[str]:
    """Devices for the workers: all GPUs, unless one is named."""
    if name in ("auto", "cuda") and (n := torch.cuda.device_count()) > 1:
        return [f"cuda:{k}" for k in range(n)]
    return [str(choose_device(name))]


@dataclass(eq=False)
class Worker:
    """A worker process, and the cell that it runs."""

    name: str
    """Number of the process."""
    device: str
    process: SpawnProcess
    pipe: Connection
    ready: bool = False
    cell: Cell | None = None
    last: Cell | None = None
    memory: int = 0
    """Memory of its GPU, in bytes."""


@dataclass
class Crew:
    """Workers of a running grid."""

    schedule: Schedule
    terms: Terms
    report: Report
    size: int
    devices: list[str]
    environment: Mapping[str, str]
    workers: list[Worker] = field(default_factory=list)
    peaks: dict[tuple[str, str], int] = field(default_factory=dict)
    """Measured GPU memory of cells, by task and recipe."""
    beside: dict[Cell, int] = field(default_factory=dict)
    """Limit of concurrent cells for each cell that was lost."""
    stillborn: int = 0
    """Number of consecutive workers that ended before they were ready."""
    told: int = 0
    """Signal that was sent to the workers."""

    def run(self) -> None:
        """Run all cells; a signal is forwarded, and raised again after the workers have saved their states."""
        end = None if self.terms.max_minutes is None else time.monotonic() + 60 * self.terms.max_minutes
        self.size = max(1, min(self.size, len(self.schedule.waiting)))
        with interrupts() as interrupted:
            try:
                while self.schedule.running or (self.schedule.waiting and not interrupted() and not _late(end)):
                    if interrupted():
                        self._pass_on(interrupted())
                    elif _late(end, GRACE_SECONDS):
                        self._pass_on(signal.SIGTERM)
                    elif not _late(end):
                        self._hire()
                        self._hand_out(end)
                    self._listen()
            finally:
                self._dismiss()
        if interrupted():
            raise KeyboardInterrupt(interrupted())

    def _hire(self) -> None:
        """Start as many processes as there is work for."""
        while len(self.workers) < min(self.size, len(self.schedule.waiting) + len(self.schedule.running)):
            device = min(self.devices, key=lambda device: sum(worker.device == device for worker in self.workers))
            self.workers.append(start(device, self.terms, self.size, self.environment))

    def _hand_out(self, end: float | None) -> None:
        """Give each idle worker the next cell."""
        for worker in self.workers:
            if not worker.ready or worker.cell:
                continue
            cell = self.schedule.take(worker.last, partial(self._fits, worker))
            if not cell:
                continue
            worker.cell = cell
            self.report(Event(cell, "running", worker=worker.name))
            with suppress(OSError):  # the process has ended, which its pipe will show
                worker.pipe.send((cell, None if end is None else max(1e-9, (end - time.monotonic()) / 60)))

    def _fits(self, worker: Worker, cell: Cell) -> bool:
        """Whether a cell fits beside the running ones."""
        running = self.schedule.running
        if not running:
            return True
        if any(len(running) > self.beside.get(each, len(running)) for each in (cell, *running)):
            return False
        if not worker.memory:
            return True
        neighbours = [each.cell for each in self.workers if each.cell and each.device == worker.device]
        share = GPU_SHARE * worker.memory * len(self.devices) / self.size
        taken = sum(self.peaks.get(_kind(each), share) for each in (cell, *neighbours))
        return not neighbours or taken <= GPU_SHARE * worker.memory * 1.001

    def _listen(self) -> None:
        """Wait for messages of workers, or for their end."""
        sources = {worker.pipe: worker for worker in self.workers}
        sentinels = {worker.process.sentinel: worker for worker in self.workers}
        for source in wait([*sources, *sentinels], LISTEN_SECONDS):
            worker = sources.get(cast(Connection, source)) or sentinels[cast(int, source)]
            if worker not in self.workers:
                continue
            try:
                if source in sentinels and worker.pipe.poll():
                    continue  # first handle its last messages
                self._hear(worker, worker.pipe.recv())
            except (EOFError, OSError):
                self._bury(worker)

    def _hear(self, worker: Worker, words: Ready | Event | Ended) -> None:
        if isinstance(words, Ready):
            worker.ready, worker.memory, self.stillborn = True, words.memory, 0
        elif isinstance(words, Event):
            self.report(replace(words, worker=worker.name))
        elif cell := worker.cell:
            worker.cell, worker.last = None, cell
            if words.state == "done":
                self.peaks[_kind(cell)] = max(words.peak, self.peaks.get(_kind(cell), 0))
            if words.state in ("done", "stopped", "failed"):
                self._end(worker, cell, cast(State, words.state), words.text)
            else:
                self._lose(worker, cell, words.text, hopeless=words.state == "no memory")

    def _end(self, worker: Worker, cell: Cell, state: State, text: str = "") -> None:
        self.schedule.finish(cell)
        self.report(Event(cell, state, text, worker=worker.name))

    def _bury(self, worker: Worker) -> None:
        """Handle the end of a process; its cell is rescheduled."""
        self.workers.remove(worker)
        worker.pipe.close()
        worker.process.join(GRACE_SECONDS)
        worker.process.kill()
        if not worker.ready and not self.told:
            self.stillborn += 1
            if self.stillborn >= MOST_LOSSES:
                log = self.terms.root / OUTPUT
                raise RunFailed(f"workers end before they can begin, {_how(worker.process)} (see {log})")
        if worker.cell and self.told:
            self._end(worker, worker.cell, "stopped", "ended before it was done")
        elif worker.cell:
            self._lose(worker, worker.cell, f"its process {_how(worker.process)}")

    def _lose(self, worker: Worker, cell: Cell, why: str, hopeless: bool = False) -> None:
        """Reschedule a cell beside half as many others, then alone; one without enough memory alone has failed."""
        others = len(self.schedule.running) - 1
        self.beside[cell] = 0 if cell in self.beside else others // 2
        if not (hopeless and not others) and self.schedule.lose(cell):
            self.report(Event(cell, "waiting", f"{why}; it is tried again", worker=worker.name))
            return
        if cell in self.schedule.running:
            self.schedule.finish(cell)
        keep_failure(cell, self.terms.root, f"{why}\n(what workers print is in {self.terms.root / OUTPUT})\n")
        self.report(Event(cell, "failed", why, worker=worker.name))

    def _pass_on(self, number: int) -> None:
        """Ask all workers, once, to save their states and end."""
        if self.told:
            return
        self.told = number
        for worker in self.workers:
            if worker.process.pid and worker.process.is_alive():
                os.kill(worker.process.pid, number)

    def _dismiss(self) -> None:
        """Stop all processes; those that still run a cell are killed."""
        for worker in self.workers:
            worker.pipe.close()
            if worker.cell or not worker.ready:
                worker.process.kill()
        for worker in self.workers:
            worker.process.join(GRACE_SECONDS)
            worker.process.kill()
        with suppress(OSError):
            if not (self.terms.root / OUTPUT).stat().st_size:
                (self.terms.root / OUTPUT).unlink()


def start(device: str, terms: Terms, size: int, environment: Mapping[str, str]) -> Worker:
    """Start a process for one of `size` workers."""
    chosen = os.environ.get("OMP_NUM_THREADS", "")
    threads = int(chosen) if chosen.isdecimal() else max(1, joblib.cpu_count() // size)
    own = {"OMP_NUM_THREADS": str(threads), "LOKY_MAX_CPU_COUNT": str(threads), **environment}
    own.setdefault(COMPILERS, os.environ.get(COMPILERS, str(threads)))  # else each worker starts one per core
    context = get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=work, args=(there, Post(terms, device, threads, os.getpid())))
    resource_tracker.ensure_running()  # otherwise the process starts it, without this handling
    with _environment(own):
        # The process inherits the mask, until it installs handlers.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        try:
            process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
    there.close()
    return Worker(str(process.pid), device, process, here)


@contextmanager
def _environment(own: Mapping[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(own)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _late(end: float | None, grace: float = 0.0) -> bool:
    return end is not None and time.monotonic() > end + grace


def _kind(cell: Cell) -> tuple[str, str]:
    return cell.task, METHODS[cell.method].section


def _how(process: SpawnProcess) -> str:
    """Description of how a process ended."""
    code = process.exitcode or 0
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}"
