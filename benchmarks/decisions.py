"""Decisions about points of the overlapping Gaussians; JSON in results/decisions/gaussians-overlap.json.

    python benchmarks/decisions.py [RUN …] [--seeds 0 1 2] [--device cpu]

Without RUN, trains `uqgan` with the settings of gaussians-overlap, once per seed. Points come from the toy's own
density, close to x₁ = 0 where the classes overlap, and evenly from a box, further than 5 from both means.
"""

import argparse
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

import uqgan
from uqgan.data.toy import TOYS, Gaussians
from uqgan.environment import COMMIT
from uqgan.files import write_json

RESULTS = Path(__file__).parent.parent / "results" / "decisions" / "gaussians-overlap.json"
TOY = cast(Gaussians, TOYS["gaussians-overlap"])
BOUNDS = {"ambiguous where |x₁| < 0.25": 0.8, "unknown further than 5 from both means": 0.95}
HALF_WIDTHS = (7, 12, 50)
"""Half widths of the boxes of far points; generated examples lie within the largest."""


def overlapping(n: int = 200_000) -> Tensor:
    x = TOY.sample(n, torch.Generator().manual_seed(12345)).x
    return x[x[:, 0].abs() < 0.25]


def far(half_width: float, n: int = 100_000) -> Tensor:
    x = half_width * (2 * torch.rand(n, 2, generator=torch.Generator().manual_seed(12345)) - 1)
    return x[torch.cdist(x, torch.tensor(TOY.means, dtype=torch.float)).amin(1) > 5]


def shares(run: uqgan.Run, x: Tensor) -> dict[str, float]:
    words = run.decide(x).words
    return {word: words.count(word) / len(words) for word in ("accept", "ambiguous", "unknown")}


def measure(run: uqgan.Run) -> dict[str, Any]:
    torn, known = overlapping(), run.task.test
    found: dict[str, Any] = {
        "samples where |x₁| < 0.25": shares(run, torn),
        "empty LAC sets there": float((~run.decide(torn).sets.any(1)).double().mean()),
        "test samples": shares(run, known.x),
    }
    for half_width in HALF_WIDTHS:
        found[f"points further than 5 from both means, of a box of ±{half_width}"] = shares(run, far(half_width))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="*")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    runs = [uqgan.load(folder, arguments.device) for folder in arguments.runs] or [
        uqgan.fit("uqgan", "gaussians-overlap", seed=seed, device=arguments.device) for seed in arguments.seeds
    ]
    rows = []
    for run in runs:
        plan, about = run.record.plan, run.record.about
        row = {"task": plan.task, "method": plan.method, "seed": plan.seed, "rule": vars(run.rule), **measure(run)}
        torn = row["samples where |x₁| < 0.25"]["ambiguous"]
        away = min(row[key]["unknown"] for key in row if key.startswith("points further"))
        for (name, bound), share in zip(BOUNDS.items(), (torn, away), strict=True):
            print(f"seed {plan.seed}: {share:.1%} {name} (at least {bound:.0%}): {'yes' if share >= bound else 'NO'}")
        trained = {key: about[key] for key in ("commit", "device", "versions")}
        rows.append(row | {"trained": trained})
    seeds = " ".join(str(row["seed"]) for row in rows)
    if arguments.runs:
        command = "uqgan train gaussians-overlap --seed SEED -o RUN; python benchmarks/decisions.py RUN"
    else:
        command = f"python benchmarks/decisions.py --seeds {seeds} --device {arguments.device}"
    write_json(arguments.results, {"command": command, "commit": COMMIT, "runs": rows})


if __name__ == "__main__":
    main()
