"""How long one UQGAN iteration takes: five critic, one generator and five classifier steps on a batch of 256.

    python benchmarks/iteration.py [mnist cifar10 cifar100 tiny-imagenet] [--method uqgan-mc] [--eager] [--json FILE]

Made-up pictures of each task's shape, the paper's networks and settings. --eager is the same recipe without
compilation, CUDA graph and bf16. Times are of the whole loop, batches included, without validation.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from uqgan import acceleration, training
from uqgan.acceleration import choose_device
from uqgan.config import Config, parse
from uqgan.data.dataset import Dataset
from uqgan.data.tasks import Task
from uqgan.log import Log
from uqgan.methods import METHODS, uqgan
from uqgan.runs import describe, versions

SHAPES = {"mnist": (1, 32, 5), "cifar10": (3, 32, 5), "cifar100": (3, 32, 50), "tiny-imagenet": (3, 64, 100)}
AUTHORS_MS = {"mnist": 333, "cifar10": 447, "cifar100": 443, "tiny-imagenet": 573}
"""The authors' own training step on an H200, data loading and validation aside."""


def made_up(name: str) -> Task:
    channels, size, n_classes = SHAPES[name]
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(256, (5120, channels, size, size), generator=generator, dtype=torch.uint8)
    data = Dataset(x, torch.randint(n_classes, (len(x),), generator=generator))
    few = data[torch.arange(64)]
    return Task(name, name, tuple(map(str, range(n_classes))), data, few, few, few, {}, {}, {})


def settings(name: str, iterations: int, eager: bool) -> Config:
    mnist, tiny = name == "mnist", name == "tiny-imagenet"
    return parse(
        {
            "classifier": "lenet" if mnist else "resnet",
            "precision": "fp32" if eager else "auto",
            "compile": not eager,
            "autoencoder": {"kind": "small" if mnist else "resnet", "dim": 32 if mnist else 128},
            "uqgan": {
                "iterations": iterations,
                "validate_every": 10**9,
                "lambda_cl": 2 if mnist or tiny else 4,
                "lambda_reg": 32 if mnist or tiny else 1,
            },
        }
    )


class Stopwatch(Log):
    """Marks the time at chosen steps."""

    def __init__(self, first: int, last: int) -> None:
        super().__init__()
        self.marks, self.first, self.last, self.step = [], first, last, 0

    @contextmanager
    def bar(self, name: str, done: int, total: int) -> Iterator[Callable[[], None]]:
        def advance() -> None:
            self.step += 1
            if self.step in (self.first, self.last):
                if torch.cuda.is_available():
                    torch.cuda.synchronize()
                self.marks.append(time.perf_counter())

        yield advance

    def say(self, sentence: str) -> None:
        print(sentence)


def fit(name: str, method: str, config: Config, device: torch.device, log: Log) -> None:
    task = made_up(name).to(device)
    torch.manual_seed(0)
    predictor = METHODS[method].assemble(task.shape, task.n_classes, config).to(device)
    predictor.prepare(config)
    nets = predictor.members[0]
    A = nets.shield.autoencoder.eval().requires_grad_(False)
    uqgan.fit_jointly(nets.classifier, nets.shield.generator, A, task, config, log)


def measure(name: str, method: str, device: torch.device, steps: int, eager: bool) -> dict[str, Any]:
    start = time.perf_counter()
    warm = 10 if device.type == "cuda" else 1
    watch = Stopwatch(warm, warm + steps)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    capture = acceleration.accelerate
    if eager:
        uqgan.accelerate = training.accelerate = lambda step, *_: step
    try:
        # One step more, since the last one is followed by a validation.
        fit(name, method, settings(name, warm + steps + 1, eager), device, watch)
    finally:
        uqgan.accelerate = training.accelerate = capture
    ms = 1e3 * (watch.marks[1] - watch.marks[0]) / steps
    flops = count_flops(name, method)
    return {
        "task": name,
        "method": method,
        "mode": "eager" if eager else "accelerated",
        "device": describe(device),
        "precision": "fp32" if eager or device.type == "cpu" else "bf16",
        "ms_per_iteration": round(ms, 3),
        "start_up_seconds": round(watch.marks[0] - start, 1),
        "tflop": round(flops / 1e12, 4),
        "tflops": round(flops / ms / 1e9, 1),
        "peak_memory_mb": round(torch.cuda.max_memory_allocated() / 2**20) if device.type == "cuda" else None,
        "speed_up_over_the_authors": round(AUTHORS_MS[name] / ms, 1) if "H200" in describe(device) else None,
        "versions": versions(),
    }


_FLOPS: dict[tuple[str, str], float] = {}


def count_flops(name: str, method: str) -> float:
    """Of one iteration, counted on the operations that eager PyTorch runs."""
    if (name, method) not in _FLOPS:
        device = choose_device()
        capture = acceleration.accelerate
        uqgan.accelerate = lambda step, *_: step
        with FlopCounterMode(display=False) as counter:
            fit(name, method, settings(name, 1, eager=True), device, Stopwatch(-1, -1))
        uqgan.accelerate = capture
        _FLOPS[name, method] = counter.get_total_flops()
    return _FLOPS[name, method]


def append(file: Path, rows: list[dict[str, Any]]) -> None:
    old = json.loads(file.read_text()) if file.exists() else []
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(old + rows, indent=2) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", default=[], help="which shapes; all on a GPU, mnist on a CPU")
    parser.add_argument("--method", default="uqgan", choices=["uqgan", "uqgan-mc"])
    parser.add_argument("--steps", type=int, default=None)
    parser.add_argument("--eager", action="store_true")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--json", type=Path, default=None)
    arguments = parser.parse_args()
    device = choose_device(arguments.device)
    steps = arguments.steps or (200 if device.type == "cuda" else 5)
    rows = []
    for name in arguments.tasks or (list(SHAPES) if device.type == "cuda" else ["mnist"]):
        row = measure(name, arguments.method, device, steps, arguments.eager)
        rows.append(row)
        print(
            f"{name:14} {arguments.method:9} {row['mode']:12} {row['ms_per_iteration']:8.2f} ms  "
            f"{row['tflops']:6.1f} TFLOP/s  {row['peak_memory_mb'] or 0:6} MB  start-up {row['start_up_seconds']:.0f} s"
            + (f"  {row['speed_up_over_the_authors']} x the authors' step" if row["speed_up_over_the_authors"] else "")
        )
    if arguments.json:
        append(arguments.json, rows)


if __name__ == "__main__":
    main()
