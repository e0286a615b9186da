"""A trained method, as `fit` and `load` return it; it only composes other modules."""

import json
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy.typing as npt
import torch
from PIL.Image import Image
from torch import Tensor

from uqgan.config import suggest
from uqgan.data.inputs import as_samples
from uqgan.data.tasks import Task
from uqgan.decisions import Calibration, Decisions, Rule, check_rule, decide
from uqgan.drift import Drift, drift
from uqgan.elsewhere import Facts, current_task, elsewhere, is_gone, without_known
from uqgan.errors import UsageError
from uqgan.evaluation import Outputs, calibrate, evaluate, predict_foreign, predict_task, rates, raw_digest, tempered
from uqgan.files import write_json
from uqgan.runs import CALIBRATION, DECISIONS, RAW_SCORES, SCORES, Record
from uqgan.samples import as_path, brief, check_seed, checked_samples, whole
from uqgan.uncertainty import WITH_FOREIGNNESS, Prediction

MOST_EXAMPLES = 10_000
MOST_RESAMPLES = 1_000_000
Picture = str | Path | Image
Samples = Tensor | npt.NDArray[Any] | Picture | Sequence[Picture]
"""Input of predictions: arrays, tensors; files and Pillow images, one or several."""


class Run:
    """A trained method, for predictions, evaluation, decisions, and generated out-of-class examples."""

    def __init__(self, record: Record, task: Task | None = None, data_root: str | Path | None = None) -> None:
        self.record = record
        self._task, self._data_root = task, data_root
        self._rule: Rule | None = None
        self._home = self
        """The run with the data of its task, where this one is tested on other pictures."""
        self._test_set: Facts | None = None
        """Facts about the test set, where it is not that of the task."""
        self._kept: Outputs | None = None
        """Saved predictions for the test set of the task, where its data are gone."""

    def __repr__(self) -> str:
        plan = self.record.plan
        return f"<Run {plan.method} on {plan.task}, seed {plan.seed}>"

    @property
    def class_names(self) -> tuple[str, ...]:
        return self.record.plan.class_names

    @property
    def task(self) -> Task:
        """Task the run was trained on, loaded again by name if needed, with the present data if they changed."""
        if self._task is None:
            self._task, self._test_set = current_task(self.record, self._data_root)
        return self._task

    def on(self, test: Any = None, ood: Mapping[str, Any] | None = None) -> "Run":
        """The same run with other test data: `run.on("new-photos/").evaluate()`.

        `test` is a folder of class folders, or (x, y) with names or numbers of the run's classes; by default the test
        set of the task. `ood` has a folder or an array per name. With `test` the training data are not needed.
        Pictures that were used for training, validation or calibration are left out.
        """
        other = copy(self)
        if test is None and self._task is None and (kept := self._of_gone_data()):
            other._kept = replace(kept, ood={}) if ood else kept
            other._task, other._test_set = without_known(self.record, ood or {})
            return other
        other._task, other._test_set = elsewhere(self.record, lambda: self.task, test, ood)
        return other

    def _of_gone_data(self) -> Outputs | None:
        """Predictions for its own test set, if it kept them and the data are not there any more."""
        folder = self.record.folder
        kept = folder and is_gone(self.record) and (folder / RAW_SCORES).exists()
        return Outputs.read(folder / RAW_SCORES) if folder and kept else None

    def predict(self, x: Samples, seed: int | None = 0, member: int | None = None) -> Prediction:
        """Classes and uncertainties of images (uint8, or floats in [0, 1]), points, files, or Pillow images.

        Files and Pillow images, one or a list of them, are preprocessed as in training: rotated by EXIF orientation,
        resized by the short side, cropped to the middle, grey or RGB. One that cannot be read is an error.

        Stochastic methods repeat their draws with the same seed; with None every call draws anew. `member` selects a
        single member of an ensemble.
        """
        shape = self.record.plan.shape
        inputs = checked_samples(as_samples(x, shape), shape)
        seed = None if seed is None else check_seed(seed)
        predictor = self.record.predictor
        if member is not None:
            predictor = predictor.member(whole(member, "member", 0, len(predictor.members) - 1))
        return predictor.predict(inputs, seed).cpu()

    def outputs(self, validation: bool = False) -> Outputs:
        """Predictions for all test samples of the task, or for those of validation."""
        if self._task is None and not validation and self._of_gone_data():
            return self.on().outputs()
        if self._kept and not validation:
            foreign = predict_foreign(self.record.predictor, self.task.ood, self.record.plan.seed)
            return replace(self._kept, ood=self._kept.ood | foreign)
        if validation and not len(self.task.validation):
            raise UsageError("validation: no samples of it are there (the run's own data have them)")
        return predict_task(self.record.predictor, self.task, self.record.plan.seed, validation)

    def evaluate(
        self,
        resamples: int = 1000,
        validation: bool = False,
        outputs: Outputs | None = None,
        test: Any = None,
        ood: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """The paper's columns, per OoD set and together, with 95 % intervals; accuracy per class and confusion matrix.

        With `validation` the samples are neither from training nor from the test sets, as needed to choose settings.
        `outputs` are earlier predictions. `test` and `ood` are other pictures, as for `on`.
        """
        if test is not None or ood or (self._task is None and not validation and self._of_gone_data()):
            return self.on(test, ood).evaluate(resamples, validation, outputs)
        resamples = whole(resamples, "resamples", 0, MOST_RESAMPLES)
        if not isinstance(outputs, Outputs | None):
            raise UsageError(f"outputs = {brief(outputs)}: must be what run.outputs() gave")
        outputs = outputs or self.outputs(validation)
        found = evaluate(outputs, resamples, self.class_names) | {"missing": self.task.missing}
        if self._test_set:
            found["test_set"] = self._test_set
        return found | self._decisions(outputs)

    def _decisions(self, outputs: Outputs) -> dict[str, Any]:
        """Rates of the decisions, or the reason for their absence; the calibration error at the temperature."""
        beside: dict[str, Any] = {}
        try:
            if self.calibration.temperature != 1:
                beside["tempered"] = tempered(outputs, self.calibration)
            return beside | {"decisions": rates(outputs, self.decide)}
        except UsageError as error:  # thresholds need calibration samples; the paper's columns do not
            return beside | {"no_decisions": str(error)}

    @cached_property
    def calibration(self) -> Calibration:
        """Scores of the calibration samples; for a run of an older version they are computed from its task."""
        if self.record.calibration:
            return self.record.calibration
        task = self._home.task
        if not len(task.validation):
            raise UsageError(f"run: has no {CALIBRATION}, and its own data lack the samples for it (train it again)")
        return calibrate(self.record.predictor, task, self.record.plan.seed)

    @property
    def has_foreignness(self) -> bool:
        """Whether foreignness is a separate score, which distinguishes a mixture of classes from the unknown."""
        return self.record.predictor.reading in WITH_FOREIGNNESS

    @property
    def rule(self) -> Rule:
        """Rule of its decisions: the last one set by `calibrate`, or else the defaults of `Rule`."""
        if self._rule is None:
            file = self.record.folder and self.record.folder / DECISIONS
            self._rule = Rule.read(file) if file and file.exists() else Rule()
        return self._rule

    def calibrate(
        self,
        false_alarm: float = 0.05,
        coverage: float = 0.9,
        score: str = "epistemic",
        per_label: bool = False,
        sets: str = "lac",
    ) -> Rule:
        """Change the rule of its decisions, without training; it is saved in the run's folder, if there is one.

        At most `false_alarm` of known samples are flagged, by `score` (`epistemic`, `foreignness` or `aleatoric`), and
        of each predicted label if `per_label`; `coverage` of the sets of classes (`lac` or `aps`) hold the true one.
        """
        rule = Rule(false_alarm, coverage, score, per_label, sets)
        check_rule(self.calibration, rule, self.class_names)
        self._rule = rule
        if folder := self.record.folder:
            if not self.record.calibration:
                self.calibration.write(folder / CALIBRATION)
            rule.write(folder / DECISIONS)
        return rule

    def decide(self, x: Prediction | Tensor | npt.NDArray[Any], seed: int | None = 0) -> Decisions:
        """Accept, ambiguous or unknown, and a set of classes, for samples or for earlier predictions."""
        seed = None if seed is None else check_seed(seed)
        prediction = x if isinstance(x, Prediction) else self.predict(x, seed)
        return decide(prediction, self.calibration, self.rule, self.has_foreignness, seed)

    def drift(self, x: Prediction | Tensor | npt.NDArray[Any], seed: int | None = 0) -> Drift:
        """Comparison of a batch of new samples, or of earlier predictions, with the calibration samples."""
        prediction = x if isinstance(x, Prediction) else self.predict(x, seed)
        return drift(self.calibration, getattr(prediction, self.rule.score), self.rule)

    def generate(self, label: int | str, n: int = 16, seed: int | None = None) -> Tensor:
        """Out-of-class examples of a class: pixels in [0, 1], or points."""
        names = self.class_names
        n = whole(n, "n", 1, MOST_EXAMPLES)
        seed = None if seed is None else check_seed(seed)
        try:
            index = names.index(label) if isinstance(label, str) else whole(label, "class", 0, len(names) - 1)
        except ValueError:  # a UsageError is one
            close = suggest(str(label), list(names))
            raise UsageError(f"class = {brief(label)}: must be one of {', '.join(names)}{close}") from None
        made = self.record.predictor.generate(torch.full((n,), index), seed)
        if made is None:
            raise UsageError(f"method = {self.record.plan.method}: makes no examples (uqgan and uqgan-mc do)")
        return made.cpu()

    def save(self, folder: str | Path) -> Path:
        """Write the run into a folder; `uqgan.load` restores it bit for bit."""
        rule, place = self.rule, as_path(folder, "folder")
        self.record.write(place)
        rule.write(place / DECISIONS)
        return place


def save_scores(folder: Path, run: Run, found: Mapping[str, Any], outputs: Outputs) -> None:
    """Write the raw scores into a run's folder, and scores.json with the conditions of the scores."""
    outputs.write(folder / RAW_SCORES)
    write_scores(folder, run.record, found)


def kept_scores(folder: Path, run: Run) -> tuple[Outputs, dict[str, Any]] | None:
    """Raw scores and scores in a run's folder, if they are of one evaluation of the test samples as they are now."""
    try:
        outputs, found = Outputs.read(folder / RAW_SCORES), dict(json.loads((folder / SCORES).read_bytes()))
    except (UsageError, OSError, ValueError):
        return None
    task = run.task
    sizes = {name: len(x) for name, x in task.ood.items()} == {name: len(p.probs) for name, p in outputs.ood.items()}
    same = sizes and run._test_set is None and torch.equal(outputs.y, task.test.y.cpu())
    return (outputs, found) if same and found.get("raw_sha256") == raw_digest(outputs) else None


def write_scores(folder: Path, record: Record, found: Mapping[str, Any], name: str = SCORES) -> None:
    """Write scores.json, or a file of another name: the scores with their conditions."""
    plan, about = record.plan, record.about
    keys = ("versions", "commit", "command", "device", "seconds", "stage_seconds", "reused")
    facts = {"settings": plan.config.model_dump()} | {key: about.get(key) for key in keys}
    write_json(folder / name, {"task": plan.task, "method": plan.method, "seed": plan.seed, **found, **facts})
