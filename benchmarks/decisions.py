"""Words for points of the overlapping Gaussians; JSON in results/decisions/gaussians-overlap.json.

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
"""Of the boxes from which far points are taken; the generator reaches less far than the largest."""


def overlapping(n: int = 200_000) -> Tensor:
    x = TOY.sample(n, torch.Generator().manual_seed(12345)).x
    return x[x[:, 0].abs() < 0.25]


def far(half_width: float, n: int = 100_000) -> Tensor:
    x = half_width * (2 * torch.rand(n, 2, generator=torch.Generator().manual_seed(12345)) - 1)
    return x[torch.cdist(x, torch.tensor(TOY.means, dtype=torch.float)).amin(1) > 5]


def shares(run: uqgan.Run, x: Tensor) -> dict[str, float]:
    seeds = " ".join(str(row["seed"]) for row in rows)
    if arguments.runs:
        command = "uqgan train gaussians-overlap --seed SEED -o RUN; python benchmarks/decisions.py RUN"
    else:
        command = f"python benchmarks/decisions.py --seeds {seeds} --device {arguments.device}"
    write_json(arguments.results, {"command": command, "commit": COMMIT, "runs": rows})


if __name__ == "__main__":
    main()
