"""How fast a method reads pictures: the whole test side of a setting, known classes and OoD sets.

    python benchmarks/predict.py [mnist cifar10 cifar100 tiny-imagenet] [--method uqgan-mc] [--precision bf16]
                                 [--limit N] [--eager] [--json FILE]

Made-up pictures of each task's shape and number, which lie on the device; the paper's networks, untrained. --eager is
the same without compilation and bf16. The first call is told apart as start-up.
"""

import argparse
import time
from pathlib import Path
from typing import Any

import torch

from iteration import SHAPES, append, settings, used_precision
from uqgan.acceleration import choose_device
from uqgan.methods import METHODS
from uqgan.runs import describe, versions

OTHERS = (5000, (5000, 26032, 10000, 10000))
TEST_SIDES = {
    "mnist": (5139, (4861, 20800, 10000, 26032, 13180, 10000)),
    "cifar10": OTHERS,
    "cifar100": OTHERS,
    "tiny-imagenet": OTHERS,
}
"""Known test samples, and those of each OoD set."""
FEW = 25_000
"""Passes that a CPU makes in seconds."""


def pictures(name: str, limit: int | None, device: torch.device) -> torch.Tensor:
    channels, size, _ = SHAPES[name]
    known, sets = TEST_SIDES[name]
    number = min(limit or known + sum(sets), known + sum(sets))
    generator = torch.Generator(device).manual_seed(0)
    shape = (number, channels, size, size)
    return torch.randint(256, shape, generator=generator, dtype=torch.uint8, device=device)


def measure(
    name: str, method: str, device: torch.device, limit: int | None, eager: bool, precision: str
) -> dict[str, Any]:
    x = pictures(name, limit, device)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    start = time.perf_counter()
    config = settings(name, 1, eager, precision=precision)
    torch.manual_seed(0)
    predictor = METHODS[method].assemble(tuple(x.shape[1:]), SHAPES[name][2], config).to(device)
    predictor.prepare(config)
    predictor.predict(x if device.type == "cuda" else x[:1], seed=0).cpu()  # on a GPU that loads its kernels
    ready = time.perf_counter()
    predictor.predict(x, seed=0).cpu()
    seconds = time.perf_counter() - ready
    return {
        "task": name,
        "method": method,
        "mode": "eager" if eager else "accelerated",
        "device": describe(device),
        "precision": used_precision(config.precision, device),
        "images": len(x),
        "passes": predictor.passes,
        "seconds": round(seconds, 3),
        "start_up_seconds": round(ready - start, 1),
        "images_per_second": round(len(x) / seconds),
        "peak_memory_mb": round(torch.cuda.max_memory_allocated() / 2**20) if device.type == "cuda" else None,
        "versions": versions(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", default=[], help="which shapes; all on a GPU, mnist on a CPU")
    parser.add_argument("--method", default=None, choices=["uqgan", "uqgan-mc"], help="both, if not given")
    parser.add_argument("--limit", type=int, default=None, help="images to read; all on a GPU, few on a CPU")
    parser.add_argument("--precision", default="auto", choices=["auto", "bf16", "fp32"])
    parser.add_argument("--eager", action="store_true")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--json", type=Path, default=None)
    arguments = parser.parse_args()
    device = choose_device(arguments.device)
    rows = []
    for name in arguments.tasks or (list(SHAPES) if device.type == "cuda" else ["mnist"]):
        for method in [arguments.method] if arguments.method else ["uqgan", "uqgan-mc"]:
            few = FEW // METHODS[method].passes if device.type == "cpu" else None
            row = measure(name, method, device, arguments.limit or few, arguments.eager, arguments.precision)
            rows.append(row)
            print(
                f"{name:14} {method:9} {row['mode']:12} {row['images']:7,} images x {row['passes']:2}  "
                f"{row['seconds']:8.2f} s  {row['images_per_second']:9,} images/s  "
                f"{row['peak_memory_mb'] or 0:6} MB  start-up {row['start_up_seconds']:.0f} s"
            )
    if arguments.json:
        append(arguments.json, rows)


if __name__ == "__main__":
    main()
