"""A user-supplied ResNet18 (3 × 3 stem, batch norm) on CIFAR10: UQGAN beside baselines of the same network.

    python benchmarks/backbone.py [--methods uqgan entropy one-vs-all] [--seed 1] [--json results/cifar10/resnet18.json]

4,000 iterations and 100 epochs of the autoencoder for `uqgan`, 80 epochs for the baselines. On a GPU.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

import uqgan
from uqgan.environment import COMMIT
from uqgan.files import write_json

SETTINGS: dict[str, Any] = {
    "compile": "always",
    "uqgan": {"iterations": 4000},
    "autoencoder": {"epochs": 100},
    "cross_entropy": {"epochs": 80},
    "one_vs_all": {"epochs": 80},
}


class Block(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.main = nn.Sequential(
            *(nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()),
            *(nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs)),
        )
        shortcut = (nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))
        self.shortcut = nn.Sequential(*shortcut) if stride > 1 or inputs != outputs else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.main(x) + self.shortcut(x))


class ResNet18(nn.Sequential):
    def __init__(self, n_classes: int) -> None:
        widths = (64, 64, 128, 256, 512)
        blocks = [
            block
            for k, width in enumerate(widths[1:])
            for block in (Block(widths[k], width, 1 if k == 0 else 2), Block(width, width, 1))
        ]
        stem = (nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU())
        super().__init__(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, n_classes))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", nargs="+", default=["uqgan", "entropy", "one-vs-all"])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--commit", default=COMMIT)
    chosen = parser.parse_args()
    task = uqgan.load_task("cifar10")
    for method in chosen.methods:
        run = uqgan.fit(
            method, task, chosen.seed, classifier=ResNet18(task.n_classes), device=chosen.device, quiet=True, **SETTINGS
        )
        found = run.evaluate(resamples=0)["scores"]
        row = {
            "accuracy": found["accuracy"],
            "auroc_sf": found["auroc_sf"],
            "ece": found["ece"],
            "auroc": {name: scores["auroc"] for name, scores in found["sets"].items()},
            "seed": chosen.seed,
            "stage_seconds": run.record.about["stage_seconds"],
            "device": run.record.about["device"],
            "command": f"python benchmarks/backbone.py --methods {method} --seed {chosen.seed}",
            "commit": chosen.commit,
        }
        print(method, json.dumps(row), flush=True)
        if chosen.json:
            rows = json.loads(chosen.json.read_text()) if chosen.json.exists() else {}
            write_json(chosen.json, rows | {method: row})


if __name__ == "__main__":
    main()
