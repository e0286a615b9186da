"""Worker process that runs cells of a grid in sequence, and reports to its parent through a pipe."""

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
from uqgan.data.tasks import Task
from uqgan.errors import Interrupted, RunFailed, UsageError, first_line
from uqgan.grid.cells import Cell, keep_failure, reason, run_cell
from uqgan.grid.schedule import Event, Report, Terms
from uqgan.progress import Pace

OUTPUT = "workers.log"
"""File in the grid's folder for the output of workers, such as warnings and the traceback of a crash."""
SIGNALS = (signal.SIGINT, signal.SIGTERM)
KEPT_TASKS = 2
"""Number of tasks whose data a worker keeps in memory."""
CONTEXT_BYTES = 2**29
"""GPU memory of a process in addition to that of its cells."""
BROKEN = ("CUDA error", "CUDA driver error", "CUBLAS_STATUS", "CUDNN_STATUS", "cuDNN error", "Triton Error")
"""Parts of error messages after which a process cannot use its GPU any more."""
NO_MEMORY = ("out of memory", "can't allocate memory")


@dataclass(frozen=True)
class Ready:
    """First message of a worker: it is ready for a cell."""

    memory: int
    """Memory of its GPU in bytes; 0 without one."""


@dataclass(frozen=True)
class Ended:
    """How a cell ended."""

    state: Literal["done", "stopped", "failed", "lost", "no memory"]
    """`lost`, or `no memory`: another process may retry it, as other processes may be the cause."""
    text: str = ""
    peak: int = 0
    """Peak GPU memory in bytes."""


@dataclass(frozen=True)
class Post:
    """Arguments of a worker."""

    terms: Terms
    device: str
    threads: int
    parent: int
    """Process id of its parent."""


def work(pipe: Connection, post: Post) -> None:
    """Body of the process: run each cell that comes through the pipe, until the parent closes it or is gone.

    It runs in a separate session, so that Ctrl-C reaches only the parent, which forwards it.
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
    """Run a cell, report its progress and its end; on request it saves its state and stops."""

    def tell(event: Event) -> None:
        with suppress(OSError):  # without a parent the run saves its state and ends
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
    """Outcome of a cell by its error: lost if this or another process may be the cause, otherwise failed."""
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
    """Error and its causes."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _with_peak(ended: Ended, device: torch.device) -> Ended:
    """Outcome with the peak memory of the cell; cached memory is released."""
    if device.type != "cuda" or ended.state == "lost":
        return ended
    peak = torch.cuda.max_memory_reserved(device) + CONTEXT_BYTES
    gc.collect()
    torch.cuda.empty_cache()
    return Ended(ended.state, ended.text, peak)


def _memory(device: torch.device) -> int:
    if device.type != "cuda":
        return 0
    torch.zeros(1, device=device)  # an unusable GPU raises here
    return torch.cuda.mem_get_info(device)[1]


def _redirect(file: Path) -> None:
    """Redirect the output of this process into a file."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("ab") as stream:
        for descriptor in (1, 2):
            os.dup2(stream.fileno(), descriptor)


def _end(number: int, _: object) -> NoReturn:
    """End on a signal outside of training, which handles signals itself, as there is nothing to save."""
    raise KeyboardInterrupt(number)
