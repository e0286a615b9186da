"""How long one step of the autoencoder takes, and with it the 200 epochs before a run.

    python benchmarks/pretraining.py [mnist cifar10] [--steps 300] [--precision bf16] [--compile always]
                                     [--profile] [--json FILE]

Made-up pictures of each task's shape, batches of 256; the mean on a GPU, the median on a CPU. A validation of 64
pictures comes after every 20 steps.
"""

import argparse
import time
from pathlib import Path
from typing import Any

import torch

from iteration import PROFILED, SHAPES, Stopwatch, append, longest_kernels, made_up, settings, used_precision
from uqgan.acceleration import choose_device, keep_freed_memory
from uqgan.methods import METHODS
from uqgan.pretraining import fit_autoencoder
from uqgan.runs import describe, versions

EPOCHS = 200
EPOCH_STEPS = {"mnist": 96, "cifar10": 79, "cifar100": 79, "tiny-imagenet": 157}
"""Batches of the known classes' training pictures."""


def measure(
    name: str, device: torch.device, steps: int, compile_: str, precision: str, profiled: bool
) -> dict[str, Any]:
    start, warm = time.perf_counter(), 25
    watch, task = Stopwatch(warm, warm + steps, profiled), made_up(name).to(device)
    config = settings(name, 1, False, compile_, precision)
    epochs = (warm + steps + PROFILED) // task.train.steps_per_epoch(256, drop_last=False) + 2
    config = config.model_copy(update={"autoencoder": config.autoencoder.model_copy(update={"epochs": epochs})})
    torch.manual_seed(0)
    predictor = METHODS["uqgan"].assemble(task.shape, task.n_classes, config).to(device)
    predictor.prepare(config)
    if device.type == "cpu":
        keep_freed_memory()
    fit_autoencoder(predictor.members[0].shield.autoencoder, task, config, watch)
    ms = watch.ms(device)
    return {
        "task": name,
        "compile": compile_,
        "device": describe(device),
        "precision": used_precision(config.pretraining_precision, device),
        "ms_per_step": round(ms, 3),
        "seconds_for_200_epochs": round(ms * EPOCHS * EPOCH_STEPS[name] / 1e3, 1),
        "start_up_seconds": round(watch.marks[0] - start, 1),
        "versions": versions(),
    } | ({"profile": longest_kernels(watch.profiler)} if watch.profiler else {})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", default=[], help="which shapes; all on a GPU, mnist on a CPU")
    parser.add_argument("--steps", type=int, default=None, help="300 on a GPU, 20 on a CPU")
    parser.add_argument("--compile", default="auto", choices=["auto", "always", "never"])
    parser.add_argument("--precision", default="auto", choices=["auto", "bf16", "fp32"])
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--json", type=Path, default=None)
    chosen = parser.parse_args()
    device = choose_device(chosen.device)
    on_gpu, rows = device.type == "cuda", []
    for name in chosen.tasks or (list(SHAPES) if on_gpu else ["mnist"]):
        steps = chosen.steps or (300 if on_gpu else 20)
        row = measure(name, device, steps, chosen.compile, chosen.precision, chosen.profile and on_gpu)
        rows.append(row)
        print(
            f"{name:14} {row['ms_per_step']:8.2f} ms a step, {row['seconds_for_200_epochs']:.0f} s for 200 epochs, "
            f"start-up {row['start_up_seconds']:.0f} s"
        )
        for kernel in row.get("profile", {}).get("longest", []):
            print(f"    {kernel['ms']:7.3f} ms {kernel['calls']:5.1f} x {kernel['kernel'][:90]}")
    if chosen.json:
        append(chosen.json, rows)


if __name__ == "__main__":
    main()
