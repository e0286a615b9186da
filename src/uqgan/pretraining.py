"""Pre-training of the conditional autoencoder (Eq. 6), cached for runs with the same settings and data."""

from functools import partial

import torch

from uqgan.acceleration import accelerate, adam, compiled, in_bf16, prepare
from uqgan.checkpoint import Best, Parts
from uqgan.config import Config
from uqgan.data.dataset import CHUNK, as_input
from uqgan.data.tasks import Task
from uqgan.log import Log
from uqgan.losses import reconstruction_loss
from uqgan.models.autoencoders import CODERS, Autoencoder
from uqgan.shapes import Images, Labels, Scalar
from uqgan.training import Stage, memory_advice, minimize, set_lr
from uqgan.weight_cache import data_key, train_once

STAGE = "autoencoder"


def pretrain(A: Autoencoder, task: Task, config: Config, log: Log) -> None:
    """Train A, or take the weights of an earlier run with the same settings, data and seed."""
    train = partial(fit_autoencoder, A, task, config, log)
    if config.fresh:
        train()
    else:
        train_once(A, "autoencoders", key_of(task, config, log.seed), task, log, train, STAGE)


def key_of(task: Task, config: Config, seed: int) -> str:
    """Digest of everything that the weights depend on."""
    device = task.train.x.device
    modes = [in_bf16(config.pretraining_precision, device), config.compiles and device.type == "cuda"]
    return data_key(task, [config.autoencoder.model_dump(), *modes], seed)


def fit_autoencoder(A: Autoencoder, task: Task, config: Config, log: Log) -> None:
    """Minimise Eq. 6 on the in-distribution data, and keep the weights with the least validation loss."""
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
        raise log.ended(f"before there is a classifier ({stage.afterwards})")
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
