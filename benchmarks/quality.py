"""Scores of methods on a task, several seeds, under results/TASK/METHOD/; their means; two methods compared, paired.

    python benchmarks/quality.py digits [--methods uqgan one-vs-all] [--seeds 0 1 2] [--device cuda] [--workers 2]
    python benchmarks/quality.py mnist --validation --uqgan.gan-lr 2e-4

--validation scores validation samples, known and OoD, and leaves the test sets alone: for choosing settings; it writes
files only with --results. Settings can be given as for `uqgan train`. Runs are kept with --runs, with their raw scores,
and resumed if they were stopped. --commit is for copies of the tree without git. `make results` shows the scores.
"""

import argparse
import json
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from statistics import mean, stdev
from tempfile import TemporaryDirectory
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

import uqgan
from uqgan import metrics
from uqgan.environment import COMMIT
from uqgan.errors import UsageError
from uqgan.evaluation import Outputs, evaluate, ranking
from uqgan.files import write_json
from uqgan.methods import METHODS
from uqgan.runs import RAW_SCORES, SCORES, write_scores

RESULTS = Path(__file__).parent.parent / "results"


@dataclass(frozen=True)
class Job:
    task: str
    method: str
    seed: int
    device: str
    validation: bool
    runs: Path | None
    results: Path | None
    commit: str | None
    settings: dict[str, Any]

    @property
    def command(self) -> str:
        words = ["uqgan", "train", self.task, "--method", self.method, "--seed", str(self.seed)]
        return " ".join([*words, "--device", self.device, *flags(self.settings)])


def flags(settings: dict[str, Any], prefix: str = "--") -> list[str]:
    """A tree of settings as `uqgan train` takes them."""
    words: list[str] = []
    for key, value in settings.items():
        name = prefix + key.replace("_", "-")
        words += flags(value, f"{name}.") if isinstance(value, dict) else [name, str(value)]
    return words


def tree(words: Sequence[str]) -> dict[str, Any]:
    """The other way round."""
    found: dict[str, Any] = {}
    for flag, value in zip(words[::2], words[1::2], strict=True):
        *sections, key = flag.removeprefix("--").replace("-", "_").split(".")
        inner = found
        for section in sections:
            inner = inner.setdefault(section, {})
        inner[key] = value
    return found


def work(job: Job) -> tuple[Job, dict[str, Any], Outputs]:
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    folder = job.runs / job.task / job.method / f"seed-{job.seed}" if job.runs else None
    resume = folder is not None and (folder / "config.yaml").exists()
    run = uqgan.fit(
        job.method, job.task, seed=job.seed, folder=folder, resume=resume, device=job.device, quiet=True, **job.settings
    )
    outputs = run.outputs(validation=job.validation)
    found = evaluate(outputs, resamples=0 if job.validation else 1000) | {"missing": sorted(run.task.missing)}
    with TemporaryDirectory() as place:
        write_scores(Path(place), run.record, found)
        record = json.loads((Path(place) / SCORES).read_text())
    print(f"{job.command}: accuracy {100 * record['scores']['accuracy']:.2f}, {record['seconds']} s", flush=True)
    record |= {"samples": "validation" if job.validation else "test", "command": job.command, "commit": job.commit}
    if folder:
        outputs.write(folder / RAW_SCORES)
    if job.results:
        write_json(job.results / job.task / job.method / f"seed-{job.seed}.json", record)
    return job, record, outputs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task")
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--validation", action="store_true")
    parser.add_argument("--runs", type=Path)
    parser.add_argument("--results", type=Path, help="where files go: results/, or nowhere with --validation")
    parser.add_argument("--commit", default=COMMIT)
    chosen, words = parser.parse_known_args()
    results = chosen.results or (None if chosen.validation else RESULTS)
    jobs = [
        Job(
            chosen.task,
            method,
            seed,
            chosen.device,
            chosen.validation,
            chosen.runs,
            results,
            chosen.commit,
            tree(words),
        )
        for method in chosen.methods
        for seed in chosen.seeds
    ]
    try:
        with ProcessPoolExecutor(chosen.workers, get_context("spawn")) as pool:
            done = list(pool.map(work, jobs))
    except UsageError as error:
        parser.error(str(error))
    for method in chosen.methods:
        show(method, [record["scores"] for job, record, _ in done if job.method == method])
    if {"uqgan", "one-vs-all"} <= set(chosen.methods):
        compare(
            {(job.method, job.seed): outputs for job, _, outputs in done},
            chosen.seeds,
            results and results / chosen.task,
        )


def show(method: str, scores: list[dict[str, Any]]) -> None:
    """Means and standard deviations over the seeds, in percent; AUROC by Eq. 4 and by foreignness."""

    def cell(values: list[float | None]) -> str:
        known = [100 * value for value in values if value is not None]
        return f"{mean(known):.2f} ± {stdev(known) if len(known) > 1 else 0:.2f}" if known else "-"

    print(f"\n{method}: " + ", ".join(f"{k} {cell([s[k] for s in scores])}" for k in ("accuracy", "auroc_sf", "ece")))
    for name in scores[0]["sets"]:
        eq_4, foreign = (cell([s[column][name]["auroc"] for s in scores]) for column in ("sets", "foreignness"))
        print(f"    {name:16} AUROC {eq_4:14}  by foreignness {foreign:14}")


def compare(outputs: dict[tuple[str, int], Outputs], seeds: list[int], folder: Path | None) -> None:
    """AUROC of UQGAN minus that of One-vs-All on the same samples, for each OoD set and seed."""
    rows = []
    for seed in seeds:
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
    if folder:
        write_json(folder / "uqgan-against-one-vs-all.json", rows)


if __name__ == "__main__":
    main()
