"""Parts of every training loop: optimiser step, learning-rate decay, resumable stages; and the supervised loop."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import repeat
from signal import SIGINT
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from uqgan.acceleration import accelerate, adam, compiled
from uqgan.checkpoint import Best, Parts, dump_state, load_state
from uqgan.config import Config, SupervisedConfig
from uqgan.data.dataset import Dataset, equal_chunks, evenly, outlier_batches
from uqgan.data.tasks import Task
from uqgan.errors import Interrupted, RunFailed
from uqgan.files import write_bytes
from uqgan.log import Log, interrupts
from uqgan.networks import Networks
from uqgan.shapes import Images, Labels, Logits, Probs, Scalar

VALIDATION_DRAWS = 8
"""Number of draws in a validation of a network that draws dropout masks or weights (decision 0013)."""
SAVE_SECONDS = 20.0
"""Interval between saved states: about the most work, in seconds, that a killed run loses."""


def minimize(optimizer: Optimizer, loss: Scalar) -> None:
    """One optimiser step."""
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()


def set_lr(optimizer: Optimizer, lr: float) -> None:
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(lr)  # in place, as a captured step reads it from this address
        else:
            group["lr"] = lr


def decay(start: float, end: float, step: int, total: int) -> float:
    """Learning rate at a step, linear from start to end over all steps."""
    return start + (end - start) * step / total


@contextmanager
def frozen(*nets: nn.Module) -> Iterator[None]:
    """Freeze weights within the block; gradients still flow through the networks."""
    weights = [weight for net in nets for weight in net.parameters() if weight.requires_grad]
    for weight in weights:
        weight.requires_grad_(False)
    try:
        yield
    finally:
        for weight in weights:
            weight.requires_grad_(True)


@torch.no_grad()
def accuracy_on(nets: Networks, data: Dataset, probs_of: Callable[[Logits], Probs]) -> float:
    """Share of correctly classified samples, by the mean probabilities over several draws where networks are random."""
    nets.eval()
    times = VALIDATION_DRAWS if nets.draws else 1
    mean_probs = (torch.cat([probs_of(nets.logits(x, 1)) for _ in range(times)]).mean(0) for x in equal_chunks(data.x))
    votes = torch.cat([probs.argmax(1) for probs in mean_probs])
    return float((votes[: len(data)] == data.y).sum()) / len(data)


class Stage:
    """A resumable stage of training; iterating over it yields the remaining steps."""

    def __init__(self, log: Log, name: str, total: int, parts: Parts) -> None:
        self.log, self.name, self.total, self.parts = log, name, total, parts
        self.label, self.file = log.label(name), log.state_file(name)
        self.done = 0
        self._saved_at, self._checked = time.monotonic(), 0
        if self.file and self.file.exists():
            self.done = self._checked = load_state(self.file, parts)
            if self.steps:
                log.say(f"going on at step {self.done} of {total} of {self.label}")
        elif log.resumed and not log.has_trained:
            log.say(f"nothing was saved of {self.label}: starting at step 0 of {total}")

    @property
    def afterwards(self) -> str:
        """Text on what happens to the steps done if the stage stops early."""
        return "saved, --resume goes on" if self.file else "nothing is saved"

    @property
    def steps(self) -> range:
        """The remaining steps."""
        return range(self.done, self.total)

    def __iter__(self) -> Iterator[int]:
        if not self.steps:
            return
        with self.log.bar(self.label, self.done, self.total) as advance, interrupts() as interrupted:
            for step in self.steps:
                yield step
                self.done = step + 1
                advance()
                if interrupted() or self.log.out_of_time:
                    break
                if time.monotonic() - self._saved_at > SAVE_SECONDS:
                    self.save()
        self.save()
        if self.done < self.total or interrupted():
            self._stop(interrupted())

    def _stop(self, signal: int) -> None:
        """Record where it stopped; without a validation so far there are no best weights, and a signal is an error."""
        why = "stopped by hand" if signal == SIGINT else "stopped by SIGTERM" if signal else "out of time"
        where = f"{why} at step {self.done} of {self.total} of {self.label}"
        self.log.stopped, self.log.signal = where, signal
        if signal and not any(isinstance(part, Best) and part.step >= 0 for part in self.parts.values()):
            raise Interrupted(f"{where}, before the first validation ({self.afterwards})", signal)

    def record(self, step: int, **values: Tensor | float) -> None:
        """Write a row of the log; a value that is not finite ends training."""
        numbers = {key: float(value) for key, value in values.items()}
        for key, number in numbers.items():
            if not math.isfinite(number):
                raise RunFailed(
                    f"{self.label}: {key} = {number} between steps {self._checked} and {step + 1}: training "
                    "diverged (try smaller learning rates)"
                )
        self._checked = step + 1
        self.log.write({"stage": self.name, "step": step + 1} | numbers)

    def save(self) -> None:
        if self.file:
            write_bytes(self.file, dump_state(self.done, self.log.flush(), self.parts))
        self._saved_at = time.monotonic()


@contextmanager
def memory_advice(setting: str, batch_size: int) -> Iterator[None]:
    """Turn an out-of-memory error into a sentence with advice."""
    try:
        yield
    except (torch.OutOfMemoryError, MemoryError) as error:
        raise RunFailed(_too_large(setting, batch_size)) from error
    except RuntimeError as error:
        if "can't allocate memory" in str(error):
            raise RunFailed(_too_large(setting, batch_size)) from error
        raise


def _too_large(setting: str, batch_size: int) -> str:
    return f"{setting} = {batch_size}: out of memory (try {max(2, batch_size // 2)})"


class SupervisedBatch(NamedTuple):
    """Input of a supervised objective."""

    x: Images
    y: Labels
    position: Tensor
    """Index of the batch within its epoch."""
    outliers: Images | None = None
    """As many outliers as samples, in equal shares from all outlier sets, for methods that train on them."""


Objective = Callable[[Networks, SupervisedBatch], Scalar]


def fit_supervised(
    nets: Networks,
    task: Task,
    config: Config,
    log: Log,
    name: str,
    objective: Objective,
    probs_of: Callable[[Logits], Probs],
    outliers: Sequence[Tensor] = (),
) -> None:
    """Training loop of all methods that train only a classifier, with the section of the settings of that name.

    With outliers, half of each batch are samples of the known classes and half are outliers.
    """
    settings: SupervisedConfig = getattr(config, name)
    device, C = task.train.x.device, nets.classifier
    batch_size = settings.batch_size // 2 if outliers else settings.batch_size
    epoch_steps = task.train.steps_per_epoch(batch_size, drop_last=False)
    optimizer, best = adam(C, weight_decay=settings.weight_decay, undecayed=nets.undecayed), Best(C)
    stage = Stage(log, name, settings.epochs * epoch_steps, {"classifier": C, "optimizer": optimizer, "best": best})
    batches = task.train.batches(batch_size, stage.steps, log.seed, drop_last=False, flip=task.flip)
    positions = torch.arange(epoch_steps, device=device)
    foreign = outlier_batches(outliers, batch_size, stage.steps, log.seed) if outliers else repeat(None)
    loss_of = compiled(lambda *batch: objective(nets, SupervisedBatch(*batch)), device, config.compiles, log.say)

    def train_step(x: Images, *rest: Tensor) -> Scalar:
        C.train(len(x) > 1)  # a single sample has no batch statistics
        loss = loss_of(x, *rest)
        minimize(optimizer, loss)
        return loss.detach()

    train_step = accelerate(train_step, device, log.say)
    with memory_advice(f"{name}.batch_size", settings.batch_size):
        for step, (x, y, _), others in zip(stage, batches, foreign, strict=False):
            set_lr(optimizer, decay(settings.lr, settings.end_lr, step // epoch_steps, settings.epochs))
            rest = () if others is None else (evenly(others, len(x)),)
            loss = train_step(x, y, positions[step % epoch_steps], *rest)
            if (step + 1) % epoch_steps == 0:
                accuracy = accuracy_on(nets, task.validation, probs_of)
                best.offer(accuracy, step)
                stage.record(step, classifier=loss, accuracy=accuracy)
    best.restore()
