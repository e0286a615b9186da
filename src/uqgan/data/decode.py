"""Decoding of many encoded pictures, in several processes where that is faster.

Neither PyTorch nor Parquet is imported, so that worker processes start quickly.
"""

import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import joblib
import numpy as np

from uqgan.data.preprocessing import Broken, PixelFormat, Pixels, bytes_of, pixels, without_pillow_limit

Encoded = bytes | Path | str
"""A picture in memory, or the file that holds it."""
Outcome = tuple[Pixels, dict[int, str]]
"""Pixels of a batch, and reasons for the rows that could not be decoded."""
Piece = tuple[Sequence[str], Outcome]
"""Files with the outcome of decoding them."""
PARALLEL_FROM = 8000
"""Least cost for worker processes, whose start takes as long as decoding this many small pictures."""
BYTES_PER_COST = 2048
"""Encoded bytes that cost as much as one small picture."""
PROCESSES = 8
"""Limit of worker processes; reading the files does not keep up with more."""
NICENESS = 10
"""Niceness of worker processes: they use cores that prediction leaves idle, and do not delay its threads."""
READ_AHEAD = 2**25
"""Limit of decoded pixels, in bytes, that wait to be used."""

_STOP: list[Any] = []
"""Event that cancels the work of a worker process; empty in other processes."""


def decode_all(read: Callable[[], Iterable[list[Encoded]]], pixel_format: PixelFormat, n: int, n_bytes: int) -> Outcome:
    """Pixels of all n pictures, of `n_bytes` in total, which `read` yields in batches.

    Batches are decoded by worker processes where that is faster, and in this process if a worker is killed.
    """
    processes = min(joblib.cpu_count(), PROCESSES) if n + n_bytes / BYTES_PER_COST >= PARALLEL_FROM else 1
    try:
        return _collect(read(), pixel_format, n, processes)
    except BrokenProcessPool:
        return _collect(read(), pixel_format, n, 1)


def _collect(batches: Iterable[list[Encoded]], pixel_format: PixelFormat, n: int, processes: int) -> Outcome:
    x = np.empty((n, pixel_format.channels, pixel_format.size, pixel_format.size), np.uint8)
    broken: dict[int, str] = {}
    start = 0
    # Few batches are read ahead, so that little more than the decoded pictures is held in memory.
    parallel = joblib.Parallel(processes, return_as="generator", batch_size=1, pre_dispatch="2*n_jobs", max_nbytes=None)
    with closing(parallel(joblib.delayed(decode)(batch, pixel_format) for batch in batches)) as outcomes:
        for pictures, reasons in outcomes:
            x[start : start + len(pictures)] = pictures
            broken |= {start + row: reason for row, reason in reasons.items()}
            start += len(pictures)
    return x, broken


@contextmanager
def decoders(processes: int) -> Iterator[Any]:
    """Pool of worker processes, which start at once; None for one process, which is this one."""
    if processes == 1:
        yield None
        return
    from joblib.externals.loky import ProcessPoolExecutor
    from joblib.externals.loky.backend import get_context

    stop = get_context("loky").Event()
    pool = ProcessPoolExecutor(processes, initializer=_start_worker, initargs=(os.getpid(), stop))
    with suppress(BrokenProcessPool):
        for _ in range(processes):
            pool.submit(os.getpid)
    try:
        yield pool
    finally:
        stop.set()
        pool.shutdown()


@contextmanager
def decoding(batches: Iterator[list[str]], pixel_format: PixelFormat, pool: Any) -> Iterator[Iterator[Piece]]:
    """Batches of files with their pixels, in order, decoded by a pool's processes while the caller uses earlier ones.

    Decoding starts immediately and stays at most `READ_AHEAD` bytes ahead of the caller.
    """
    if pool is None:
        yield ((batch, decode(batch, pixel_format)) for batch in batches)
        return
    waiting: deque[tuple[list[str], Future[Outcome] | None]] = deque()
    size = pixel_format.channels * pixel_format.size**2

    def fill() -> None:
        while sum(len(batch) for batch, _ in waiting) * size < READ_AHEAD and (batch := next(batches, None)):
            waiting.append((batch, _submitted(pool, batch, pixel_format)))

    def drain() -> Iterator[Piece]:
        while waiting:
            batch, future = waiting.popleft()
            fill()
            yield batch, _outcome(future, batch, pixel_format)

    fill()
    try:
        yield drain()
    finally:
        for _, future in waiting:
            if future:
                future.cancel()


def _submitted(pool: Any, batch: list[str], pixel_format: PixelFormat) -> Future[Outcome] | None:
    """Future of a batch submitted to a worker process; None if a worker was killed."""
    try:
        future: Future[Outcome] = pool.submit(decode, batch, pixel_format)
    except BrokenProcessPool:
        return None
    return future


def _outcome(future: Future[Outcome] | None, batch: list[str], pixel_format: PixelFormat) -> Outcome:
    """Result for a submitted batch, which is decoded in this process if a worker was killed."""
    try:
        return future.result() if future else decode(batch, pixel_format)
    except BrokenProcessPool:
        return decode(batch, pixel_format)


def _start_worker(parent: int, stop: Any) -> None:
    """Set up a worker process: it leaves Ctrl-C to the parent process, and ends when the parent is gone."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    _STOP.append(stop)
    if hasattr(os, "nice"):
        os.nice(NICENESS)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=watch, daemon=True).start()


def decode(batch: Sequence[Encoded], pixel_format: PixelFormat) -> Outcome:
    """Pixels of a batch, decoded in this process."""
    x = np.empty((len(batch), pixel_format.channels, pixel_format.size, pixel_format.size), np.uint8)
    broken = {}
    with without_pillow_limit():
        for row, picture in enumerate(batch):
            if _STOP and not row % 8 and _STOP[0].is_set():
                break
            try:
                x[row] = pixels(picture if isinstance(picture, bytes) else bytes_of(picture), pixel_format)
            except Broken as error:
                broken[row] = str(error)
    return x, broken
