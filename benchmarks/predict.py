"""Time of predicting the whole test side of a setting, known classes and OoD sets.

    python benchmarks/predict.py [mnist cifar10 cifar100 tiny-imagenet] [--method uqgan-mc] [--limit N]

Random pictures of each task's shape and number, on the device; the paper's networks, untrained. The first call counts
as start-up.
"""

import argparse
import time

import torch

from iteration import SHAPES, settings, used_precision
from uqgan.acceleration import choose_device
from uqgan.methods import METHODS

OTHERS = (5000, (5000, 26032, 10000, 10000))
TEST_SIDES = {
    "mnist": (5139, (4861, 20800, 10000, 26032, 13180, 10000)),
    "cifar10": OTHERS,
    "cifar100": OTHERS,
    "tiny-imagenet": OTHERS,
}
"""Number of known test samples, and of those of each OoD set."""
FEW = 25_000
"""Number of passes that take seconds on a CPU."""


def pictures(name: str, limit: int | None, device: torch.device) -> torch.Tensor:
    channels, size, _ = SHAPES[name]
    known, sets = TEST_SIDES[name]
    number = min(limit or known + sum(sets), known + sum(sets))
    generator = torch.Generator(device).manual_seed(0)
    shape = (number, channels, size, size)
    return torch.randint(256, shape, generator=generator, dtype=torch.uint8, device=device)


def measure(name: str, method: str, x: torch.Tensor, precision: str) -> str:
    """Line with the time of a prediction."""
    start, device = time.perf_counter(), x.device
    config = settings(name, 1, False, precision=precision)
    torch.manual_seed(0)
    predictor = METHODS[method].assemble(tuple(x.shape[1:]), SHAPES[name][2], config).to(device)
    predictor.make_fast(config)
    predictor.predict(x if device.type == "cuda" else x[:1], seed=0).cpu()  # loads kernels on a GPU
    ready = time.perf_counter()
    predictor.predict(x, seed=0).cpu()
    seconds = time.perf_counter() - ready
    return (
        f"{name:14} {method:9} {used_precision(config.precision, device)} {len(x):7,} images x {predictor.passes:2}  "
        f"{seconds:8.2f} s  {len(x) / seconds:9,.0f} images/s  start-up {ready - start:.0f} s"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", default=[], help="which shapes; all on a GPU, mnist on a CPU")
    parser.add_argument("--method", default=None, choices=["uqgan", "uqgan-mc"], help="both, if not given")
    parser.add_argument("--limit", type=int, default=None, help="number of images; all on a GPU, few on a CPU")
    parser.add_argument("--precision", default="auto", choices=["auto", "bf16", "fp32"])
    parser.add_argument("--device", default="auto")
    chosen = parser.parse_args()
    device = choose_device(chosen.device)
    for name in chosen.tasks or (list(SHAPES) if device.type == "cuda" else ["mnist"]):
        for method in [chosen.method] if chosen.method else ["uqgan", "uqgan-mc"]:
            few = FEW // METHODS[method].passes if device.type == "cpu" else None
            print(measure(name, method, pictures(name, chosen.limit or few, device), chosen.precision), flush=True)


if __name__ == "__main__":
    main()
