"""A trained method, as `fit` and `load` return it. It composes the modules below and holds no maths."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor

from uqgan.config import suggest
from uqgan.data.tasks import Task, is_user_data, load_task
from uqgan.errors import UsageError
from uqgan.evaluation import Outputs, evaluate, predict_task
from uqgan.runs import RAW_SCORES, Record, check_same_data, write_scores
from uqgan.samples import as_path, brief, check_seed, checked_samples, whole
from uqgan.uncertainty import Prediction

MOST_EXAMPLES = 10_000


class Run:
    """A trained method: ask it about pictures, test it, let it make out-of-class examples."""

    def __init__(self, record: Record, task: Task | None = None, data_root: str | Path | None = None) -> None:
        self.record = record
        self._task, self._data_root = task, data_root

    def __repr__(self) -> str:
        plan = self.record.plan
        return f"<Run {plan.method} on {plan.task}, seed {plan.seed}>"

    @property
    def class_names(self) -> tuple[str, ...]:
        return self.record.plan.class_names

    @property
    def task(self) -> Task:
        """Task it was trained on, loaded again by name if needed."""
        if self._task is None:
            plan = self.record.plan
            size, channels = (plan.shape[-1], plan.shape[0]) if is_user_data(plan.task) else (None, None)
            self._task = load_task(plan.task, 0, self._data_root, size, channels, skip_broken=True)
            check_same_data(plan, self._task)
        return self._task

    def predict(self, x: Tensor | npt.NDArray[Any], seed: int | None = 0, member: int | None = None) -> Prediction:
        """Classes and uncertainties of images (uint8, or floats in [0, 1]) or points.

        Stochastic methods repeat their draws with the same seed; None draws afresh each time. `member` reads one member
        of an ensemble alone.
        """
        inputs = checked_samples(x, self.record.plan.shape)
        seed = None if seed is None else check_seed(seed)
        predictor = self.record.predictor
        if member is not None:
            predictor = predictor.member(whole(member, "member", 0, len(predictor.members) - 1))
        return predictor.predict(inputs, seed).cpu()

    def outputs(self, validation: bool = False) -> Outputs:
        """Predictions for all test samples of its task, or for those of validation."""
        return predict_task(self.record.predictor, self.task, self.record.plan.seed, validation)

    def evaluate(
        self, resamples: int = 1000, validation: bool = False, outputs: Outputs | None = None
    ) -> dict[str, Any]:
        """The paper's columns, per OoD set and together, with 95 % intervals.

        To choose settings, take `validation`: samples that neither training nor the test sets hold. `outputs` are
        predictions made before.
        """
        return evaluate(outputs or self.outputs(validation), resamples) | {"missing": self.task.missing}

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
        """Write the run's folder; `uqgan.load` brings it back bit for bit."""
        place = as_path(folder, "folder")
        self.record.write(place)
        return place


def save_scores(folder: Path, run: Run, found: Mapping[str, Any], outputs: Outputs) -> None:
    """Write into a run's folder the raw scores, and scores.json with all that they depend on."""
    outputs.write(folder / RAW_SCORES)
    write_scores(folder, run.record, found)
