"""Records of finished runs as results/TASK/METHOD/seed-N.json, and two methods compared on the same samples.

    uqgan grid --tasks digits --seeds 0-2
    python benchmarks/collect.py runs/digits [--methods uqgan one-vs-all] [--results results]

A record that does not say how it was made, or of a run with other settings than its task's, is left out. Where `uqgan`
and `one-vs-all` are there with their raw scores, AUROC of the first minus that of the second goes to
results/TASK/uqgan-against-one-vs-all.json, for each seed and OoD set (paired bootstrap).
"""

import argparse
from collections.abc import Collection, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from uqgan import metrics
from uqgan.errors import UsageError
from uqgan.evaluation import Outputs, ranking
from uqgan.files import write_json
from uqgan.paper.results import Result, check_origin, deviation, read_result
from uqgan.runs import SCORES

RESULTS = Path(__file__).parent.parent / "results"
FIRST, SECOND = "uqgan", "one-vs-all"


def found(folders: Sequence[Path], methods: Collection[str]) -> list[Result]:
    """Runs with complete records and the settings of their task."""
    kept = []
    for file in sorted(file for folder in folders for file in folder.rglob(SCORES)):
        try:
            result = read_result(file)
            check_origin(file, result.record)
            why = deviation(result)
        except UsageError as error:
            why = str(error)
        if why:
            print(f"{file}: left out, {why}")
        elif not methods or result.method in methods:
            kept.append(result)
    return kept


def compared(results: Sequence[Result]) -> list[dict[str, Any]]:
    """AUROC of one method minus that of the other, for each seed and OoD set."""
    raw = {(result.method, result.seed): Outputs.read(result.raw) for result in results if result.raw}
    rows = []
    for seed in sorted(seed for method, seed in raw if method == FIRST and (SECOND, seed) in raw):
        ours, theirs = raw[FIRST, seed], raw[SECOND, seed]
        for name in ours.ood:
            score, is_ood = ranking(ours, "epistemic", name)
            pair = metrics.paired_bootstrap(score, ranking(theirs, "epistemic", name)[0], is_ood)
            rows.append({"seed": seed, "set": name, **asdict(pair)})
            d = pair.difference
            ends = f"{100 * d.estimate:+.2f} ({100 * d.low:+.2f} to {100 * d.high:+.2f})"
            print(f"{FIRST} - {SECOND}, seed {seed}, {name}: {ends}, p = {pair.p_value:.3f}")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--methods", nargs="+", default=[])
    parser.add_argument("--results", type=Path, default=RESULTS)
    chosen = parser.parse_args()
    kept = found(chosen.runs, chosen.methods)
    for result in kept:
        write_json(chosen.results / result.task / result.method / f"seed-{result.seed}.json", result.record)
        print(f"{result.task}, {result.method}, seed {result.seed}: kept")
    for task in dict.fromkeys(result.task for result in kept):
        if rows := compared([result for result in kept if result.task == task]):
            write_json(chosen.results / task / f"{FIRST}-against-{SECOND}.json", rows)


if __name__ == "__main__":
    main()
