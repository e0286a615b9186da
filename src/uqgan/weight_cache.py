"""Cache of trained weights, shared by runs with the same recipe, settings, data and seed."""

import hashlib
import json
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor, nn

from uqgan.data.tasks import Task
from uqgan.errors import RunFailed
from uqgan.files import cache_folder, locked, write_bytes
from uqgan.log import Log

VERSION = 5
"""Raised when training changes, so that older files are not used."""


def train_once(
    net: nn.Module, kind: str, key: str, task: Task, log: Log, train: Callable[[], None], stage: str | None = None
) -> None:
    """Train a network, or load the weights that an earlier run cached under the same key.

    `kind` is the subfolder of the cache; `stage` the only stage that training writes, if the log has others too. Of
    several processes that request the same weights, one trains and the others wait. A resumed run continues from its
    own state.
    """
    file = cached_file(kind, key, task)
    what = stage or "run"
    with ExitStack() as stack:
        try:
            wait = partial(log.say, f"another process trains the same {what}: waiting for it")
            stack.enter_context(locked(file, wait))
        except RunFailed as error:
            log.say(f"{error}; training without the cache")
            train()
            return
        if not (stage is None and log.resumes) and take(file, net, log):
            log.say(f"the same {what} was trained before, with the same settings, data and seed: taken from the cache")
            return
        train()
        if log.stopped:
            return
        try:
            keep(file, net, log, stage)
        except RunFailed as error:
            log.say(f"{error}; going on without keeping the weights")


def cached_file(kind: str, key: str, task: Task) -> Path:
    """File of the cached weights for a key."""
    return cache_folder() / kind / f"{Path(task.name).name}-{key}.safetensors"


def data_key(task: Task, facts: Sequence[Any], seed: int, outliers: Sequence[Tensor] = ()) -> str:
    """Digest of training data, facts, PyTorch version and kind of device."""
    known = [VERSION, torch.__version__, task.train.x.device.type, task.shape, task.n_classes, task.flip, seed]
    digest = hashlib.sha256(json.dumps([*known, *facts]).encode())
    parts = [task.train.x, task.train.y, task.validation.x, task.validation.y, *outliers]
    for tensor in parts:
        digest.update(tensor.cpu().contiguous().numpy().data)
    return digest.hexdigest()[:20]


def take(file: Path, net: nn.Module, log: Log) -> bool:
    """Load cached weights with the log and times of their training; False if the file is absent or damaged."""
    try:
        with safe_open(file, "pt") as saved:
            facts = saved.metadata()
            rows: list[dict[str, Any]] = json.loads(facts["log"])
            seconds: dict[str, float] = json.loads(facts["seconds"])
            weights = {key: saved.get_tensor(key) for key in saved.keys()}  # noqa: SIM118
        net.load_state_dict(weights)
    except Exception:  # absent or damaged: the caller trains and writes it again
        return False
    log.seconds |= {log.label(name): value for name, value in seconds.items()}
    log.reused += [log.label(name) for name in seconds]
    written = {(row["stage"], row["step"]) for row in log.member_rows}
    for row in rows:
        if (row["stage"], row["step"]) not in written:
            log.write(row)
    return True


def keep(file: Path, net: nn.Module, log: Log, stage: str | None) -> None:
    """Cache a network's weights with the log and times of its training."""
    rows = [row for row in log.member_rows if stage in (None, row["stage"])]
    names = dict.fromkeys(row["stage"] for row in rows)
    seconds = {name: log.seconds[log.label(name)] for name in names if log.label(name) in log.seconds}
    weights = {key: tensor.cpu().contiguous() for key, tensor in net.state_dict().items()}
    write_bytes(file, save(weights, {"log": json.dumps(rows), "seconds": json.dumps(seconds)}))
