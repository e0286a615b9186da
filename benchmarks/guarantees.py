"""Test of the stated rates on real scores: means over random splits, in results/decisions/guarantees.json.

    python benchmarks/guarantees.py [FILE …] [--splits 200]

FILE is TASK/METHOD/seed-N.npz, the raw scores of an evaluated run; those under results/ if none is given. The test
samples of known classes are split into two random halves, for calibration and for decisions. All bounds have
two sides, so that neither flagging nothing nor sets of all classes pass.
"""

import argparse
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from uqgan.decisions import Calibration, Rule, decide
from uqgan.environment import COMMIT
from uqgan.evaluation import Outputs
from uqgan.files import write_json

RESULTS = Path(__file__).parent.parent / "results"
SPLITS = 200
COVERAGE, FALSE_ALARM = 0.9, 0.05


def one_split(outputs: Outputs, seed: int) -> dict[str, float]:
    """Shares of decisions in one half of the test samples, with the other half for calibration."""
    order = torch.randperm(len(outputs.y), generator=torch.Generator().manual_seed(seed))
    known, new = order.chunk(2)
    calibration, y = Calibration(outputs.y[known], outputs.test.rows(known)), outputs.y[new][:, None]
    prediction = outputs.test.rows(new)
    lac, aps = (
        decide(prediction, calibration, Rule(FALSE_ALARM, COVERAGE, sets=sets), False, seed) for sets in ("lac", "aps")
    )

    def share(flags: Tensor) -> float:
        return float(flags.double().mean())

    return {
        "coverage of raw LAC": share(lac.sets.gather(1, y)),
        "coverage of randomised APS": share(aps.sets.gather(1, y)),
        "coverage of displayed LAC": share(lac.shown.gather(1, y)),
        "empty LAC sets": share(~lac.sets.any(1)),
        "classes that displaying adds": share(lac.shown) * lac.shown.shape[1] - share(lac.sets) * lac.sets.shape[1],
        "flagged": share(lac.flagged),
    }


def measure(outputs: Outputs, splits: int) -> dict[str, float]:
    """Means over random splits."""
    found = [one_split(outputs, seed) for seed in range(splits)]
    return {name: sum(each[name] for each in found) / splits for name in found[0]}


def verdicts(means: dict[str, float]) -> dict[str, bool]:
    """Conditions on the means."""
    covered = means["coverage of displayed LAC"] - means["coverage of raw LAC"]
    added = means["classes that displaying adds"]
    return {
        "raw LAC covers 90 % ± 0.5": abs(means["coverage of raw LAC"] - COVERAGE) <= 0.005,
        "randomised APS covers 90 % ± 0.5": abs(means["coverage of randomised APS"] - COVERAGE) <= 0.005,
        "displaying adds at most the empty sets": 0 <= covered <= added + 1e-9 <= means["empty LAC sets"] + 2e-9,
        "4.5 to 5.2 % of the known are flagged": 0.045 <= means["flagged"] <= 0.052,
    }


def raw_scores() -> list[Path]:
    """The raw scores under results/."""
    return sorted(RESULTS.glob("*/*/seed-*.npz"))


def row(file: Path, splits: int) -> dict[str, Any]:
    """Task, method and seed by the path of the file, and means over random splits."""
    outputs, (task, method, seed) = Outputs.read(file), file.with_suffix("").parts[-3:]
    return {"task": task, "method": method, "seed": int(seed.removeprefix("seed-")), "n": len(outputs.y)} | measure(
        outputs, splits
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="*")
    parser.add_argument("--splits", type=int, default=SPLITS)
    parser.add_argument("--json", type=Path, default=RESULTS / "decisions" / "guarantees.json")
    chosen = parser.parse_args()
    rows = [row(file, chosen.splits) for file in chosen.files or raw_scores()]
    if not rows:
        parser.error("no raw scores under results/: give FILE")
    for found in rows:
        print(*(f"{key} {value:.2%}" if isinstance(value, float) else value for key, value in found.items()), sep=", ")
        for name, holds in verdicts(found).items():
            print(f"  {'yes' if holds else 'NO '} {name}")
    command = f"python benchmarks/guarantees.py --splits {chosen.splits}"
    write_json(chosen.json, {"command": command, "commit": COMMIT, "splits": chosen.splits, "figures": rows})


if __name__ == "__main__":
    main()
