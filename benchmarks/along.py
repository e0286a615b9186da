"""How UQGAN's accuracy and AUROC on validation samples go along a run, with each part in a precision of its own.

    python benchmarks/along.py mnist [--method uqgan-mc] [--seeds 0 1 2] [--parts fp32,fp32,fp32 bf16,fp32,fp32]
                               [--every 100] [--workers 6] [--json FILE]

Parts are the autoencoder while it is trained, the autoencoder in the game, and the classifier. AUROC is by Eq. 4, of 16
draws with MC-dropout. Printed are the checkpoint that a run would keep, and the mean over the second half of the run.
Settings can be given as for `uqgan train`. Test sets are left alone.
"""

import argparse
import os
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from statistics import mean, stdev
from typing import Any, cast

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

from iteration import append
from quality import tree
from uqgan import metrics
from uqgan.acceleration import Precision, choose_device, keep_freed_memory, prepare
from uqgan.config import Config, load_config
from uqgan.data.tasks import Task, load_task
from uqgan.errors import UsageError
from uqgan.evaluation import predict_task, ranking, set_names
from uqgan.log import Log
from uqgan.methods import METHODS, Predictor
from uqgan.methods.uqgan import fit_jointly
from uqgan.models.autoencoders import CODERS
from uqgan.pretraining import pretrain
from uqgan.runs import describe, versions

DRAWS = 16


@dataclass(frozen=True)
class Job:
    task: str
    method: str
    seed: int
    parts: str
    """Three precisions, with commas between."""
    every: int
    device: str
    settings: dict[str, Any]


class AsAsked(Config):
    """Trains a small autoencoder in bf16, too, if that is asked for."""

    @property
    def pretraining_precision(self) -> Precision:
        return self.precision


class Along(Log):
    """Notes at each validation of the classifier how well it tells the OoD sets apart."""

    def __init__(self, predictor: Predictor, task: Task, seed: int) -> None:
        super().__init__(seed=seed)
        self.predictor, self.task = predictor, task
        self.found: list[dict[str, Any]] = []

    def write(self, row: Mapping[str, Any]) -> None:
        super().write(row)
        if row["stage"] == "uqgan":
            self.found.append({key: row[key] for key in ("step", "accuracy")} | {"auroc": self.aurocs()})

    def aurocs(self) -> dict[str, float]:
        outputs = predict_task(self.predictor, self.task, seed=0, validation=True)
        return {name: metrics.auroc(*ranking(outputs, "epistemic", name)) for name in set_names(outputs)}


def work(job: Job) -> dict[str, Any]:
    device = choose_device(job.device)
    if device.type == "cpu":
        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
        keep_freed_memory()
    task = load_task(job.task).to(device)
    training, game, classifier = cast(list[Precision], job.parts.split(","))
    config = AsAsked(**load_config(job.task, overrides={**job.settings, "precision": training}).model_dump())
    config = config.model_copy(update={"uqgan": config.uqgan.model_copy(update={"validate_every": job.every})})
    torch.manual_seed(job.seed)
    predictor = METHODS[job.method].assemble(task.shape, task.n_classes, config).to(device)
    predictor.passes = min(predictor.passes, DRAWS)
    predictor.prior.copy_(task.train.class_frequencies(task.n_classes))
    nets, log = cast(Any, predictor.members[0]), Along(predictor, task, job.seed)
    A, G = nets.shield.autoencoder, nets.shield.generator
    pretrain(A, task, config, log)
    prepare(A, game, *CODERS)
    prepare(nets.classifier, classifier)
    fit_jointly(nets.classifier, G, A.eval().requires_grad_(False), task, config, log)
    facts = {"task": job.task, "method": job.method, "seed": job.seed, "parts": job.parts}
    return facts | {"rows": log.found, "device": describe(device), "versions": versions()}


def kept(rows: list[dict[str, Any]]) -> Mapping[str, float]:
    """Of the checkpoint that a run would keep: the last of the most accurate ones."""
    most = max(row["accuracy"] for row in rows)
    return cast(Mapping[str, float], [row["auroc"] for row in rows if row["accuracy"] == most][-1])


def late(rows: list[dict[str, Any]]) -> Mapping[str, float]:
    """The mean over the second half."""
    half = rows[len(rows) // 2 :]
    return {name: mean(row["auroc"][name] for row in half) for name in rows[0]["auroc"]}


def show(parts: str, runs: list[dict[str, Any]]) -> None:
    print(f"\n{parts}, {len(runs)} seeds")
    for name in runs[0]["rows"][0]["auroc"]:
        cells = []
        for read in (kept, late):
            values = [100 * read(run["rows"])[name] for run in runs]
            cells.append(f"{mean(values):6.2f} ± {stdev(values) if len(values) > 1 else 0:.2f}")
        print(f"    {name:16} kept {cells[0]}   second half {cells[1]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task")
    parser.add_argument("--method", default="uqgan", choices=["uqgan", "uqgan-mc"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--parts", nargs="+", default=["fp32,fp32,fp32", "bf16,bf16,bf16"])
    parser.add_argument("--every", type=int, default=100, help="iterations between two looks")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--json", type=Path)
    chosen, words = parser.parse_known_args()
    for parts in chosen.parts:
        if len(parts.split(",")) != 3 or not set(parts.split(",")) <= {"fp32", "bf16"}:
            parser.error(f"--parts {parts}: must be three of fp32 and bf16, with commas between")
    jobs = [
        Job(chosen.task, chosen.method, seed, parts, chosen.every, chosen.device, tree(words))
        for parts, seed in product(chosen.parts, chosen.seeds)
    ]
    runs = []
    try:
        with ProcessPoolExecutor(chosen.workers, get_context("spawn")) as pool:
            for run in pool.map(work, jobs):
                runs.append(run)
                if chosen.json:
                    append(chosen.json, [run])
    except UsageError as error:
        parser.error(str(error))
    for parts in chosen.parts:
        show(parts, [run for run in runs if run["parts"] == parts])


if __name__ == "__main__":
    main()
