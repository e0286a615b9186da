"""How long one UQGAN iteration takes: five critic, one generator and five classifier steps on a batch of 256.

    python benchmarks/iteration.py [mnist cifar10 cifar100 tiny-imagenet] [--method uqgan-mc] [--precision bf16]
                                   [--compile always] [--eager] [--profile] [--json FILE]

Made-up pictures of each task's shape, the paper's networks and settings. --eager is the same recipe without
compilation, CUDA graph, bf16, channels-last and kept memory; on a CPU it stands beside the other. Times are of the
whole loop, batches included, without validation: the mean on a GPU, the median on a CPU. --profile says which kernels
a GPU spends them on. The peak is what large matrix products reach on the same device.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import cache
from itertools import pairwise, product
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch.profiler import ProfilerActivity
from torch.utils.flop_counter import FlopCounterMode

from uqgan import acceleration, training
from uqgan.acceleration import choose_device
from uqgan.config import Config, parse
from uqgan.data.dataset import Dataset
from uqgan.data.tasks import Task
from uqgan.files import write_json
from uqgan.log import Log
from uqgan.methods import METHODS, uqgan
from uqgan.runs import describe, versions

SHAPES = {"mnist": (1, 32, 5), "cifar10": (3, 32, 5), "cifar100": (3, 32, 50), "tiny-imagenet": (3, 64, 100)}
AUTHORS_MS = {"mnist": 333, "cifar10": 447, "cifar100": 443, "tiny-imagenet": 573}
"""The authors' own training step on an H200, data loading and validation aside."""


PROFILED = 10
"""Iterations that are profiled."""


def made_up(name: str) -> Task:
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
    """Marks the time at chosen steps, and can profile ten steps after them."""

    def __init__(self, first: int, last: int, profiled: bool = False) -> None:
        super().__init__()
        self.marks, self.first, self.last, self.step = [], first, last, 0
        self.profiler = torch.profiler.profile(activities=[ProfilerActivity.CUDA]) if profiled else None

    @contextmanager
    def bar(self, name: str, done: int, total: int) -> Iterator[Callable[[], None]]:
        def advance() -> None:
            self.step += 1
            if self.profiler and self.step == self.last + 1:
                self.profiler.start()
            if self.profiler and self.step == self.last + 1 + PROFILED:
                torch.cuda.synchronize()
                self.profiler.stop()
            if self.step in (self.first, self.last) and torch.cuda.is_available():
                torch.cuda.synchronize()
            if self.first <= self.step <= self.last:
                self.marks.append(time.perf_counter())

        yield advance

    def ms(self, device: torch.device) -> float:
        """Of one step: the mean; on a CPU, where other programs come in between, the median."""
        if device.type == "cpu":
            return 1e3 * median(after - before for before, after in pairwise(self.marks))
        return 1e3 * (self.marks[-1] - self.marks[0]) / (self.last - self.first)

    def say(self, sentence: str) -> None:
        if not sentence.startswith("shield"):  # a few iterations on noise shield nothing
            print(sentence)


def fit(name: str, method: str, config: Config, device: torch.device, log: Log, eager: bool = False) -> None:
    task = made_up(name).to(device)
    torch.manual_seed(0)
    predictor = METHODS[method].assemble(task.shape, task.n_classes, config).to(device)
    if not eager:
        predictor.prepare(config)
        if device.type == "cpu":
            acceleration.keep_freed_memory()
    nets = predictor.members[0]
    A = nets.shield.autoencoder.eval().requires_grad_(False)
    uqgan.fit_jointly(nets.classifier, nets.shield.generator, A, task, config, log)


def used_precision(precision: acceleration.Precision, device: torch.device) -> str:
    """What convolutional networks compute in."""
    return "bf16" if acceleration.in_bf16(precision, device) else "fp32"


def measure(
    name: str, method: str, device: torch.device, steps: int, eager: bool, profiled: bool, compile_: str, precision: str
) -> dict[str, Any]:
    start = time.perf_counter()
    warm = 10 if device.type == "cuda" else 1
    watch = Stopwatch(warm, warm + steps, profiled)
    total = warm + steps + (PROFILED + 1 if profiled else 0)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    config = settings(name, total + 1, eager, compile_, precision)  # one more: the last is followed by a validation
    with plain_steps() if eager else nullcontext():
        fit(name, method, config, device, watch, eager)
    ms, used = watch.ms(device), used_precision(config.precision, device)
    flops, peak = count_flops(name, method), peak_flops(device, torch.bfloat16 if used == "bf16" else torch.float32)
    return {
        "task": name,
        "method": method,
        "mode": "eager" if eager else "accelerated",
        "compile": "never" if eager else compile_,
        "device": describe(device),
        "precision": used,
        "ms_per_iteration": round(ms, 3),
        "start_up_seconds": round(watch.marks[0] - start, 1),
        "tflop": round(flops / 1e12, 4),
        "tflops": round(flops / ms / 1e9, 3),
        "peak_tflops": round(peak / 1e12, 1),
        "share_of_peak": round(flops / ms * 1e3 / peak, 4),
        "peak_memory_mb": round(torch.cuda.max_memory_allocated() / 2**20) if device.type == "cuda" else None,
        "speed_up_over_the_authors": round(AUTHORS_MS[name] / ms, 1) if "H200" in describe(device) else None,
        "versions": versions(),
    } | ({"profile": longest_kernels(watch.profiler)} if watch.profiler else {})


def longest_kernels(profiler: torch.profiler.profile) -> dict[str, Any]:
    """Kernels of one iteration, by the time they take."""
    kernels = [each for each in profiler.key_averages() if each.self_device_time_total > 0]
    kernels.sort(key=lambda each: -each.self_device_time_total)
    return {
        "kernels": round(sum(each.count for each in kernels) / PROFILED),
        "kernel_ms": round(sum(each.self_device_time_total for each in kernels) / PROFILED / 1e3, 3),
        "longest": [
            {
                "kernel": each.key[:100],
                "calls": round(each.count / PROFILED, 1),
                "ms": round(each.self_device_time_total / PROFILED / 1e3, 3),
            }
            for each in kernels[:16]
        ],
    }


@contextmanager
def plain_steps() -> Iterator[None]:
    """No CUDA graphs within."""
    capture = acceleration.accelerate
    uqgan.accelerate = training.accelerate = lambda step, *_: step
    try:
        yield
    finally:
        uqgan.accelerate = training.accelerate = capture


@cache
def peak_flops(device: torch.device, dtype: torch.dtype) -> float:
    """What products of large matrices reach, in FLOP a second."""
    n, repeats = (8192, 30) if device.type == "cuda" else (2048, 3)
    a, b = (torch.randn(n, n, device=device, dtype=dtype) for _ in range(2))
    for _ in range(2):  # once to warm up
        start = time.perf_counter()
        for _ in range(repeats):
            a @ b
        if device.type == "cuda":
            torch.cuda.synchronize()
        seconds = time.perf_counter() - start
    return 2 * n**3 * repeats / seconds


@cache
def count_flops(name: str, method: str) -> float:
    """Of one iteration, counted on the operations that eager PyTorch runs."""
    counts = []
    for iterations in (1, 2):
        with plain_steps(), FlopCounterMode(display=False) as counter:
            fit(name, method, settings(name, iterations, eager=True), choose_device(), Stopwatch(-1, -1), eager=True)
        counts.append(counter.get_total_flops())
    return counts[1] - counts[0]


def append(file: Path, rows: list[dict[str, Any]]) -> None:
    write_json(file, (json.loads(file.read_text()) if file.exists() else []) + rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", default=[], help="which shapes; all on a GPU, mnist on a CPU")
    parser.add_argument("--method", default="uqgan", choices=["uqgan", "uqgan-mc"])
    parser.add_argument("--steps", type=int, default=None)
    parser.add_argument("--eager", action="store_true")
    parser.add_argument("--compile", default="auto", choices=["auto", "always", "never"])
    parser.add_argument("--precision", default="auto", choices=["auto", "bf16", "fp32"])
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--json", type=Path, default=None)
    arguments = parser.parse_args()
    device = choose_device(arguments.device)
    steps = arguments.steps or (200 if device.type == "cuda" else 5)
    rows = []
    tasks = arguments.tasks or (list(SHAPES) if device.type == "cuda" else ["mnist"])
    # On a CPU both, the plain one first: memory that is kept stays kept.
    modes = [True] if arguments.eager else [False] if device.type == "cuda" else [True, False]
    for name, eager in product(tasks, modes):
        how = arguments.profile, arguments.compile, arguments.precision
        row = measure(name, arguments.method, device, steps, eager, *how)
        rows.append(row)
        print(
            f"{name:14} {arguments.method:9} {row['mode']:11} {row['precision']} compile {row['compile']:6} "
            f"{row['ms_per_iteration']:8.2f} ms  "
            f"{row['tflops']:7.3g} TFLOP/s ({row['share_of_peak']:.1%} of the peak)  "
            f"{row['peak_memory_mb'] or 0:6} MB  start-up {row['start_up_seconds']:.0f} s"
            + (f"  {row['speed_up_over_the_authors']} x the authors' step" if row["speed_up_over_the_authors"] else "")
        )
    if arguments.json:
        append(arguments.json, rows)


if __name__ == "__main__":
    main()
