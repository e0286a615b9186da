"""The conditional autoencoder, trained before all else (Eq. 6) and kept for runs with the same settings and data."""

import hashlib
import json
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save

from uqgan.acceleration import accelerate, compiled, in_bf16, prepare
from uqgan.config import Config
from uqgan.data.dataset import CHUNK, as_input
from uqgan.data.tasks import Task
from uqgan.errors import RunFailed
from uqgan.files import cache_folder, locked, write_bytes
from uqgan.log import Log, Stopped
from uqgan.losses import reconstruction_loss
from uqgan.models.autoencoders import CODERS, Autoencoder
from uqgan.shapes import Images, Labels, Scalar
from uqgan.training import Best, Parts, Stage, adam, memory_advice, minimize, set_lr

STAGE = "autoencoder"
VERSION = 2
"""Raised when the same settings give other weights, so that older ones are trained anew."""


def pretrain(A: Autoencoder, task: Task, config: Config, log: Log) -> None:
    """Train A, or take the weights of an earlier run with the same settings, data and seed.

    Of several processes that want the same, one trains and the others wait for it.
    """
    if config.autoencoder.fresh:
        fit_autoencoder(A, task, config, log)
        return
    file = cache_folder() / "autoencoders" / f"{Path(task.name).name}-{key_of(task, config, log.seed)}.safetensors"
    with ExitStack() as stack:
        try:
            wait = partial(log.say, "another run trains the same autoencoder: waiting for it")
            stack.enter_context(locked(file, wait))
        except RunFailed as error:
            log.say(f"{error}; training the autoencoder for this run alone")
            fit_autoencoder(A, task, config, log)
            return
        if take(file, A, log):
            log.say("the autoencoder was trained before, with the same settings, data and seed: taken from the cache")
            return
        fit_autoencoder(A, task, config, log)
        try:
            keep(file, A, log)
        except RunFailed as error:
            log.say(f"{error}; going on without keeping the autoencoder")


def key_of(task: Task, config: Config, seed: int) -> str:
    """Of all that the weights depend on."""
    device = task.train.x.device
    bf16, compiles = in_bf16(config.pretraining_precision, device), config.compiles and device.type == "cuda"
    facts = [VERSION, torch.__version__, config.autoencoder.model_dump(), bf16, compiles, seed, device.type]
    facts += [task.shape, task.n_classes, task.flip]
    digest = hashlib.sha256(json.dumps(facts).encode())
    for data in (task.train, task.validation):
        for tensor in (data.x, data.y):
            digest.update(tensor.cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:20]


def take(file: Path, A: Autoencoder, log: Log) -> bool:
    """Put the weights of that file into A and its story into the log, if it is there and whole."""
    try:
        with safe_open(file, "pt") as saved:
            rows: list[dict[str, Any]] = json.loads(saved.metadata()["log"])
            weights = {key: saved.get_tensor(key) for key in saved.keys()}  # noqa: SIM118
    except Exception:  # absent or damaged: it is trained and written anew
        return False
    A.load_state_dict(weights)
    told = max((row["step"] for row in log.rows if row["stage"] == STAGE), default=0)
    for row in rows:
        if row["step"] > told:
            log.write(row)
    return True


def keep(file: Path, A: Autoencoder, log: Log) -> None:
    rows = [row for row in log.rows if row["stage"] == STAGE]
    weights = {key: tensor.cpu().contiguous() for key, tensor in A.state_dict().items()}
    write_bytes(file, save(weights, {"log": json.dumps(rows)}))


def fit_autoencoder(A: Autoencoder, task: Task, config: Config, log: Log) -> None:
    """Eq. 6 on the in-distribution data; the weights of least validation loss are kept."""
    settings, device = config.autoencoder, task.train.x.device
    prepare(A, config.pretraining_precision, *CODERS)
    epoch_steps = task.train.steps_per_epoch(settings.batch_size, drop_last=False)
    optimizer, best = adam(A.train()), Best(A)
    parts: Parts = {"A": A, "optimizer": optimizer, "best": best}
    stage = Stage(log, STAGE, settings.epochs * epoch_steps, parts)
    batches = task.train.batches(settings.batch_size, stage.steps, log.seed, drop_last=False, flip=task.flip)
    objective = compiled(lambda x, y: reconstruction_loss(A(x, y), x), device, config.compiles, log.say)

    def train_step(x: Images, y: Labels) -> Scalar:
        loss = objective(x, y)
        minimize(optimizer, loss)
        return loss.detach()

    train_step = accelerate(train_step, device, log.say)
    with memory_advice("autoencoder.batch_size", settings.batch_size):
        for step, (x, y, _) in zip(stage, batches, strict=False):
            epoch = step // epoch_steps
            falls = (4 * epoch >= settings.epochs) + (2 * epoch >= settings.epochs)
            set_lr(optimizer, settings.lr * 0.1**falls)
            loss = train_step(x, y)
            if (step + 1) % epoch_steps == 0:
                validation = validate_autoencoder(A, task)
                best.offer(-validation, step)
                stage.record(step, reconstruction=loss, validation=validation)
    if log.stopped:
        raise Stopped(f"{log.stopped}, before there is a classifier ({stage.afterwards})")
    best.restore()
    prepare(A, config.precision, *CODERS)


@torch.no_grad()
def validate_autoencoder(A: Autoencoder, task: Task) -> float:
    """Eq. 6 on the validation data, with the batch norm's running statistics."""
    A.eval()
    total = 0.0
    for images, y in zip(torch.split(task.validation.x, CHUNK), torch.split(task.validation.y, CHUNK), strict=True):
        x = as_input(images)
        total += float(reconstruction_loss(A(x, y), x)) * len(y)
    A.train()
    return total / len(task.validation)
