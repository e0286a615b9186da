"""A trained method on a task: the paper's columns, for each OoD set and for all of them together."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from uqgan import metrics
from uqgan.data.tasks import Task
from uqgan.methods import Predictor
from uqgan.uncertainty import Prediction


@dataclass(frozen=True)
class Outputs:
    """What a method said about a task's test samples."""

    y: Tensor
    test: Prediction
    ood: dict[str, Prediction]

    @property
    def right(self) -> Tensor:
        return self.test.labels == self.y


def predict_task(predictor: Predictor, task: Task, seed: int) -> Outputs:
    """Read all test samples; the seed fixes the draws of stochastic methods."""
    return Outputs(
        y=task.test.y,
        test=predictor.predict(task.test.x, seed).cpu(),
        ood={name: predictor.predict(x, seed + k).cpu() for k, (name, x) in enumerate(task.ood.items(), 1)},
    )


def evaluate(outputs: Outputs, resamples: int = 1000) -> dict[str, Any]:
    """Scores as fractions, and their bootstrap intervals in the same shape (none if resamples = 0).

    `sets` ranks by Eq. 4, as the paper does; `foreignness` by 1 - Σ_y C̃(i|x,y) beside it.
    """
    confidence = outputs.test.probs.amax(1)
    scores: dict[str, Any] = {
        "accuracy": metrics.accuracy(outputs.test.probs, outputs.y),
        "auroc_sf": metrics.auroc(outputs.test.aleatoric, ~outputs.right) if _both(outputs.right) else None,
        "ece": metrics.calibration_error(confidence, outputs.right),
    }
    intervals: dict[str, Any] = {}
    if resamples:
        intervals = {
            "accuracy": _ends(metrics.mean_interval(outputs.right.double(), resamples)),
            "auroc_sf": _ends(metrics.auroc_interval(outputs.test.aleatoric, ~outputs.right, resamples))
            if _both(outputs.right)
            else None,
            "ece": _ends(metrics.calibration_interval(confidence, outputs.right, resamples=resamples)),
        }
    for key, column in (("sets", "epistemic"), ("foreignness", "foreignness")):
        rankings = {name: ranking(outputs, column, name) for name in set_names(outputs)}
        scores[key] = {name: metrics.ood_scores(*each) for name, each in rankings.items()}
        if resamples:
            intervals[key] = {
                name: {metric: _ends(found) for metric, found in metrics.ood_intervals(*each, resamples).items()}
                for name, each in rankings.items()
            }
    return {"scores": scores, "intervals": intervals}


def set_names(outputs: Outputs) -> list[str]:
    """The OoD sets, `all` first where there are several."""
    return (["all"] if len(outputs.ood) > 1 else []) + list(outputs.ood)


def ranking(outputs: Outputs, column: str, name: str) -> tuple[Tensor, Tensor]:
    """Test samples and those of an OoD set (or `all`) with one score each, and which of them are OoD."""
    known = getattr(outputs.test, column)
    chosen = outputs.ood.values() if name == "all" else [outputs.ood[name]]
    score = torch.cat([known, *(getattr(each, column) for each in chosen)])
    return score, torch.arange(len(score)) >= len(known)


def _both(flags: Tensor) -> bool:
    return bool(flags.any()) and not bool(flags.all())


def _ends(interval: metrics.Interval) -> list[float]:
    return [interval.low, interval.high]
