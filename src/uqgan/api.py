"""Public interface: fit and load, which return a Run; it only composes other modules."""

import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import nn

from uqgan.acceleration import choose_device
from uqgan.config import Config, Settings, check_networks, load_config, suggest
from uqgan.data.seen import Seen
from uqgan.data.tasks import Task, is_user_data, load_task
from uqgan.environment import circumstances
from uqgan.errors import UsageError
from uqgan.evaluation import calibrate
from uqgan.files import alone_in
from uqgan.log import Log
from uqgan.methods import METHODS
from uqgan.models.user import UserClassifier
from uqgan.picture_settings import settings_for_pictures
from uqgan.run import Run
from uqgan.runs import Plan, Record, claim_folder, finished, remove_run
from uqgan.samples import as_path, brief, check_seed

__all__ = ["Run", "fit", "load", "load_task"]

MOST_MINUTES = 10**9


def fit(
    method: str,
    task: Task | str | Path,
    seed: int = 0,
    config: Config | None = None,
    folder: str | Path | None = None,
    resume: bool = False,
    device: str | torch.device = "auto",
    max_minutes: float | None = None,
    console: Console | None = None,
    overwrite: bool = False,
    classifier: nn.Module | str | None = None,
    quiet: bool = False,
    **settings: Any,
) -> Run:
    """Train a method on a task.

    Settings come from the task, changed by keywords for the method's section (`lambda_real=0.5`) or whole sections
    (`autoencoder={"dim": 16}`), or all together as a Config. With a folder the run is saved there regularly and can be
    resumed; `overwrite` replaces a run in that folder. Progress goes to `console` or standard error, unless `quiet`.

    Ctrl-C and SIGTERM end training after the current step, with an `Interrupted`: the folder then holds the state
    to resume from and, after the first validation, the best classifier so far.

    `classifier` is a network's name, or your network: float images in [0, 1] (samples, channels, height, width), or
    points (samples, 2), to logits (samples, classes). It is not changed; copies are trained, starting from its weights,
    but for the members of an ensemble after the first, which draw new ones.
    """
    if isinstance(classifier, str):
        settings, classifier = settings | {"classifier": classifier}, None
    seed = check_seed(seed)
    check_request(method, config, settings, classifier, max_minutes)
    check_manner({"resume": resume, "overwrite": overwrite, "quiet": quiet}, console)
    where = as_path(folder, "folder") if folder is not None else None
    on = choose_device(device)
    console = Console(quiet=True) if quiet else console or Console(stderr=True, highlight=False)
    say = partial(console.print, highlight=False, markup=False, soft_wrap=True)
    task = task if isinstance(task, Task) else load_task(task, say=say)
    config = config or settings_of(task, overrides=sections(method, settings))
    plan = checked_plan(method, task, seed, config, classifier)
    for note in notes_on(task, plan.config):
        say(note)
    if where is None:
        return Run(train(plan, task, on, Log(None, seed, False, max_minutes, console), classifier), task)
    with alone_in(where, "training into it"):
        claim_folder(where, plan, resume, overwrite)
        if finished(where):
            say(f"{where}: its training has finished, nothing is left to resume")
            return Run(load(where, device, classifier=classifier).record, task)
        return Run(train(plan, task, on, Log(where, seed, resume, max_minutes, console), classifier), task)


def notes_on(task: Task, config: Config) -> list[str]:
    """Notes on a task's data, what was left out, and the chosen networks."""
    notes = [*task.notes, *(f"{key}: left out, {why}" for key, why in task.missing.items())]
    return notes + ([f"classifier {config.classifier}, autoencoder {config.autoencoder.kind}"] if task.notes else [])


def train(
    plan: Plan, task: Task, device: torch.device, log: Log, classifier: nn.Module | None, command: str | None = None
) -> Record:
    """Train as planned, and write the run into the log's folder, if it has one, with the `command` that started it.

    A run that fails before its first saved state leaves no folder.
    """
    start = time.monotonic()
    try:
        predictor = METHODS[plan.method].fit(task.to(device), plan.config, log, classifier)
    except BaseException:
        if log.folder and not log.resumes:
            remove_run(log.folder)
        raise
    finally:
        log.close()
    about = circumstances(device, time.monotonic() - start, log.stopped, log.seconds, log.reused, command)
    seen = Seen.of(task) if len(task.shape) == 3 else None
    record = Record(plan, predictor, log.rows, about, calibrate(predictor, task, plan.seed), log.folder, met=seen)
    if log.folder:
        record.write(log.folder)
    if log.signal:
        kept = f"the best classifier so far is kept in {log.folder}; --resume goes on"
        raise log.ended(kept if log.folder else "and nothing is kept (a run with a folder is)")
    return record


def checked_plan(method: str, task: Task, seed: int, config: Config, classifier: nn.Module | None) -> Plan:
    """Plan of a run; networks that do not take the task's samples are refused."""
    name = ""
    if classifier is not None:
        UserClassifier(classifier, task.shape, task.n_classes, draws=METHODS[method].dropout > 0)  # refuses misfits
        config, name = config.model_copy(update={"classifier": "custom"}), type(classifier).__qualname__
    elif config.classifier == "custom":
        raise UsageError("classifier = custom: needs your network (in Python: uqgan.fit(…, classifier=MyNet()))")
    check_networks(config, task.shape)
    return Plan(task.name, method, seed, task.shape, task.class_names, config, task.digest, name)


def settings_of(task: Task, file: Path | None = None, overrides: Mapping[str, Any] | None = None) -> Config:
    """Settings of a task; for user-supplied data, by the size and number of the pictures."""
    fitting = settings_for_pictures(task.shape, len(task.train)) if is_user_data(task.name) else None
    return load_config(task.name, file, overrides, fitting)


def load(
    folder: str | Path,
    device: str | torch.device = "auto",
    data_root: str | Path | None = None,
    classifier: nn.Module | None = None,
) -> Run:
    """Run saved in a folder; `data_root` is the folder of the paper's data sets, UQGAN_DATA by default.

    A run with a user-supplied classifier needs it again, built the same way; a copy of it gets the trained weights.
    """
    check_module(classifier)
    data_root = None if data_root is None else as_path(data_root, "data_root")
    record = Record.read(as_path(folder, "folder"), classifier)
    record.predictor.to(choose_device(device))
    record.predictor.make_fast(record.plan.config)
    return Run(record, data_root=data_root)


def sections(method: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Keywords as a tree of sections; keywords that do not name a section belong to the method's."""
    recipe = METHODS[method].section
    tree: dict[str, Any] = {key: value for key, value in settings.items() if key in Config.model_fields}
    short = {key: value for key, value in settings.items() if key not in tree}
    whole = tree.get(recipe, {})
    return tree | {recipe: dict(whole) | short if isinstance(whole, Mapping | Settings) else whole}


def check_request(
    method: str,
    config: Config | None,
    settings: Mapping[str, Any],
    classifier: nn.Module | None,
    max_minutes: float | None,
) -> None:
    """Check arguments before data are loaded."""
    check_sections(method, settings)
    if not isinstance(config, Config | None):
        raise UsageError(f"config = {brief(config)}: must be a uqgan.Config (or give settings as keywords)")
    if config and settings:
        raise UsageError(f"{next(iter(settings))}: give settings as keywords or as a Config, not both")
    numeric = isinstance(max_minutes, int | float) and not isinstance(max_minutes, bool)
    if max_minutes is not None and not (numeric and 0 < max_minutes <= MOST_MINUTES):
        raise UsageError(
            f"max_minutes = {brief(max_minutes)}: must be a number greater than 0, and at most {MOST_MINUTES:,}"
        )
    check_module(classifier)


def check_manner(flags: Mapping[str, object], console: object) -> None:
    for name, value in flags.items():
        if not isinstance(value, bool):
            raise UsageError(f"{name} = {brief(value)}: must be True or False")
    if not isinstance(console, Console | None):
        raise UsageError(f"console = {brief(console)}: must be a rich.console.Console (or leave it out)")


def check_sections(method: str, settings: Mapping[str, Any]) -> None:
    """Refuse an unknown method, and settings in sections that it does not read, which would have no effect."""
    if not isinstance(method, str) or method not in METHODS:
        raise UsageError(f"method = {brief(method)}: no such method{suggest(str(method), list(METHODS))}")
    read = METHODS[method].sections
    for section, values in settings.items():
        field = Config.model_fields.get(section)
        if field and isinstance(field.default, Settings) and section not in read:
            key, value = next(iter(values.items()), ("", "")) if isinstance(values, Mapping) else ("", values)
            what = f"{section}.{key}" if key else section
            rule = f"has no effect, {method} does not read the section {section}"
            raise UsageError(f"{what} = {brief(value)}: {rule} (it reads {' and '.join(read)})")


def check_module(classifier: object) -> None:
    if not isinstance(classifier, nn.Module | None):
        raise UsageError(f"classifier = {classifier!r}: must be an nn.Module, already built (MyNet(), not MyNet)")
