"""Members of an ensemble trained side by side on the cores of a CPU, one process each, into the weight cache."""

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

PAYS_FROM_SECONDS = 20.0
"""Training time left from which on the start of further processes pays."""


def train_side_by_side(train: Callable[[Log], object], folders: Sequence[Path], seeds: Sequence[int], log: Log) -> None:
    """Call `train` for each seed in a process of its own; a stopped one goes on from its folder the next time.

    Its weights must go to the weight cache: the processes return nothing.
    """
    workers = min(joblib.cpu_count(), len(seeds))
    log.say(f"training {len(seeds)} members, {workers} at a time")
    known = os.environ.get(CACHE_VARIABLE)  # processes are kept, and may be older than its value
    calls = (
        joblib.delayed(_train)(train, *place, log.minutes_left, known) for place in zip(folders, seeds, strict=True)
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
            sentence = "stopped by hand while members were trained side by side (--resume goes on)"
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
