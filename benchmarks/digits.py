"""All methods on the digits task, three seeds: scores under results/digits/, and UQGAN against One-vs-All, paired.

python benchmarks/digits.py [--workers 2] [--seeds 0 1 2] [--device cuda]
"""

import argparse
import os
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from multiprocessing import get_context
from pathlib import Path
from statistics import mean
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

import uqgan
from uqgan import metrics
from uqgan.api import scores_record
from uqgan.evaluation import Outputs, evaluate, ranking
from uqgan.files import write_json
from uqgan.methods import METHODS

RESULTS = Path(__file__).parent.parent / "results" / "digits"


def work(job: tuple[str, int, str]) -> tuple[str, int, dict[str, Any], Outputs]:
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    method, seed, device = job
    run = uqgan.fit(method, "digits", seed=seed, device=device)
    outputs = run.outputs()
    record = scores_record(run, evaluate(outputs))
    command = f"uqgan train digits --method {method} --seed {seed} --device {device}"
    return method, seed, record | {"command": command}, outputs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    jobs = [(method, seed, arguments.device) for method in METHODS for seed in arguments.seeds]
    with ProcessPoolExecutor(arguments.workers, get_context("spawn")) as pool:
        done = list(pool.map(work, jobs))
    for method, seed, record, _ in done:
        write_json(arguments.results / method / f"seed-{seed}.json", record)
    for method in METHODS:
        scores = [record["scores"] for name, _, record, _ in done if name == method]
        sets = {name: mean(s["sets"][name]["auroc"] for s in scores) for name in scores[0]["sets"]}
        cells = "  ".join(f"{name} {100 * value:.2f}" for name, value in sets.items())
        print(f"{method:12} accuracy {100 * mean(s['accuracy'] for s in scores):.2f}  AUROC: {cells}")
    compare({(method, seed): outputs for method, seed, _, outputs in done}, arguments)


def compare(outputs: dict[tuple[str, int], Outputs], arguments: argparse.Namespace) -> None:
    """AUROC of UQGAN minus that of One-vs-All on the same samples, for each OoD set and seed."""
    rows = []
    for seed in arguments.seeds:
        ours, theirs = outputs["uqgan", seed], outputs["one-vs-all", seed]
        for name in ours.ood:
            score, is_ood = ranking(ours, "epistemic", name)
            found = metrics.paired_bootstrap(score, ranking(theirs, "epistemic", name)[0], is_ood)
            rows.append({"seed": seed, "set": name, **asdict(found)})
            d = found.difference
            print(
                f"uqgan - one-vs-all, seed {seed}, {name:14} {100 * d.estimate:+.2f} "
                f"({100 * d.low:+.2f} to {100 * d.high:+.2f}), p = {found.p_value:.3f}"
            )
    write_json(arguments.results / "uqgan-against-one-vs-all.json", rows)


if __name__ == "__main__":
    main()
