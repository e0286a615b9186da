"""User-supplied classifiers: UQGAN beside baselines of the same network.

    python benchmarks/backbone.py digits [--seeds 0 1 2] [--norms batch group]
    python benchmarks/backbone.py cifar10 --seeds 1 --norms batch      (a ResNet18; meant for a GPU)

Digits: three convolutions, with the settings of the task. CIFAR10: a ResNet18 with a 3 × 3 stem, 4,000 iterations and
100 epochs of the autoencoder for `uqgan`, 80 epochs for the baselines. Writes results/backbones/TASK-NORM-METHOD.json.
"""

import argparse
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import uqgan
from uqgan.config import load_config
from uqgan.environment import COMMIT
from uqgan.files import write_json

RESULTS = Path(__file__).parent.parent / "results" / "backbones"
SETTINGS: dict[str, dict[str, Any]] = {
    "digits": {},
    "cifar10": {
        "compile": "always",
        "uqgan": {"iterations": 4000},
        "autoencoder": {"epochs": 100},
        "cross_entropy": {"epochs": 80},
        "one_vs_all": {"epochs": 80},
    },
}


def norm_layer(norm: str, channels: int) -> nn.Module:
    return nn.BatchNorm2d(channels) if norm == "batch" else nn.GroupNorm(8, channels)


class Block(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int, norm: str) -> None:
        super().__init__()
        self.main = nn.Sequential(
            *(nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), norm_layer(norm, outputs), nn.ReLU()),
            *(nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), norm_layer(norm, outputs)),
        )
        shortcut = (nn.Conv2d(inputs, outputs, 1, stride, bias=False), norm_layer(norm, outputs))
        self.shortcut = nn.Sequential(*shortcut) if stride > 1 or inputs != outputs else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.main(x) + self.shortcut(x))


class ResNet18(nn.Sequential):
    def __init__(self, n_classes: int, norm: str) -> None:
        widths = (64, 64, 128, 256, 512)
        blocks = [
            block
            for k, width in enumerate(widths[1:])
            for block in (Block(widths[k], width, 1 if k == 0 else 2, norm), Block(width, width, 1, norm))
        ]
        stem = (nn.Conv2d(3, 64, 3, 1, 1, bias=False), norm_layer(norm, 64), nn.ReLU())
        super().__init__(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, n_classes))


class ThreeConvolutions(nn.Sequential):
    def __init__(self, n_classes: int, norm: str) -> None:
        widths = (1, 16, 32, 64)
        layers = [
            layer
            for a, b in pairwise(widths)
            for layer in (nn.Conv2d(a, b, 3, 2, 1, bias=False), norm_layer(norm, b), nn.ReLU())
        ]
        super().__init__(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, n_classes))


NETWORKS = {"digits": ThreeConvolutions, "cifar10": ResNet18}


def measure(task: Any, name: str, method: str, norm: str, seed: int, device: str) -> dict[str, Any]:
    """Scores of one run."""
    torch.manual_seed(seed)
    net = NETWORKS[name](task.n_classes, norm)
    config = load_config(name, overrides=SETTINGS[name])
    run = uqgan.fit(method, task, seed, config, classifier=net, device=device, quiet=True)
    found = run.evaluate(resamples=0)["scores"]
    return {
        "seed": seed,
        "accuracy": found["accuracy"],
        "auroc_sf": found["auroc_sf"],
        "ece": found["ece"],
        "auroc": {key: scores["auroc"] for key, scores in found["sets"].items()},
        "seconds": run.record.about["seconds"],
        "device": run.record.about["device"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=list(NETWORKS))
    parser.add_argument("--methods", nargs="+", default=["uqgan", "entropy", "one-vs-all"])
    parser.add_argument("--norms", nargs="+", default=["batch", "group"], choices=["batch", "group"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--commit", default=COMMIT)
    chosen = parser.parse_args()
    task = uqgan.load_task(chosen.task)
    for norm in chosen.norms:
        for method in chosen.methods:
            runs = [measure(task, chosen.task, method, norm, seed, chosen.device) for seed in chosen.seeds]
            record = {
                "task": chosen.task,
                "method": method,
                "network": NETWORKS[chosen.task].__name__,
                "norm": norm,
                "runs": runs,
                "settings": SETTINGS[chosen.task],
                "command": f"python benchmarks/backbone.py {chosen.task} --methods {method} --norms {norm} --seeds "
                + " ".join(map(str, chosen.seeds)),
                "commit": chosen.commit,
            }
            print(norm, method, [round(100 * run["auroc"].get("all", 0), 2) for run in runs], flush=True)
            write_json(chosen.results / f"{chosen.task}-{norm}-{method}.json", record)


if __name__ == "__main__":
    main()
