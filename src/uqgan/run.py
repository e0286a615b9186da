"""A trained method, as `fit` and `load` return it. It composes the modules below and holds no maths."""

from collections.abc import Callable, Mapping
from copy import copy
from pathlib import Path
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor

from uqgan.config import suggest
from uqgan.data.tasks import Task
from uqgan.elsewhere import Facts, elsewhere, own_task
from uqgan.errors import UsageError
from uqgan.evaluation import Decided, Outputs, evaluate, predict_task, rates
from uqgan.runs import RAW_SCORES, Record, write_scores
from uqgan.uncertainty import Prediction

MOST_EXAMPLES = 10_000


class Run:
    """A trained method: ask it about pictures, test it, let it make out-of-class examples."""

    def __init__(self, record: Record, task: Task | None = None, data_root: str | Path | None = None) -> None:
        self.record = record
        self._task, self._data_root = task, data_root
        self._test_set: Facts | None = None
        """What it is tested on, where that is not its own test set."""

    def __repr__(self) -> str:
        plan = self.record.plan
        return f"<Run {plan.method} on {plan.task}, seed {plan.seed}>"

    @property
    def class_names(self) -> tuple[str, ...]:
        return self.record.plan.class_names

    @property
    def task(self) -> Task:
        """Task it was trained on, loaded again by name if needed; of data that changed, as they are now."""
        if self._task is None:
            self._task, self._test_set = own_task(self.record, self._data_root)
        return self._task

    def on(self, test: Any = None, ood: Mapping[str, Any] | None = None) -> "Run":
        """The same run, to be tested on other pictures: `run.on("new-photos/").evaluate()`.

        `test` is a folder of class folders, or (x, y) with names or numbers of the run's classes; its own test set if
        not given. `ood` has a folder or an array per name. The data of the training are not needed for `test`.
        Pictures that training, validation or calibration saw are left out.
        """
        other = copy(self)
        other._task, other._test_set = elsewhere(self.record, lambda: self.task, test, ood)
        return other

    def predict(self, x: Tensor | npt.NDArray[Any], seed: int | None = 0, member: int | None = None) -> Prediction:
        """Classes and uncertainties of images (uint8, or floats in [0, 1]) or points.

        Stochastic methods repeat their draws with the same seed; None draws afresh each time. `member` reads one member
        of an ensemble alone.
        """
        inputs = torch.as_tensor(x)
        shape = self.record.plan.shape
        if inputs.shape[1:] != shape:
            raise UsageError(f"x has shape {tuple(inputs.shape)}: must be (samples, {', '.join(map(str, shape))})")
        if inputs.dtype != torch.uint8:
            inputs = inputs.float()
            if len(shape) == 3 and not (inputs.amin() >= 0 and inputs.amax() <= 1):
                raise UsageError("x has pixels outside [0, 1]: give uint8, or floats divided by 255")
        predictor = self.record.predictor
        if member is not None:
            if not 0 <= member < len(predictor.members):
                raise UsageError(f"member = {member}: must be within 0 to {len(predictor.members) - 1}")
            predictor = predictor.member(member)
        return predictor.predict(inputs, seed).cpu()

    def outputs(self, validation: bool = False) -> Outputs:
        """Predictions for all test samples of its task, or for those of validation."""
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

        To choose settings, take `validation`: samples that neither training nor the test sets hold. `outputs` are
        predictions made before. `test` and `ood` are other pictures, as for `on`.
        """
        if test is not None or ood:
            return self.on(test, ood).evaluate(resamples, validation, outputs)
        outputs = outputs or self.outputs(validation)
        found = evaluate(outputs, resamples, self.class_names) | {"missing": self.task.missing}
        if self._test_set:
            found["test_set"] = self._test_set
        return found | self._decisions(outputs)

    def _decisions(self, outputs: Outputs) -> dict[str, Any]:
        """Rates of the decisions at the run's thresholds, beside the paper's columns; none without thresholds."""
        decide: Callable[[Prediction], Decided] | None = getattr(self, "decide", None)
        try:
            return {"decisions": rates(outputs, decide)} if decide else {}
        except UsageError as error:  # thresholds need calibration samples; the paper's columns do not
            return {"no_decisions": str(error)}

    def generate(self, label: int | str, n: int = 16, seed: int | None = None) -> Tensor:
        """Out-of-class examples of a class: pixels in [0, 1], or points."""
        names = self.class_names
        if not 1 <= n <= MOST_EXAMPLES:
            raise UsageError(f"n = {n}: must be within 1 to {MOST_EXAMPLES}")
        if seed is not None:
            check_seed(seed)
        index = names.index(label) if isinstance(label, str) and label in names else label
        if not isinstance(index, int) or not 0 <= index < len(names):
            raise UsageError(f"class = {label}: must be one of {', '.join(names)}{suggest(str(label), list(names))}")
        made = self.record.predictor.generate(torch.full((n,), index), seed)
        if made is None:
            raise UsageError(f"method = {self.record.plan.method}: makes no examples (uqgan and uqgan-mc do)")
        return made.cpu()

    def save(self, folder: str | Path) -> Path:
        """Write the run's folder; `uqgan.load` brings it back bit for bit."""
        self.record.write(Path(folder))
        return Path(folder)


def check_seed(seed: int) -> None:
    if not 0 <= seed < 2**31:
        raise UsageError(f"seed = {seed}: must be within 0 to {2**31 - 1}")


def save_scores(folder: Path, run: Run, found: Mapping[str, Any], outputs: Outputs) -> None:
    """Write into a run's folder the raw scores, and scores.json with all that they depend on."""
    outputs.write(folder / RAW_SCORES)
    write_scores(folder, run.record, found)
