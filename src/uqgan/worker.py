"""A process that runs cells of a grid one after another, and tells its parent of each through a pipe."""

import gc
import os
import signal
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Literal, NoReturn

import torch

from uqgan.acceleration import choose_device
from uqgan.cells import Cell, keep_failure, reason, run_cell
from uqgan.data.tasks import Task
from uqgan.errors import Interrupted, RunFailed, UsageError, first_line
from uqgan.grid import Event, Report, Terms
from uqgan.progress import Pace

OUTPUT = "workers.log"
"""File in the grid's folder for what workers print: warnings, and the last words of one that breaks down."""
SIGNALS = (signal.SIGINT, signal.SIGTERM)
KEPT_TASKS = 2
"""Tasks whose data a worker keeps in memory."""
CONTEXT_BYTES = 2**29
"""Memory that a process takes on a GPU beside what its cells take."""
BROKEN = ("CUDA error", "CUDA driver error", "CUBLAS_STATUS", "CUDNN_STATUS", "cuDNN error", "Triton Error")
"""What messages of errors say after which a process can use its GPU no more."""
NO_MEMORY = ("out of memory", "can't allocate memory")


@dataclass(frozen=True)
class Ready:
    """The first word of a worker: it waits for a cell."""

    memory: int
    """Bytes of its GPU; 0 without one."""


@dataclass(frozen=True)
class Ended:
    """How a cell ended."""

    state: Literal["done", "stopped", "failed", "lost", "no memory"]
    """`lost`, or `no memory`: it may be tried again, by another process, as it may be others' fault."""
    text: str = ""
    peak: int = 0
    """Most bytes that it took on the GPU."""


@dataclass(frozen=True)
class Post:
    """What a worker is told when it starts."""

    terms: Terms
    device: str
    threads: int
    parent: int
    """Number of the process that started it."""


def work(pipe: Connection, post: Post) -> None:
    """Body of the process: run each cell that comes through the pipe, until the parent closes it or is gone.

    It is in a session of its own, so that Ctrl-C reaches only the parent, which passes it on.
    """
    os.setsid()
    for number in SIGNALS:
        signal.signal(number, _end)
    _redirect(post.terms.root / OUTPUT)
    torch.set_num_threads(post.threads)
    load = lru_cache(KEPT_TASKS)(post.terms.load)
    with suppress(EOFError, BrokenPipeError, ConnectionResetError, KeyboardInterrupt):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        device = choose_device(post.device)
        pipe.send(Ready(_memory(device)))
        while True:
            cell, minutes = pipe.recv()
            ended = run(cell, minutes, post, device, load, pipe.send)
            pipe.send(ended)
            if ended.state == "lost":
                return


def run(
    cell: Cell,
    minutes: float | None,
    post: Post,
    device: torch.device,
    load: Callable[[str], Task],
    report: Report,
    asked: Callable[[], bool] = lambda: False,
) -> Ended:
    """Run a cell, report its progress, and say how it ended; it saves its state and stops when it is asked to."""

    def tell(event: Event) -> None:
        with suppress(OSError):  # without a parent the run ends by itself, having saved its state
            report(event)

    def progress(pace: Pace) -> None:
        left = pace.left if pace.judged else 0.0
        tell(Event(cell, "running", pace.name, pace.done, pace.total, left))

    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    try:
        progress(Pace("loading", 0, 1))
        task = load(cell.task)
        if os.getppid() != post.parent:
            raise KeyboardInterrupt
        say: Callable[[str], None] = lambda note: tell(Event(cell, "running", note))  # noqa: E731
        stopped = run_cell(cell, post.terms.root, task, device, minutes, say, progress, asked)
        ended = Ended("stopped", stopped) if stopped else Ended("done")
    except Interrupted as error:
        ended = Ended("stopped", reason(error))
    except KeyboardInterrupt:
        ended = Ended("stopped", "stopped by hand")
    except Exception as error:
        ended = _judged(error, cell, post.terms.root)
    return _with_peak(ended, device)


def _judged(error: Exception, cell: Cell, root: Path) -> Ended:
    """What an error makes of a cell: lost if the process or its neighbours may be to blame, else failed."""
    texts = [f"{type(each).__name__}: {each}" for each in _chain(error)]
    memory = any(isinstance(each, MemoryError | torch.OutOfMemoryError) for each in _chain(error))
    if memory or any(words in text for text in texts for words in NO_MEMORY):
        return Ended("no memory", first_line(error))
    if any(words in text for text in texts for words in BROKEN):
        traceback.print_exception(error)
        return Ended("lost", first_line(error))
    known = isinstance(error, UsageError | RunFailed)
    text = str(error) if known else "".join(traceback.format_exception(error))
    with suppress(RunFailed):
        keep_failure(cell, root, f"{text.rstrip()}\n")
    return Ended("failed", str(error) if known else f"{type(error).__name__}: {first_line(error)}")


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """An error and those that it came from."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _with_peak(ended: Ended, device: torch.device) -> Ended:
    """The same with the memory that the cell took, which is given back."""
    if device.type != "cuda" or ended.state == "lost":
        return ended
    peak = torch.cuda.max_memory_reserved(device) + CONTEXT_BYTES
    gc.collect()
    torch.cuda.empty_cache()
    return Ended(ended.state, ended.text, peak)


def _memory(device: torch.device) -> int:
    if device.type != "cuda":
        return 0
    torch.zeros(1, device=device)  # a GPU that cannot be used shows it now
    return torch.cuda.mem_get_info(device)[1]


def _redirect(file: Path) -> None:
    """Send what this process prints into a file."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("ab") as stream:
        for descriptor in (1, 2):
            os.dup2(stream.fileno(), descriptor)


def _end(number: int, _: object) -> NoReturn:
    """Outside of training, which heeds signals itself, there is nothing to save."""
    raise KeyboardInterrupt(number)
