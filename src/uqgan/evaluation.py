"""Metrics of a trained method on a task, per OoD set and for all sets together."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import joblib
import torch
from torch import Tensor

from uqgan import metrics
from uqgan.data.tasks import Task
from uqgan.decisions import WORDS, Calibration, Decisions
from uqgan.files import read_arrays, write_arrays
from uqgan.methods import Predictor
from uqgan.temperature import fit_temperature
from uqgan.uncertainty import Prediction

PARALLEL_FROM = 20_000_000
"""Least number of resampled samples per process; starting one takes as long as resampling that many."""


@dataclass(frozen=True)
class Outputs:
    """Predictions of a method for a task's test samples."""

    y: Tensor
    test: Prediction
    ood: dict[str, Prediction]

    @property
    def right(self) -> Tensor:
        """Mask of the correctly classified test samples."""
        return self.test.labels == self.y

    def write(self, file: Path) -> None:
        """Write the raw scores as float32 into a compressed .npz file: `y`, `test/probs`, `ood/NAME/epistemic`, …"""
        arrays = {"y": self.y.numpy()} | self.test.arrays("test")
        for name, prediction in self.ood.items():
            arrays |= prediction.arrays(f"ood/{name}")
        write_arrays(file, arrays)

    @staticmethod
    def read(file: Path) -> "Outputs":
        """Raw scores of an evaluation, from which any metric can be computed without the model."""
        with read_arrays(file, "raw scores", "uqgan evaluate writes them") as arrays:
            ood = [key.removeprefix("ood/") for key in arrays if key.startswith("ood/")]
            names = dict.fromkeys(key.rpartition("/")[0] for key in ood)
            return Outputs(
                y=arrays["y"],
                test=Prediction.of_arrays("test", arrays),
                ood={name: Prediction.of_arrays(f"ood/{name}", arrays) for name in names},
            )


def predict_task(predictor: Predictor, task: Task, seed: int, validation: bool = False) -> Outputs:
    """Predictions for the test samples, or those of validation; the seed fixes the draws of stochastic methods."""
    known, ood = (task.validation, task.ood_validation) if validation else (task.test, task.ood)
    return Outputs(known.y.cpu(), predictor.predict(known.x, seed).cpu(), predict_foreign(predictor, ood, seed))


def predict_foreign(predictor: Predictor, ood: Mapping[str, Tensor], seed: int) -> dict[str, Prediction]:
    """Predictions for OoD sets by name, each with draws of its own."""
    return {name: predictor.predict(x, seed + k).cpu() for k, (name, x) in enumerate(ood.items(), 1)}


def calibrate(predictor: Predictor, task: Task, seed: int) -> Calibration:
    """Scores of the calibration samples, and the temperature fitted on those of validation."""
    checked = predictor.predict(task.validation.x, seed).cpu()
    known = task.calibration
    scored = predictor.predict(known.x, seed).cpu() if len(known) else checked.first(0)
    return Calibration(known.y.cpu(), scored, fit_temperature(checked.probs, task.validation.y.cpu()))


def evaluate(outputs: Outputs, resamples: int = 1000, class_names: Sequence[str] = ()) -> dict[str, Any]:
    """Metrics as fractions, and their bootstrap intervals in the same structure (none if resamples = 0).

    `sets` ranks by the epistemic uncertainty (Eq. 4, as in the paper), `foreignness` by 1 - Σ_y C̃(i|x,y). With names
    of the classes the scores have a row for each of them, and the confusion matrix.
    """
    return {
        "scores": scores(outputs) | (classes(outputs, class_names) if class_names else {}),
        "intervals": intervals(outputs, resamples) if resamples else {},
        "raw_sha256": raw_digest(outputs),
    }


def raw_digest(outputs: Outputs) -> str:
    """Digest of all predictions for the test samples, as they are stored: equal digests mean equal predictions."""
    digest = hashlib.sha256()
    for prediction in (outputs.test, *outputs.ood.values()):
        for column in (prediction.probs, prediction.aleatoric, prediction.epistemic, prediction.foreignness):
            digest.update(column.float().contiguous().numpy().tobytes())
    return digest.hexdigest()


def scores(outputs: Outputs) -> dict[str, Any]:
    """One row of the paper's tables; AUROC S/F is None where no prediction, or every one, is wrong."""
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


def balanced(outputs: Outputs) -> dict[str, Any]:
    """OoD metrics of all sets together with equal weight per set, and the total weight of the known samples.

    The metrics then do not depend on the `sizes` of the sets, which are returned beside them.
    """
    sizes = {"known": len(outputs.y), **{name: len(each.epistemic) for name, each in outputs.ood.items()}}
    sets = {name: size for name, size in sizes.items() if name != "known" and size}
    if not sets:
        return {"sizes": sizes}
    score = torch.cat([outputs.test.epistemic, *(outputs.ood[name].epistemic for name in sets)])
    shares = [1 / sizes["known"], *(1 / (len(sets) * size) for size in sets.values())]
    counts = torch.tensor([sizes["known"], *sets.values()])
    weight = torch.tensor(shares, dtype=torch.double).repeat_interleave(counts)
    return {"sizes": sizes, **metrics.ood_scores(score, torch.arange(len(score)) >= sizes["known"], weight)}


def classes(outputs: Outputs, class_names: Sequence[str]) -> dict[str, Any]:
    """Accuracy (recall) per class, None without samples, and the confusion matrix: class (row), prediction (column)."""
    confusion = metrics.confusion(outputs.test.labels, outputs.y, len(class_names))
    counts, right = confusion.sum(1).tolist(), confusion.diagonal().tolist()
    return {
        "per_class": [
            {"class": name, "accuracy": hits / n if n else None, "n": n}
            for name, hits, n in zip(class_names, right, counts, strict=True)
        ],
        "confusion": confusion.tolist(),
    }


def tempered(outputs: Outputs, calibration: Calibration) -> dict[str, float]:
    """Calibration error of the test samples at the temperature fitted on validation samples."""
    error = metrics.calibration_error(calibration.temper(outputs.test.probs).amax(1), outputs.right)
    return {"temperature": calibration.temperature, "ece": error}


def rates(outputs: Outputs, decide: Callable[[Prediction], Decisions]) -> dict[str, Any]:
    """Shares of flagged samples and of each decision, and the mean size of the prediction sets, which may be empty.

    `known` also has the coverage: the share of test samples whose set contains their class.
    """

    def row(prediction: Prediction, found: Decisions) -> dict[str, Any]:
        n = len(prediction.probs)
        words = {word: sum(each == word for each in found.words) / n for word in WORDS}
        size = float(found.sets.sum(1).double().mean())
        return {"n": n, "flagged": float(found.flagged.double().mean()), **words, "set_size": size}

    known = decide(outputs.test)
    covered = known.sets[torch.arange(len(outputs.y)), outputs.y]
    return {
        "known": row(outputs.test, known) | {"coverage": float(covered.double().mean())},
        "sets": {name: row(prediction, decide(prediction)) for name, prediction in outputs.ood.items()},
    }


def intervals(outputs: Outputs, resamples: int) -> dict[str, Any]:
    """95 % intervals of `scores` as [low, high]; for foreignness of the AUROC only."""
    wrong, confidence = ~outputs.right, outputs.test.probs.amax(1)
    names = set_names(outputs)
    work = resamples * sum(len(ranking(outputs, "epistemic", name)[0]) for name in names)
    processes = max(1, min(joblib.cpu_count(), work // PARALLEL_FROM))
    found = {name: _ood_intervals(outputs, name, resamples, processes) for name in names}
    return {
        "accuracy": _ends(metrics.mean_interval(outputs.right.double(), resamples)),
        "auroc_sf": _ends(metrics.auroc_interval(outputs.test.aleatoric, wrong, resamples)) if _both(wrong) else None,
        "ece": _ends(metrics.calibration_interval(confidence, outputs.right, resamples=resamples)),
        "sets": {name: epistemic for name, (epistemic, _) in found.items()},
        "foreignness": {name: {"auroc": auroc} for name, (_, auroc) in found.items()},
    }


def set_names(outputs: Outputs) -> list[str]:
    """Names of the OoD sets, preceded by `all` if there are several."""
    return (["all"] if len(outputs.ood) > 1 else []) + list(outputs.ood)


def ranking(outputs: Outputs, column: str, name: str) -> tuple[Tensor, Tensor]:
    """Scores of the test samples and of an OoD set (or `all`), and the mask of those that are OoD."""
    known = getattr(outputs.test, column)
    chosen = outputs.ood.values() if name == "all" else [outputs.ood[name]]
    score = torch.cat([known, *(getattr(each, column) for each in chosen)])
    return score, torch.arange(len(score)) >= len(known)


def _ood_intervals(
    outputs: Outputs, name: str, resamples: int, processes: int
) -> tuple[dict[str, list[float]], list[float]]:
    """Intervals of all metrics of `epistemic`, and of the AUROC of `foreignness`, on the same resamples."""
    (epistemic, is_ood), (foreignness, _) = (ranking(outputs, each, name) for each in ("epistemic", "foreignness"))
    found = metrics.ood_intervals(epistemic, is_ood, resamples, second_score=foreignness, processes=processes)
    ends = {metric: _ends(interval) for metric, interval in found.items()}
    return ends, ends.pop("auroc_second")


def _both(flags: Tensor) -> bool:
    return bool(flags.any()) and not bool(flags.all())


def _ends(interval: metrics.Interval) -> list[float]:
    return [interval.low, interval.high]
