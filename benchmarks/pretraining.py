"""Time of one step of the autoencoder, and so of the 200 epochs before a run.

    python benchmarks/pretraining.py [mnist cifar10] [--steps 300] [--precision bf16] [--compile always]

Random pictures of each task's shape, batches of 256; the mean on a GPU, the median on a CPU. A validation of 64
pictures comes after every 20 steps.
"""

import argparse
import time

import torch

from iteration import SHAPES, Stopwatch, random_task, settings
from uqgan.acceleration import choose_device, keep_freed_memory
from uqgan.methods import METHODS, uqgan
from uqgan.pretraining import fit_autoencoder

EPOCHS, WARM_UP = 200, 25
EPOCH_STEPS = {"mnist": 96, "cifar10": 79, "cifar100": 79, "tiny-imagenet": 157}
"""Batches of the known classes' training pictures."""


def measure(name: str, device: torch.device, steps: int, compile_: str, precision: str) -> tuple[float, float]:
    """Milliseconds per step, and seconds of start-up."""
    start = time.perf_counter()
    watch, task = Stopwatch(WARM_UP, WARM_UP + steps), random_task(name).to(device)
    config = settings(name, 1, False, compile_, precision)
    epochs = (WARM_UP + steps) // task.train.steps_per_epoch(256, drop_last=False) + 2
    config = config.model_copy(update={"autoencoder": config.autoencoder.model_copy(update={"epochs": epochs})})
    torch.manual_seed(0)
    nets = METHODS["uqgan"].assemble(task.shape, task.n_classes, config).to(device).networks[0]
    assert isinstance(nets, uqgan.ShieldedNetworks)
    nets.make_fast(config)
    if device.type == "cpu":
        keep_freed_memory()
    fit_autoencoder(nets.autoencoder, task, config, watch)
    return watch.ms(device), watch.marks[0] - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", default=[], help="which shapes; all on a GPU, mnist on a CPU")
    parser.add_argument("--steps", type=int, default=None, help="300 on a GPU, 20 on a CPU")
    parser.add_argument("--compile", default="auto", choices=["auto", "always", "never"])
    parser.add_argument("--precision", default="auto", choices=["auto", "bf16", "fp32"])
    parser.add_argument("--device", default="auto")
    chosen = parser.parse_args()
    device = choose_device(chosen.device)
    on_gpu = device.type == "cuda"
    for name in chosen.tasks or (list(SHAPES) if on_gpu else ["mnist"]):
        steps = chosen.steps or (300 if on_gpu else 20)
        ms, start_up = measure(name, device, steps, chosen.compile, chosen.precision)
        seconds = ms * EPOCHS * EPOCH_STEPS[name] / 1e3
        print(f"{name:14} {ms:8.2f} ms per step, {seconds:.0f} s for {EPOCHS} epochs, start-up {start_up:.0f} s")


if __name__ == "__main__":
    main()
