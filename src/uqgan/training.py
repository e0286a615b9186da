"""What every training loop needs: a step, a decay, the best state, and stages that can be picked up again."""

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MethodType
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor, nn
from torch.optim import Adam, Optimizer

from uqgan.acceleration import accelerate, compile_often, compiled
from uqgan.config import Config, SupervisedConfig
from uqgan.data.dataset import Dataset, equal_chunks
from uqgan.data.tasks import Task
from uqgan.errors import RunFailed
from uqgan.files import write_bytes
from uqgan.log import Log, Stopped, interrupts
from uqgan.models.layers import draws
from uqgan.shapes import Images, Labels, Logits, Probs, Scalar

VALIDATION_DRAWS = 8
"""Draws that a validation takes of a network with MC-dropout (decision 0013)."""
SAVE_SECONDS = 20.0
"""How much work a killed run may lose, at most about."""


def adam(
    net: nn.Module, betas: tuple[float, float] = (0.9, 0.999), weight_decay: float = 0.0, one_kernel: bool = False
) -> Adam:
    """Adam over a network's weights; `set_lr` sets its learning rate."""
    weights = list(net.parameters())
    device = weights[0].device
    if device.type != "cuda":
        return Adam(weights, 0.0, betas, weight_decay=weight_decay, fused=True)
    lr = torch.tensor(0.0, device=device)
    if not one_kernel:
        return Adam(weights, lr, betas, weight_decay=weight_decay, fused=True, capturable=True)
    # One kernel for all weights; the fused one gives each 65,536 of them to a single block, a corner of the GPU.
    optimizer = Adam(weights, lr, betas, weight_decay=weight_decay, foreach=True, capturable=True)
    step = getattr(Adam.step, "__wrapped__", Adam.step)  # without the profiler's hook, which can't be compiled
    optimizer.step = compile_often(MethodType(step, optimizer))  # type: ignore[method-assign]
    return optimizer


def minimize(optimizer: Optimizer, loss: Scalar) -> None:
    """One step down."""
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()


def set_lr(optimizer: Optimizer, lr: float) -> None:
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(lr)  # a captured step reads it where it is
        else:
            group["lr"] = lr


def decay(start: float, end: float, step: int, total: int) -> float:
    """Linear from start to end over all steps."""
    return start + (end - start) * step / total


@contextmanager
def frozen(*nets: nn.Module) -> Iterator[None]:
    """Gradients flow through these networks but not into their weights."""
    weights = [weight for net in nets for weight in net.parameters() if weight.requires_grad]
    for weight in weights:
        weight.requires_grad_(False)
    try:
        yield
    finally:
        for weight in weights:
            weight.requires_grad_(True)


@torch.no_grad()
def accuracy_on(net: nn.Module, data: Dataset, probs_of: Callable[[Logits], Probs]) -> float:
    """Share of samples that get their true label; of a network that draws, by its mean over some draws."""
    net.eval()
    times = VALIDATION_DRAWS if draws(net) else 1
    votes = [torch.stack([probs_of(net(x)) for _ in range(times)]).mean(0).argmax(1) for x in equal_chunks(data.x)]
    return float((torch.cat(votes)[: len(data)] == data.y).sum()) / len(data)


class Best:
    """The weights with the best value so far; of equal values the last, which trained longer (decision 0009)."""

    def __init__(self, net: nn.Module) -> None:
        self.net, self.value, self.step = net, -math.inf, -1
        self.state = {key: value.clone() for key, value in net.state_dict().items()}

    def offer(self, value: float, step: int) -> None:
        if value >= self.value:
            self.value, self.step = value, step
            for key, tensor in self.net.state_dict().items():
                self.state[key].copy_(tensor)

    def restore(self) -> None:
        if self.step < 0:
            raise Stopped("stopped before the first validation: there is no classifier to keep yet (--resume goes on)")
        self.net.load_state_dict(self.state)


Parts = Mapping[str, nn.Module | Optimizer | Best]
"""All that changes while a stage runs, by name."""


class Stage:
    """One leg of training. Iterating gives the steps still to do; a killed run goes on at the last one saved."""

    def __init__(self, log: Log, name: str, total: int, parts: Parts) -> None:
        self.log, self.name, self.total, self.parts = log, name, total, parts
        self.done = 0
        self._saved_at, self._checked = time.monotonic(), 0
        if self.file and self.file.exists():
            self.done = self._checked = load_state(self.file, parts)

    @property
    def file(self) -> Path | None:
        return self.log.folder / "resume" / f"{self.name}.safetensors" if self.log.folder else None

    @property
    def afterwards(self) -> str:
        """What is left when it stops early, as words."""
        return "saved, --resume goes on" if self.file else "nothing is saved"

    @property
    def steps(self) -> range:
        """Those still to do."""
        return range(self.done, self.total)

    def __iter__(self) -> Iterator[int]:
        if not self.steps:
            return
        with self.log.bar(self.name, self.done, self.total) as advance, interrupts() as interrupted:
            for step in self.steps:
                yield step
                self.done = step + 1
                advance()
                if interrupted() or self.log.out_of_time:
                    break
        self.save()
        where = f"at step {self.done} of {self.total} of {self.name}"
        if interrupted():
            raise Stopped(f"stopped by hand {where} ({self.afterwards})")
        if self.done < self.total:
            self.log.stopped = f"out of time {where}"

    def record(self, step: int, **values: Tensor | float) -> None:
        """Write a line of the log, after a look whether all is still finite; save if the last time is long ago."""
        numbers = {key: float(value) for key, value in values.items()}
        for key, number in numbers.items():
            if not math.isfinite(number):
                raise RunFailed(
                    f"{self.name}: {key} = {number} between steps {self._checked} and {step + 1}: training "
                    "diverged (try smaller learning rates)"
                )
        self._checked = step + 1
        self.log.write({"stage": self.name, "step": step + 1} | numbers)
        if time.monotonic() - self._saved_at > SAVE_SECONDS:
            self.done = step + 1
            self.save()

    def save(self) -> None:
        if self.file:
            write_bytes(self.file, dump_state(self.done, self.log.flush(), self.parts))
        self._saved_at = time.monotonic()


def dump_state(step: int, log_bytes: int, parts: Parts) -> bytes:
    """Everything that a later process needs to go on, as safetensors."""
    tensors: dict[str, Tensor] = {"rng": torch.get_rng_state()}
    if torch.cuda.is_available():
        tensors["rng.cuda"] = torch.cuda.get_rng_state()
    if torch.backends.mps.is_available():
        tensors["rng.mps"] = torch.mps.get_rng_state()
    facts: dict[str, Any] = {"step": step, "log_bytes": log_bytes}
    for name, part in parts.items():
        for key, tensor in _state(part).items():
            tensors[f"{name}/{key}"] = tensor.detach().clone().contiguous()
        if isinstance(part, Best):
            facts[name] = [part.value, part.step]
    return save(tensors, {"facts": json.dumps(facts)})


def load_state(file: Path, parts: Parts) -> int:
    """Put a saved state into the parts; gives the step to go on with."""
    try:
        with safe_open(file, "pt") as saved:
            facts = json.loads(saved.metadata()["facts"])
            tensors = {key: saved.get_tensor(key) for key in saved.keys()}  # noqa: SIM118
        for name, part in parts.items():
            own = {key.removeprefix(f"{name}/"): value for key, value in tensors.items() if key.startswith(f"{name}/")}
            _load(part, own, facts.get(name))
    except Exception as error:
        raise RunFailed(f"{file}: cannot be resumed from ({error}); delete it to start this stage anew") from error
    torch.set_rng_state(tensors["rng"])
    if "rng.cuda" in tensors and torch.cuda.is_available():
        torch.cuda.set_rng_state(tensors["rng.cuda"])
    if "rng.mps" in tensors and torch.backends.mps.is_available():
        torch.mps.set_rng_state(tensors["rng.mps"])
    return int(facts["step"])


def _state(part: nn.Module | Optimizer | Best) -> dict[str, Tensor]:
    if isinstance(part, Best):
        return part.state
    if isinstance(part, nn.Module):
        return part.state_dict()
    state = part.state_dict()["state"]
    return {f"{index}/{key}": value for index, row in state.items() for key, value in row.items()}


def _load(part: nn.Module | Optimizer | Best, tensors: dict[str, Tensor], best: list[Any] | None) -> None:
    if isinstance(part, Optimizer):
        weights = [weight for group in part.param_groups for weight in group["params"]]
        state: dict[int, dict[str, Tensor]] = {}
        for path, tensor in tensors.items():
            index, _, key = path.partition("/")
            weight = weights[int(index)]
            # Laid out in memory as its weight is: a fused step walks through both side by side.
            alike = torch.empty_like(weight).copy_(tensor) if tensor.shape == weight.shape else tensor
            state.setdefault(int(index), {})[key] = alike
        part.load_state_dict({"state": state, "param_groups": part.state_dict()["param_groups"]})
    elif isinstance(part, Best):
        for key, tensor in tensors.items():
            part.state[key].copy_(tensor)
        part.value, part.step = best or [-math.inf, -1]
    else:
        part.load_state_dict(tensors)


@contextmanager
def memory_advice(setting: str, batch_size: int) -> Iterator[None]:
    """Turn running out of memory into a sentence that says what to try."""
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


def fit_supervised(
    net: nn.Module,
    task: Task,
    config: Config,
    log: Log,
    name: str,
    loss_of: Callable[[Logits, Labels], Scalar],
    probs_of: Callable[[Logits], Probs],
) -> None:
    """The one loop of all methods that only show a classifier its samples, with the settings of that name."""
    settings: SupervisedConfig = getattr(config, name)
    device = task.train.x.device
    epoch_steps = task.train.steps_per_epoch(settings.batch_size, drop_last=False)
    total = settings.epochs * epoch_steps
    optimizer, best = adam(net, weight_decay=settings.weight_decay), Best(net)
    stage = Stage(log, name, total, {"classifier": net, "optimizer": optimizer, "best": best})
    batches = task.train.batches(settings.batch_size, stage.steps, log.seed, drop_last=False, flip=task.flip)
    objective = compiled(lambda x, y: loss_of(net(x), y), device, config.compiles, log.say)

    def train_step(x: Images, y: Labels) -> Scalar:
        net.train(len(x) > 1)  # one sample alone has no batch statistics
        loss = objective(x, y)
        minimize(optimizer, loss)
        return loss.detach()

    train_step = accelerate(train_step, device, log.say)
    with memory_advice(f"{name}.batch_size", settings.batch_size):
        for step, (x, y, _) in zip(stage, batches, strict=False):
            set_lr(optimizer, decay(settings.lr, settings.end_lr, step // epoch_steps, settings.epochs))
            loss = train_step(x, y)
            if (step + 1) % epoch_steps == 0:
                accuracy = accuracy_on(net, task.validation, probs_of)
                best.offer(accuracy, step)
                stage.record(step, classifier=loss, accuracy=accuracy)
    best.restore()
