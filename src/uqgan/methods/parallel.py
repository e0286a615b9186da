"""Members of an ensemble trained in parallel on a CPU, one process each, into the weight cache."""

import os
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import joblib
import torch

from uqgan.checkpoint import Stopped
from uqgan.errors import Interrupted
from uqgan.files import CACHE_VARIABLE, alone_in
from uqgan.log import Log

PARALLEL_FROM_SECONDS = 20.0
"""Least remaining training time, in seconds, that justifies starting processes."""


def train_in_parallel(train: Callable[[Log], object], folders: Sequence[Path], seeds: Sequence[int], log: Log) -> None:
    """Call `train` for each seed in a separate process; a stopped one is resumed from its folder the next time.

    `train` must write its weights to the weight cache, as the processes return nothing.
    """
    workers = min(joblib.cpu_count(), len(seeds))
    log.say(f"training {len(seeds)} members, {workers} at a time")
    cache = os.environ.get(CACHE_VARIABLE)  # joblib reuses processes, which may have started with another value
    calls = (
        joblib.delayed(_train)(train, *place, log.minutes_left, cache) for place in zip(folders, seeds, strict=True)
    )
    start, name = time.monotonic(), log.label("members")
    with log.bar(name, 0, len(seeds)) as advance:
        try:
            pool = joblib.Parallel(workers, return_as="generator_unordered", prefer="processes")
            with closing(pool(calls)) as outcomes:  # ends the processes if this one is interrupted
                for stopped in outcomes:
                    advance()
                    log.stopped = log.stopped or stopped
        except KeyboardInterrupt as error:
            sentence = "stopped by hand while members were trained in parallel (--resume goes on)"
            raise Interrupted(sentence, *error.args) from None
    log.seconds[name] = time.monotonic() - start
    if log.stopped:
        raise Stopped(f"{log.stopped}, before all members are trained (--resume goes on)")


def _train(
    train: Callable[[Log], object], folder: Path, seed: int, minutes: float | None, cache: str | None
) -> str | None:
    torch.set_num_threads(1)
    if cache is not None:
        os.environ[CACHE_VARIABLE] = cache
    with alone_in(folder, "training into it", wait=True):
        log = Log(folder, seed, resume=True, max_minutes=minutes, child=True)
        train(log)
        if log.stopped is None:
            shutil.rmtree(folder, ignore_errors=True)
    return log.stopped
