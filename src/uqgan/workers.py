"""Calls made side by side: by processes that are fed through pipes, and end when their parent is gone.

Not `multiprocessing`: its new processes run the user's script once more, which must be written for that. A worker
imports only what the functions it is asked for stand on.
"""

import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from contextlib import closing, contextmanager, suppress
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from typing import Any, TypeVar, cast

K = TypeVar("K", bound=tuple[Any, ...])
T = TypeVar("T")
Worker = subprocess.Popen[bytes]


def processors() -> int:
    """That this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Pool:
    """Workers, as many as could be started; in their queue None stands for one that could not."""

    def __init__(self) -> None:
        self.idle: SimpleQueue[Worker | None] = SimpleQueue()
        self.started: list[Worker] = []
        self.count, self.lock, self.stopped = 0, Lock(), False

    def at_least(self, count: int) -> None:
        """Start those that are still lacking, if two or more are wanted."""
        command, pipe = [sys.executable, "-m", __name__], subprocess.PIPE
        search = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        with self.lock:
            while self.count < count and count > 1 and not self.stopped:
                worker = None
                with suppress(OSError):
                    worker = subprocess.Popen(command, stdin=pipe, stdout=pipe, env=search, start_new_session=True)
                    self.started.append(worker)
                self.idle.put(worker)
                self.count += 1

    def ask(self, function: Callable[..., T], *inputs: Any) -> T:
        """Have a call made by the next worker that is free; by this process if that one is gone."""
        worker = self.idle.get()
        try:
            if worker and not self.stopped and worker.stdin and worker.stdout:
                pickle.dump((function, inputs), worker.stdin)
                worker.stdin.flush()
                return cast(T, pickle.load(worker.stdout))
        except (OSError, EOFError, ValueError, pickle.UnpicklingError):  # a closed pipe is a ValueError
            worker = None
        finally:
            self.idle.put(worker)
        if self.stopped:
            raise RuntimeError("the workers were stopped")
        return function(*inputs)

    def stop(self) -> None:
        """Whoever waits for a worker, or asks for one, gets an error."""
        with self.lock:
            self.stopped = True
        self.kill()

    def kill(self) -> None:
        for worker in self.started:
            worker.kill()

    def close(self) -> None:
        """Whoever still asks is on his own."""
        self.kill()
        for worker in self.started:
            worker.communicate()


_kept: list[Pool] = []


@contextmanager
def kept_workers() -> Iterator[Pool]:
    """All that asks for workers within shares them: to start them takes as long as to decode a small set."""
    with closing(Pool()) as pool:
        _kept.append(pool)
        try:
            yield pool
        finally:
            _kept.remove(pool)


@contextmanager
def some_workers(count: int) -> Iterator[Pool]:
    """Those that are kept, or some of one's own: `count`, if two or more are wanted."""
    if _kept:
        _kept[-1].at_least(count)
        yield _kept[-1]
        return
    with closing(Pool()) as pool:
        pool.at_least(count)
        yield pool


def two_at_a_time(load: Callable[..., T], wanted: list[K], pool: Pool) -> dict[K, T]:
    """What `load` makes of each: while one set is read or written, the pool's workers are busy with another.

    The first error, or Ctrl-C, ends it at once. What is under way then is left alone: its thread dies with this
    process, or when it asks the pool.
    """
    todo: SimpleQueue[K] = SimpleQueue()
    loads: dict[K, Future[T]] = {each: Future() for each in wanted}

    def work() -> None:
        with suppress(Empty):
            while not pool.stopped:
                each = todo.get_nowait()
                try:
                    loads[each].set_result(load(*each))
                except BaseException as error:
                    loads[each].set_exception(error)
                    return

    for each in wanted:
        todo.put(each)
    try:
        for _ in range(2):
            Thread(target=work, daemon=True).start()
        done, _ = wait(loads.values(), return_when=FIRST_EXCEPTION)
        for error in filter(None, (each.exception() for each in done)):
            raise error
    except BaseException:
        pool.stop()
        raise
    return {each: loaded.result() for each, loaded in loads.items()}


def serve() -> None:
    """A worker's life: calls come in, what they give goes out, until the parent is gone."""
    try:
        while True:
            function, inputs = pickle.load(sys.stdin.buffer)
            pickle.dump(function(*inputs), sys.stdout.buffer)
            sys.stdout.buffer.flush()
    except EOFError:
        return
    except BrokenPipeError:
        os._exit(0)  # without a last attempt to write


if __name__ == "__main__":
    serve()
