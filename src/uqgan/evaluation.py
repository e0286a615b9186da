"""A trained method on a task: the paper's columns, for each OoD set and for all of them together."""

import hashlib
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import partial
from typing import Any

import joblib
import torch
from torch import Tensor

from uqgan import metrics
from uqgan.data.tasks import Task
from uqgan.methods import Predictor
from uqgan.ranking import Resampling
from uqgan.uncertainty import Prediction

PAYS_FROM = 20_000_000
"""Least number of resampled samples per process: to start one takes as long as to resample that many."""


@dataclass(frozen=True)
class Outputs:
    """What a method said about a task's test samples."""

    y: Tensor
    test: Prediction
    ood: dict[str, Prediction]

    @property
    def right(self) -> Tensor:
        return self.test.labels == self.y


def predict_task(predictor: Predictor, task: Task, seed: int, validation: bool = False) -> Outputs:
    """Read all test samples, or those of validation; the seed fixes the draws of stochastic methods."""
    known, foreign = (task.validation, task.ood_validation) if validation else (task.test, task.ood)
    return Outputs(
        y=known.y.cpu(),
        test=predictor.predict(known.x, seed).cpu(),
        ood={name: predictor.predict(x, seed + k).cpu() for k, (name, x) in enumerate(foreign.items(), 1)},
    )


def evaluate(outputs: Outputs, resamples: int = 1000) -> dict[str, Any]:
    """Scores as fractions, and their bootstrap intervals in the same shape (none if resamples = 0).

    `sets` ranks by Eq. 4, as the paper does; `foreignness` by 1 - Σ_y C̃(i|x,y) beside it.
    """
    return {
        "scores": scores(outputs),
        "intervals": intervals(outputs, resamples) if resamples else {},
        "raw_sha256": raw_digest(outputs),
    }


def raw_digest(outputs: Outputs) -> str:
    """Of all that was said about the test samples: two runs with the same digest said the same."""
    digest = hashlib.sha256()
    for prediction in (outputs.test, *outputs.ood.values()):
        for column in (prediction.probs, prediction.aleatoric, prediction.epistemic, prediction.foreignness):
            digest.update(column.contiguous().numpy().tobytes())
    return digest.hexdigest()


def scores(outputs: Outputs) -> dict[str, Any]:
    """One row of the paper's tables; AUROC S/F is None where nothing, or all, is wrong."""
    wrong = ~outputs.right
    return {
        "accuracy": metrics.accuracy(outputs.test.probs, outputs.y),
        "auroc_sf": metrics.auroc(outputs.test.aleatoric, wrong) if _both(wrong) else None,
        "ece": metrics.calibration_error(outputs.test.probs.amax(1), outputs.right),
        "sets": {name: metrics.ood_scores(*ranking(outputs, "epistemic", name)) for name in set_names(outputs)},
        "foreignness": {
            name: metrics.ood_scores(*ranking(outputs, "foreignness", name)) for name in set_names(outputs)
        },
    }


def intervals(outputs: Outputs, resamples: int) -> dict[str, Any]:
    """95 % intervals of these scores, as [low, high]; of foreignness for its AUROC only."""
    wrong, confidence = ~outputs.right, outputs.test.probs.amax(1)
    names = set_names(outputs)
    work = resamples * sum(len(ranking(outputs, "epistemic", name)[0]) for name in names)
    processes = max(1, min(joblib.cpu_count(), work // PAYS_FROM))
    found = {name: _ood_intervals(outputs, name, resamples, processes) for name in names}
    return {
        "accuracy": _ends(metrics.mean_interval(outputs.right.double(), resamples)),
        "auroc_sf": _ends(metrics.auroc_interval(outputs.test.aleatoric, wrong, resamples)) if _both(wrong) else None,
        "ece": _ends(metrics.calibration_interval(confidence, outputs.right, resamples=resamples)),
        "sets": {name: epistemic for name, (epistemic, _) in found.items()},
        "foreignness": {name: {"auroc": auroc} for name, (_, auroc) in found.items()},
    }


def set_names(outputs: Outputs) -> list[str]:
    """The OoD sets, `all` first where there are several."""
    return (["all"] if len(outputs.ood) > 1 else []) + list(outputs.ood)


def ranking(outputs: Outputs, column: str, name: str) -> tuple[Tensor, Tensor]:
    """Test samples and those of an OoD set (or `all`) with one score each, and which of them are OoD."""
    known = getattr(outputs.test, column)
    chosen = outputs.ood.values() if name == "all" else [outputs.ood[name]]
    score = torch.cat([known, *(getattr(each, column) for each in chosen)])
    return score, torch.arange(len(score)) >= len(known)


def _ood_intervals(
    outputs: Outputs, name: str, resamples: int, processes: int
) -> tuple[dict[str, list[float]], list[float]]:
    """Intervals of all columns of epistemic, and of the AUROC of foreignness, on the same resamples."""
    (epistemic, is_ood), (foreignness, _) = (ranking(outputs, each, name) for each in ("epistemic", "foreignness"))
    shared = partial(_replicates, processes)
    found = metrics.ood_intervals(epistemic, is_ood, resamples, second_score=foreignness, replicates=shared)
    ends = {metric: _ends(interval) for metric, interval in found.items()}
    return ends, ends.pop("auroc_second")


def _replicates(processes: int, resampling: Resampling, resamples: int, seed: int) -> list[dict[str, float]]:
    """Metrics of every resample, computed in several processes from the same draws."""
    shares = [(k, processes) for k in range(processes)]
    calls = (joblib.delayed(Resampling.replicates)(resampling, resamples, seed, share) for share in shares)
    try:
        found = joblib.Parallel(processes, max_nbytes=None)(calls)
    except BrokenProcessPool:  # a worker was killed
        return resampling.replicates(resamples, seed)
    return [each for share in found for each in share]


def _both(flags: Tensor) -> bool:
    return bool(flags.any()) and not bool(flags.all())


def _ends(interval: metrics.Interval) -> list[float]:
    return [interval.low, interval.high]
