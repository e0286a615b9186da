"""Joint detection: is a sample classified correctly (TP), wrongly (FP), or is it out-of-distribution (OoD)?

Gradient-boosted trees predict it from a method's uncertainty scores, with or without its class probabilities. They are
fitted on validation samples, known and OoD, and tested on the test samples.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import joblib
import numpy as np

from uqgan.errors import UsageError
from uqgan.evaluation import Outputs, raw_digest
from uqgan.methods import METHODS, Method
from uqgan.ranking import Floats, Indices
from uqgan.uncertainty import Prediction, read_max_softmax, read_mutual_information, read_one_vs_all

GROUPS = ("tp", "fp", "ood")
"""Groups of samples: correctly classified, wrongly classified, and of no known class."""
KINDS = ("scores_and_probs", "scores")
"""Features of the trees: uncertainty scores with the class probabilities, or alone."""
TREES, DEPTH = 100, 5
PARALLEL_FROM = 2_000
"""Least number of training samples for which a separate process is faster."""


@dataclass(frozen=True)
class Job:
    """A fit on the validation samples of a run, tested on its test samples."""

    method: str
    kind: str
    validation: Outputs
    test: Outputs
    quick: bool = False


@dataclass(frozen=True)
class Samples:
    """Features of samples, and the part of each: 0 TP, 1 FP, from 2 on one per OoD set."""

    x: Floats
    part: Indices

    @property
    def group(self) -> Indices:
        """Group of each sample: 0 TP, 1 FP, 2 OoD."""
        return np.minimum(self.part, 2)


def score_columns(method: Method) -> tuple[str, ...]:
    """Uncertainty scores of a method for joint detection, as in the paper."""
    draws = method.passes * method.members
    if method.reading is read_one_vs_all:
        return ("epistemic", "aleatoric") if draws == 1 else ("epistemic", "mean_entropy", "spread")
    if method.reading is read_mutual_information:
        return ("aleatoric", "epistemic")
    return ("epistemic",) if draws == 1 else ("epistemic", "spread")


def columns(method: Method, kind: str) -> tuple[str, ...]:
    """Columns of a prediction used as features; Max. Softmax has no score besides its probabilities."""
    if kind == "scores":
        return score_columns(method)
    return ("probs",) if method.reading is read_max_softmax else ("probs", *score_columns(method))


def holds(outputs: Outputs, method: Method) -> bool:
    """Whether outputs have all columns for joint detection, which raw scores of older versions may lack."""
    every = (outputs.test, *outputs.ood.values())
    return all(getattr(each, name) is not None for each in every for name in score_columns(method))


def features(prediction: Prediction, method: Method, kind: str) -> Floats:
    """Features, one row per sample."""
    found = [getattr(prediction, name).double().numpy() for name in columns(method, kind)]
    return np.column_stack(found)


def samples_of(outputs: Outputs, method: Method, kind: str) -> Samples:
    """Features and parts of the known samples, then of each OoD set in order."""
    known = np.where(outputs.right.numpy(), 0, 1)
    foreign = [np.full(len(each.probs), 2 + k) for k, each in enumerate(outputs.ood.values())]
    x = [features(each, method, kind) for each in (outputs.test, *outputs.ood.values())]
    return Samples(np.concatenate(x), np.concatenate([known, *foreign]))


def weights(part: Indices) -> Floats:
    """Sample weights whose sum is 1 per group, and within OoD equal for all sets."""
    counts = np.bincount(part, minlength=3)
    sets = max(1, int(np.count_nonzero(counts[2:])))
    shares = np.where(np.arange(len(counts)) < 2, 1.0, 1 / sets) / np.maximum(counts, 1)
    found: Floats = shares[part]
    return found


def fit_trees(samples: Samples, quick: bool) -> Any:
    """Trees fitted on samples of all three groups; `quick` ones split at 255 quantiles of a feature only."""
    from sklearn.ensemble import GradientBoostingClassifier, HistGradientBoostingClassifier

    weight = weights(samples.part)
    trees = GradientBoostingClassifier(n_estimators=TREES, max_depth=DEPTH, random_state=0)
    if quick:
        weight /= weight.mean()  # leaves have a minimum sum of weights
        trees = HistGradientBoostingClassifier(
            max_iter=TREES, max_depth=DEPTH, max_leaf_nodes=None, early_stopping=False, random_state=0
        )
    return trees.fit(samples.x, samples.group, sample_weight=weight)


def model(quick: bool) -> dict[str, Any]:
    """Description of the trees, for records."""
    name = "HistGradientBoostingClassifier" if quick else "GradientBoostingClassifier"
    return {"name": name, "trees": TREES, "depth": DEPTH, "learning_rate": 0.1}


def detect(job: Job) -> dict[str, Any]:
    """Fit on validation samples, and evaluate on test samples."""
    method = METHODS[job.method]
    check(job.validation)
    trees = fit_trees(samples_of(job.validation, method, job.kind), job.quick)
    tested = samples_of(job.test, method, job.kind)
    return {"features": list(columns(method, job.kind)), **outcome(trees.predict(tested.x), tested, list(job.test.ood))}


def outcome(found: Indices, tested: Samples, sets: Sequence[str]) -> dict[str, Any]:
    """Accuracy (recall) per group, None for an empty one, and the confusion matrix: group (row), prediction (column).

    `sets` has the shares of each OoD set predicted to be TP, FP and OoD, `ood_mean` the mean share found over the sets.
    """
    confusion = np.stack([np.bincount(found[tested.group == k], minlength=3) for k in range(3)])
    totals = confusion.sum(1)
    per_set = {}
    for k, name in enumerate(sets, 2):
        counts = np.bincount(found[tested.part == k], minlength=3)
        per_set[name] = dict(zip(GROUPS, (counts / max(1, counts.sum())).tolist(), strict=True))
    recalls = [float(confusion[k, k] / totals[k]) if totals[k] else None for k in range(3)]
    return {
        "per_class": dict(zip(GROUPS, recalls, strict=True)),
        "accuracy": float(confusion.trace() / totals.sum()),
        "confusion": confusion.tolist(),
        "sets": per_set,
        "ood_mean": float(np.mean([row["ood"] for row in per_set.values()])) if per_set else None,
    }


def check(validation: Outputs) -> None:
    """Refuse validation samples in which one of the three groups is missing."""
    wrong, n = int((~validation.right).sum()), len(validation.y)
    foreign = sum(len(each.probs) for each in validation.ood.values())
    rule = "joint detection is fitted on samples of all three kinds"
    if not foreign:
        raise UsageError(f"validation: has no OoD samples, {rule} (train on a task with OoD sets)")
    if wrong in (0, n):
        found = "none is" if wrong == 0 else "all are"
        raise UsageError(f"validation: of {n:,} known samples {found} classified wrongly, {rule} (take more samples)")


def sizes(outputs: Outputs) -> dict[str, Any]:
    """Number of samples per group."""
    right = int(outputs.right.sum())
    return {"tp": right, "fp": len(outputs.y) - right, "ood": {name: len(p.probs) for name, p in outputs.ood.items()}}


def facts(validation: Outputs, test: Outputs) -> dict[str, Any]:
    """Numbers of samples for fit and test, with the digests of both predictions."""
    return {
        "fitted_on": sizes(validation),
        "tested_on": sizes(test),
        "raw_sha256": raw_digest(test),
        "raw_validation_sha256": raw_digest(validation),
    }


def detect_all(jobs: Sequence[Job]) -> list[dict[str, Any]]:
    """Results of the jobs, in order; large ones run in parallel on the cores of this machine."""
    largest = max(
        (sum(len(p.probs) for p in (job.validation.test, *job.validation.ood.values())) for job in jobs), default=0
    )
    processes = min(joblib.cpu_count(), len(jobs)) if largest >= PARALLEL_FROM else 1
    return list(joblib.Parallel(n_jobs=processes)(joblib.delayed(detect)(job) for job in jobs))
