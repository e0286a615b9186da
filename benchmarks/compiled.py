"""Test that every recipe trains compiled and captured: a few steps on random colour pictures, meant for a GPU.

    python benchmarks/compiled.py [--device cuda] [--methods gen-sensoy …]

Prints the seconds of each method, most of them for compilation, and fails if one raises an error or falls back.
"""

import argparse
import time
import warnings
from typing import Any

import torch

from uqgan.acceleration import choose_device
from uqgan.config import Config, parse
from uqgan.data.dataset import Dataset
from uqgan.data.tasks import Task
from uqgan.log import Log
from uqgan.methods import METHODS

BATCH, SHAPE, N_CLASSES = 32, (3, 32, 32), 5
SHORT: dict[str, Any] = {
    "uqgan": {"iterations": 6, "validate_every": 3, "batch_size": BATCH},
    "autoencoder": {"kind": "resnet", "dim": 16, "epochs": 2, "batch_size": BATCH},
    "confident": {"epochs": 2, "batch_size": BATCH, "width": 64},
    "gen": {"epochs": 2, "batch_size": BATCH, "width": 16, "autoencoder_steps": 2},
} | {
    name: {"epochs": 2, "batch_size": BATCH}
    for name in ("one_vs_all", "cross_entropy", "mc_dropout", "bayes", "oracle")
}


class Strict(Log):
    """Log that fails if a recipe reports that something runs without being compiled or captured."""

    def say(self, sentence: str) -> None:
        if "runs without" in sentence:
            raise RuntimeError(sentence)


def small_task() -> Task:
    """Six batches of random pictures, the last of them smaller than the others."""
    generator = torch.Generator().manual_seed(0)

    def pictures(n: int) -> Dataset:
        x = torch.randint(256, (n, *SHAPE), generator=generator, dtype=torch.uint8)
        return Dataset(x, torch.arange(n) % N_CLASSES)

    train, few = pictures(6 * BATCH - 7), pictures(BATCH)
    outliers = {"random": pictures(64).x}
    return Task("random", "random", tuple("abcde"), train, few, few, few, {}, {}, outliers, flip=True)


def train(name: str, task: Task, config: Config) -> float:
    started = time.monotonic()
    predictor = METHODS[name].fit(task, config, Strict())
    assert predictor.predict(task.test.x, seed=0).probs.isfinite().all()
    return time.monotonic() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS))
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    config = parse({"classifier": "resnet", "compile": "always", "fresh": True, **SHORT})
    task = small_task().to(choose_device(chosen.device))
    broken = []
    for name in chosen.methods:
        try:
            print(f"{name}: {train(name, task, config):.1f} s", flush=True)
        except Exception as error:
            broken.append(name)
            print(f"{name}: {type(error).__name__}: {str(error).strip().partition(chr(10))[0]}", flush=True)
    if broken:
        parser.exit(1, f"broken: {', '.join(broken)}\n")


if __name__ == "__main__":
    main()
