"""Time of one UQGAN iteration: five critic, one generator and five classifier steps on a batch of 256.

    python benchmarks/iteration.py [mnist cifar10 cifar100 tiny-imagenet] [--method uqgan-mc] [--device cuda]
                                   [--precision bf16] [--compile always] [--eager] [--steps 200] [--runs 3]
                                   [--json results/speed/iteration.json] [--commit HASH]

Random pictures of each task's shape, the paper's networks and settings, without validation: the mean over the steps on
a GPU, the median on a CPU. --eager is the same recipe without compilation, CUDA graph, bf16, channels-last, quick
layers and kept memory; on a CPU it is timed too. --json replaces the record with the same task, method, mode, precision
and device, and adds it if there is none; `make results` shows the file. --commit is for copies of the tree without git.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from itertools import pairwise, product
from pathlib import Path
from statistics import median
from typing import Any

import torch

from uqgan import acceleration
from uqgan.acceleration import choose_device
from uqgan.config import Config, parse
from uqgan.data.dataset import Dataset
from uqgan.data.tasks import Task
from uqgan.environment import COMMIT, describe, versions
from uqgan.log import Log
from uqgan.methods import METHODS, uqgan

SHAPES = {"mnist": (1, 32, 5), "cifar10": (3, 32, 5), "cifar100": (3, 32, 50), "tiny-imagenet": (3, 64, 100)}
"""Channels, height and width, classes."""
KEY = ("task", "method", "mode", "compile", "precision", "device")
"""Key of a record."""

Record = dict[str, Any]


def random_task(name: str) -> Task:
    channels, size, n_classes = SHAPES[name]
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(256, (5120, channels, size, size), generator=generator, dtype=torch.uint8)
    data = Dataset(x, torch.randint(n_classes, (len(x),), generator=generator))
    few = data[torch.arange(64)]
    return Task(name, name, tuple(map(str, range(n_classes))), data, few, few, few, {}, {}, {})


def settings(name: str, iterations: int, eager: bool, compile_: str = "auto", precision: str = "auto") -> Config:
    mnist, tiny = name == "mnist", name == "tiny-imagenet"
    return parse(
        {
            "classifier": "lenet" if mnist else "resnet",
            "precision": "fp32" if eager else precision,
            "compile": "never" if eager else compile_,
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
    """Log that records the time of the steps from `first` to `last`."""

    def __init__(self, first: int, last: int) -> None:
        super().__init__()
        self.first, self.last, self.step = first, last, 0
        self.marks: list[float] = []

    @contextmanager
    def bar(self, name: str, done: int, total: int) -> Iterator[Callable[[], None]]:
        def advance() -> None:
            self.step += 1
            if self.step in (self.first, self.last) and torch.cuda.is_available():
                torch.cuda.synchronize()
            if self.first <= self.step <= self.last:
                self.marks.append(time.perf_counter())

        yield advance

    def ms(self, device: torch.device) -> float:
        """Time of one step: the mean; on a CPU, where other programs come in between, the median."""
        if device.type == "cpu":
            return 1e3 * median(after - before for before, after in pairwise(self.marks))
        return 1e3 * (self.marks[-1] - self.marks[0]) / (self.last - self.first)

    def say(self, sentence: str) -> None:
        if not sentence.startswith("shield"):  # a few iterations on noise give no shield
            print(sentence)


def train(name: str, method: str, config: Config, device: torch.device, log: Log, eager: bool) -> None:
    task = random_task(name).to(device)
    torch.manual_seed(0)
    nets = METHODS[method].assemble(task.shape, task.n_classes, config).to(device).networks[0]
    assert isinstance(nets, uqgan.ShieldedNetworks)
    if not eager:
        nets.make_fast(config)
        if device.type == "cpu":
            acceleration.keep_freed_memory()
    nets.autoencoder.eval().requires_grad_(False)
    with without_graphs() if eager else nullcontext():
        uqgan.fit_jointly(nets, task, config, log)


@contextmanager
def without_graphs() -> Iterator[None]:
    """Turn off CUDA graphs within the block."""
    capture = acceleration.accelerate
    acceleration.accelerate = lambda step, *_: step
    try:
        yield
    finally:
        acceleration.accelerate = capture


def used_precision(precision: acceleration.Precision, device: torch.device) -> str:
    """Precision of convolutional networks."""
    return "bf16" if acceleration.in_bf16(precision, device) else "fp32"


def measure(name: str, device: torch.device, eager: bool, steps: int, chosen: argparse.Namespace) -> Record:
    warm = 10 if device.type == "cuda" else 1
    config = settings(name, warm + steps + 1, eager, chosen.compile, chosen.precision)  # ends with a validation
    times, start_up = [], []
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    for _ in range(chosen.runs):
        start, watch = time.perf_counter(), Stopwatch(warm, warm + steps)
        train(name, chosen.method, config, device, watch, eager)
        times.append(watch.ms(device))
        start_up.append(watch.marks[0] - start)
    return {
        "task": name,
        "method": chosen.method,
        "mode": "eager" if eager else "accelerated",
        "compile": config.compile,
        "precision": used_precision(config.precision, device),
        "device": describe(device),
        "ms_per_iteration": round(median(times), 3),
        "start_up_seconds": round(start_up[0], 1),
        "peak_memory_mb": round(torch.cuda.max_memory_allocated() / 2**20) if device.type == "cuda" else None,
        "runs": chosen.runs,
        **({"range": [round(min(times), 2), round(max(times), 2)]} if chosen.runs > 1 else {}),
        "commit": chosen.commit,
        "versions": {key: versions()[key] for key in ("torch", "python")},
    }


def merge(file: Path, rows: list[Record], by: Sequence[str] = KEY) -> None:
    """Write records to a file, one per line, each in place of the one with the same key."""
    found: list[Record] = json.loads(file.read_text()) if file.exists() else []
    records = {tuple(row.get(key) for key in by): row for row in found + rows}
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("[\n" + ",\n".join("  " + json.dumps(row) for row in records.values()) + "\n]\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", default=[], help="which shapes; all on a GPU, mnist on a CPU")
    parser.add_argument("--method", default="uqgan", choices=["uqgan", "uqgan-mc"])
    parser.add_argument("--steps", type=int, default=None)
    parser.add_argument("--runs", type=int, default=1, help="how often; the median and the range are recorded")
    parser.add_argument("--eager", action="store_true")
    parser.add_argument("--compile", default="auto", choices=["auto", "always", "never"])
    parser.add_argument("--precision", default="auto", choices=["auto", "bf16", "fp32"])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--json", type=Path, default=None)
    parser.add_argument("--commit", default=COMMIT)
    chosen = parser.parse_args()
    device = choose_device(chosen.device)
    steps = chosen.steps or (200 if device.type == "cuda" else 5)
    tasks = chosen.tasks or (list(SHAPES) if device.type == "cuda" else ["mnist"])
    # On a CPU both, the eager one first, as keeping memory cannot be undone.
    modes = [True] if chosen.eager else [False] if device.type == "cuda" else [True, False]
    for name, eager in product(tasks, modes):
        row = measure(name, device, eager, steps, chosen)
        print(
            f"{name:14} {chosen.method:9} {row['mode']:11} {row['precision']} compile {row['compile']:6} "
            f"{row['ms_per_iteration']:8.2f} ms  {row['peak_memory_mb'] or 0:6} MB  "
            f"start-up {row['start_up_seconds']:.0f} s",
            flush=True,
        )
        if chosen.json:
            merge(chosen.json, [row])


if __name__ == "__main__":
    main()
