"""Where a step runs."""

import torch

from uqgan.errors import UsageError


def choose_device(name: str = "auto") -> torch.device:
    """`auto` takes the fastest there is."""
    available = {
        "cuda": torch.cuda.is_available,
        "mps": torch.backends.mps.is_available,
        "cpu": lambda: True,
    }
    if name == "auto":
        return torch.device(next(kind for kind, there in available.items() if there()))
    kind = name.partition(":")[0]
    if kind not in available:
        raise UsageError(f"device = {name}: must be auto, cpu, cuda or mps")
    if not available[kind]():
        raise UsageError(f"device = {name}: there is none on this machine (take auto or cpu)")
    return torch.device(name)
