"""Saved state of a training stage: networks, optimisers, best weights and random state, as safetensors."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor, nn
from torch.optim import Optimizer

from uqgan.errors import RunFailed

RESUME = "resume"
"""Subfolder of a run with the states to resume from, one file per stage."""


class Stopped(RunFailed):
    """Training ended before its last step; its state is saved."""


class Best:
    """Best weights so far; of equal ones the later, which trained longer (decision 0009)."""

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
"""Networks, optimisers and best weights that a stage changes, by name."""


def dump_state(step: int, log_bytes: int, parts: Parts) -> bytes:
    """State of a stage as safetensors, from which a later process can resume."""
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
    """Load a saved state into the parts and return the next step."""
    try:
        with safe_open(file, "pt") as saved:
            facts = json.loads(saved.metadata()["facts"])
            tensors = {key: saved.get_tensor(key) for key in saved.keys()}  # noqa: SIM118
        for name, part in parts.items():
            state = {key.removeprefix(f"{name}/"): each for key, each in tensors.items() if key.startswith(f"{name}/")}
            _load(part, state, facts.get(name))
    except Exception as error:
        raise _unreadable(file, error) from error
    torch.set_rng_state(tensors["rng"])
    if "rng.cuda" in tensors and torch.cuda.is_available():
        torch.cuda.set_rng_state(tensors["rng.cuda"])
    if "rng.mps" in tensors and torch.backends.mps.is_available():
        torch.mps.set_rng_state(tensors["rng.mps"])
    return int(facts["step"])


def saved_log_bytes(folder: Path) -> int:
    """Size in bytes of the part of a run's log that its saved states cover."""
    sizes = [0]
    for file in (folder / RESUME).glob("*.safetensors"):
        try:
            with safe_open(file, "pt") as saved:
                sizes.append(json.loads(saved.metadata()["facts"])["log_bytes"])
        except Exception as error:
            raise _unreadable(file, error) from error
    return max(sizes)


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
            # In its weight's memory format: a fused step indexes both alike.
            same_format = torch.empty_like(weight).copy_(tensor) if tensor.shape == weight.shape else tensor
            state.setdefault(int(index), {})[key] = same_format
        part.load_state_dict({"state": state, "param_groups": part.state_dict()["param_groups"]})
    elif isinstance(part, Best):
        for key, tensor in tensors.items():
            part.state[key].copy_(tensor)
        part.value, part.step = best or [-math.inf, -1]
    else:
        part.load_state_dict(tensors)


def _unreadable(file: Path, error: Exception) -> RunFailed:
    first = str(error).strip().partition("\n")[0].rstrip(":")
    return RunFailed(f"{file}: cannot be resumed from ({first}); delete it to start this stage anew")
