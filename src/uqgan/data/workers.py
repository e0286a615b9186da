"""Pictures decoded side by side: processes that are fed through pipes, and are gone with their parent.

Not `multiprocessing`: its new processes run the user's script once more, which must be written for that.
"""

import os
import pickle
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager, nullcontext, suppress
from queue import SimpleQueue
from threading import Lock
from typing import TypeVar, cast

import numpy as np

from uqgan.data.decode import Broken, Look, Pixels, own_limit, pixels

T = TypeVar("T")
Worker = subprocess.Popen[bytes]
Outcome = tuple[Pixels, dict[int, str]]
"""Pictures of a batch, and why some of them, by number, could not be read."""
PAYS_FROM = 4000
"""Pictures for each process, at least: to start one takes as long as to decode some thousand."""


def decode(batch: list[bytes], look: Look) -> Outcome:
    """One after the other, here."""
    x = np.empty((len(batch), look.channels, look.size, look.size), np.uint8)
    broken = {}
    for row, data in enumerate(batch):
        try:
            x[row] = pixels(data, look)
        except Broken as error:
            broken[row] = str(error)
    return x, broken


def decode_batches(batches: Iterable[list[bytes]], look: Look, total: int) -> Iterator[Outcome]:
    """Of each batch, in order; side by side where there are `total` pictures and processors enough for it."""
    with nullcontext(_kept[-1]) if _kept else closing(Pool()) as pool:
        count = pool.at_least(min(processors(), total // PAYS_FROM))
        if count < 2:
            yield from (decode(batch, look) for batch in batches)
            return
        with ThreadPoolExecutor(count) as threads:
            waiting: deque[Future[Outcome]] = deque()
            for batch in batches:
                waiting.append(threads.submit(ask, pool, batch, look))
                if len(waiting) > 2 * count:  # few enough to stay small in memory
                    yield waiting.popleft().result()
            yield from (each.result() for each in waiting)


def processors() -> int:
    """That this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Pool:
    """Workers, as many as could be started; in their queue None stands for one that could not."""

    def __init__(self) -> None:
        self.idle: SimpleQueue[Worker | None] = SimpleQueue()
        self.started: list[Worker] = []
        self.count, self.lock, self.stopped = 0, Lock(), False

    def at_least(self, count: int) -> int:
        """Start those that are still lacking, if two or more are wanted; gives how many there are."""
        command, pipe = [sys.executable, "-m", __name__], subprocess.PIPE
        search = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        with self.lock:
            while self.count < count and count > 1:
                worker = None
                with suppress(OSError):
                    worker = subprocess.Popen(command, stdin=pipe, stdout=pipe, env=search, start_new_session=True)
                    self.started.append(worker)
                self.idle.put(worker)
                self.count += 1
            return self.count

    def stop(self) -> None:
        """Whatever waits for a worker fails."""
        self.stopped = True
        for worker in self.started:
            worker.kill()

    def close(self) -> None:
        self.stop()
        for worker in self.started:
            worker.communicate()


_kept: list[Pool] = []


@contextmanager
def kept_workers() -> Iterator[None]:
    """All that is decoded within shares its workers: to start them takes as long as to decode a small set."""
    with closing(Pool()) as pool:
        _kept.append(pool)
        try:
            yield
        finally:
            _kept.remove(pool)


def two_at_a_time(load: Callable[[str, str], T], wanted: list[tuple[str, str]]) -> dict[tuple[str, str], T]:
    """What `load` makes of each: while one set is read or written, the pictures of another are decoded."""
    threads = ThreadPoolExecutor(2)
    try:
        loads = {each: threads.submit(load, *each) for each in wanted}
        return {each: loaded.result() for each, loaded in loads.items()}
    except BaseException:
        threads.shutdown(wait=False, cancel_futures=True)
        for pool in _kept:
            pool.stop()  # so that what is under way ends, too
        raise
    finally:
        threads.shutdown()


def ask(pool: Pool, batch: list[bytes], look: Look) -> Outcome:
    """Have a batch decoded by the next worker that is free; by this process if that one is gone."""
    worker = pool.idle.get()
    try:
        if worker and worker.stdin and worker.stdout:
            pickle.dump((batch, look), worker.stdin)
            worker.stdin.flush()
            return cast(Outcome, pickle.load(worker.stdout))
    except (OSError, EOFError, pickle.UnpicklingError):
        worker = None
    finally:
        pool.idle.put(worker)
    if pool.stopped:
        raise RuntimeError("decoding was stopped")
    return decode(batch, look)


def serve() -> None:
    """A worker's life: batches come in, pictures go out, until the parent is gone."""
    with own_limit():
        try:
            while True:
                batch, look = pickle.load(sys.stdin.buffer)
                pickle.dump(decode(batch, look), sys.stdout.buffer)
                sys.stdout.buffer.flush()
        except EOFError:
            return
        except BrokenPipeError:
            os._exit(0)  # without a last attempt to write


if __name__ == "__main__":
    serve()
