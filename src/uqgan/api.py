"""Public interface: fit, load, and the Run they return. It composes the modules below and holds no maths."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy.typing as npt
import torch
from rich.console import Console
from torch import Tensor, nn

from uqgan.acceleration import choose_device
from uqgan.config import Config, check_networks, load_config, settings_for_pictures, suggest
from uqgan.data.tasks import TASKS, Task, load_task
from uqgan.environment import circumstances
from uqgan.errors import UsageError
from uqgan.evaluation import Outputs, evaluate, predict_task
from uqgan.log import Log
from uqgan.methods import METHODS
from uqgan.models.user import UserClassifier
from uqgan.runs import RAW_SCORES, Plan, Record, check_same_data, claim_folder, finished, remove_run, write_scores
from uqgan.uncertainty import Prediction

MOST_EXAMPLES = 10_000
__all__ = ["Run", "fit", "load", "load_task"]


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


def fit(
    method: str,
    task: Task | str | Path,
    seed: int = 0,
    config: Config | None = None,
    folder: str | Path | None = None,
    resume: bool = False,
    device: str = "auto",
    max_minutes: float | None = None,
    console: Console | None = None,
    overwrite: bool = False,
    classifier: nn.Module | str | None = None,
    **settings: Any,
) -> Run:
    """Train a method on a task.

    Settings come from the task, changed by keywords of its recipe (`lambda_real=0.5`) or whole sections
    (`autoencoder={"dim": 16}`), or all together as a Config. With a folder the run is saved there as it goes and
    can be resumed; `overwrite` replaces the run that is there.

    `classifier` is a network's name, or a network that you supply: float images in [0, 1] (samples, channels, height,
    width), or points (samples, 2), to logits (samples, classes). Copies of it are trained, from the weights that it
    has; it stays as it is itself.
    """
    if isinstance(classifier, str):
        settings, classifier = settings | {"classifier": classifier}, None
    check_request(method, seed, config, settings, classifier)
    task = task if isinstance(task, Task) else load_task(task)
    config = config or settings_of(task, overrides=sections(method, settings))
    plan = checked_plan(method, task, seed, config, classifier)
    on = choose_device(device)
    where = Path(folder) if folder else None
    if where:
        claim_folder(where, plan, resume, overwrite)
        if finished(where):
            return Run(load(where, device, classifier=classifier).record, task)
    record = train(plan, task, on, Log(where, seed, resume, max_minutes, console), classifier)
    if where:
        record.write(where)
    return Run(record, task)


def train(plan: Plan, task: Task, device: torch.device, log: Log, classifier: nn.Module | None) -> Record:
    """Train as planned; a run that fails with nothing saved that could be gone on with leaves no folder."""
    start = time.monotonic()
    try:
        predictor = METHODS[plan.method].fit(task.to(device), plan.config, log, classifier)
    except BaseException:
        if log.folder and not log.resumes:
            remove_run(log.folder)
        raise
    finally:
        log.close()
    about = circumstances(device, time.monotonic() - start, log.stopped, log.seconds, log.reused)
    return Record(plan, predictor, log.rows, about)


def checked_plan(method: str, task: Task, seed: int, config: Config, classifier: nn.Module | None) -> Plan:
    """The plan of a run whose networks take the task's samples."""
    name = ""
    if classifier is not None:
        UserClassifier(classifier, task.shape, task.n_classes, draws=METHODS[method].dropout > 0)  # refuses misfits
        config, name = config.model_copy(update={"classifier": "custom"}), type(classifier).__qualname__
    elif config.classifier == "custom":
        raise UsageError("classifier = custom: needs your network (in Python: uqgan.fit(…, classifier=MyNet()))")
    check_networks(config, task.shape)
    return Plan(task.name, method, seed, task.shape, task.class_names, config, task.digest, name)


def is_user_data(task: str) -> bool:
    """Whether a task's name stands for user-supplied data rather than one of TASKS."""
    return task.partition("+")[0] not in TASKS


def settings_of(task: Task, file: Path | None = None, overrides: Mapping[str, Any] | None = None) -> Config:
    """A task's settings; for user-supplied data those that fit the pictures and their number."""
    fitting = settings_for_pictures(task.shape, len(task.train)) if is_user_data(task.name) else None
    return load_config(task.name, file, overrides, fitting)


def load(
    folder: str | Path,
    device: str = "auto",
    data_root: str | Path | None = None,
    classifier: nn.Module | None = None,
) -> Run:
    """The run in a folder; `data_root` is where the paper's data sets are, UQGAN_DATA if not given.

    A run with a user-supplied classifier needs it again, built alike; a copy of it gets the trained weights.
    """
    check_module(classifier)
    record = Record.read(Path(folder), classifier)
    record.predictor.to(choose_device(device))
    record.predictor.make_fast(record.plan.config)
    return Run(record, data_root=data_root)


def sections(method: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Keywords as a tree of sections: what is no section's name belongs to the method's recipe."""
    recipe = METHODS[method].section
    tree: dict[str, Any] = {key: value for key, value in settings.items() if key in Config.model_fields}
    short = {key: value for key, value in settings.items() if key not in tree}
    return tree | {recipe: dict(tree.get(recipe, {})) | short}


def check_request(
    method: str, seed: int, config: Config | None, settings: Mapping[str, Any], classifier: nn.Module | None
) -> None:
    """Checks that need no data."""
    if method not in METHODS:
        raise UsageError(f"method = {method}: no such method{suggest(method, list(METHODS))}")
    if config and settings:
        raise UsageError(f"{next(iter(settings))}: give settings as keywords or as a Config, not both")
    check_seed(seed)
    check_module(classifier)


def check_module(classifier: object) -> None:
    if not isinstance(classifier, nn.Module | None):
        raise UsageError(f"classifier = {classifier!r}: must be an nn.Module, already built (MyNet(), not MyNet)")


def check_seed(seed: int) -> None:
    if not 0 <= seed < 2**31:
        raise UsageError(f"seed = {seed}: must be within 0 to {2**31 - 1}")


def save_scores(folder: Path, run: Run, found: Mapping[str, Any], outputs: Outputs) -> None:
    """Write into a run's folder the raw scores, and scores.json with all that they depend on."""
    outputs.write(folder / RAW_SCORES)
    write_scores(folder, run.record, found)
