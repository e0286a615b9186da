"""Test data of a run: its task with the present data, which may have changed, or other pictures."""

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from uqgan.data.dataset import Decoded
from uqgan.data.folder import shown
from uqgan.data.others import Inputs, foreign_pictures, known_pictures, lacking, of_folder, other_task, unseen
from uqgan.data.seen import as_trained
from uqgan.data.splits import Task
from uqgan.data.tasks import is_user_data, load_task
from uqgan.errors import UsageError
from uqgan.runs import Plan, Record
from uqgan.samples import brief

Facts = dict[str, Any]
"""Description of test data beside the scores: `test`, `ood`, `notes`."""
FIX = "test the run on other pictures: --test FOLDER, in Python run.evaluate(test=…)"


def inputs_of(record: Record) -> Inputs:
    return Inputs(record.plan.class_names, record.plan.shape, record.seen)


def current_task(record: Record, data_root: str | Path | None = None) -> tuple[Task, Facts | None]:
    """Task of a run with the present data, and facts about its test set if it is no longer that of the run."""
    plan = record.plan
    if not is_user_data(plan.task):
        task = load_task(plan.task, 0, data_root, skip_broken=True)
        check_same_data(plan, task)
        return task, None
    task = _reloaded(record)
    if record.seen is None:
        check_same_data(plan, task)
        return task, None
    unknown = sorted(set(task.class_names) - set(plan.class_names))
    if unknown:
        known = inputs_of(record).classes
        fix = f"foreign pictures go to ood/{unknown[0]}/; {FIX}"
        raise UsageError(f"{task.title}: {unknown[0]} is not a class of the run, which knows {known} ({fix})")
    digest = task.digest
    if digest == plan.digest and record.seen.agrees(task):
        return task, None
    notes = [f"{task.title}: changed since the run was trained", *task.notes]
    if len(task.train):
        task, note = as_trained(task, record.seen, plan.class_names)
        notes = [note, *lacking(plan.class_names, task.test.y)]
        if record.seen.agrees(task) and plan.digest == digest:
            return task, None
    return task, {"test": plan.task, "ood": dict.fromkeys(task.ood, plan.task), "notes": notes}


def check_same_data(plan: Plan, task: Task) -> None:
    """Refuse data that changed since the run was trained, as scores on them could not be compared."""
    if (task.class_names, task.shape) != (plan.class_names, plan.shape):
        raise UsageError(f"task = {plan.task}: its classes or shape are not those of the run (train it again)")
    if plan.digest and task.digest != plan.digest:
        raise UsageError(
            f"task = {plan.task}: its pictures changed since the run was trained, which does not say which ones it saw "
            "(train it again, or test it on others: --test FOLDER)"
        )


def is_gone(record: Record) -> bool:
    """Whether the run's own data were a folder or a file that is not there any more, or empty."""
    place = Path(record.plan.task)
    return is_user_data(record.plan.task) and place.is_absolute() and _is_absent(place)


def _is_absent(place: Path) -> bool:
    """Whether there is no such folder or .npz file, or an empty folder, as that of a disk that is not mounted."""
    if place.suffix == ".npz" and place.is_file():
        return False
    with suppress(OSError):
        return not place.is_dir() or not any(place.iterdir())
    return False


def without_known(record: Record, ood: Mapping[str, Any]) -> tuple[Task, Facts]:
    """Task of OoD sets alone, for a run whose own data are gone and that kept its predictions of them."""
    plan, inputs = record.plan, inputs_of(record)
    nothing = Decoded(torch.empty(0, *plan.shape), torch.empty(0, dtype=torch.long), plan.class_names)
    sets = _foreign(ood, inputs)
    task = other_task(plan.task, shown(Path(Path(plan.task).name)), inputs, nothing, sets)
    note = f"task = {shown(Path(plan.task))}: is not there any more; its pictures are as the run last scored them"
    notes = [note, *(sentence for each in sets.values() for sentence in each.notes)]
    places = {name: word(source) for name, source in ood.items()}
    return replace(task, notes=tuple(notes)), {"test": plan.task, "ood": places, "notes": notes}


def elsewhere(
    record: Record, current: Callable[[], Task], test: Any = None, ood: Mapping[str, Any] | None = None
) -> tuple[Task, Facts]:
    """Task of other pictures: a folder or arrays (x, y), and OoD sets by name; without `test`, those of `current`."""
    inputs, ood = inputs_of(record), {} if ood is None else ood
    sets = _foreign(ood, inputs)
    inside: dict[str, Decoded] = {}
    if test is None:
        try:
            task = current()
        except UsageError as error:
            raise UsageError(f"ood: needs pictures of known classes beside it, but {error}") from None
        known = Decoded(task.test.x, task.test.y, task.class_names, sources=task.files.get("test", ()))
        title = task.title
    else:
        known, inside = known_pictures(test, inputs)
        known = unseen(known, "test", inputs)
        inside = {name: unseen(each, f"ood/{name}", inputs) for name, each in inside.items() if name not in ood}
        title = word(test)
    task = other_task(record.plan.task, title, inputs, known, inside | sets)
    places = dict.fromkeys(inside, word(test)) | {name: word(source) for name, source in ood.items()}
    return task, {"test": record.plan.task if test is None else word(test), "ood": places, "notes": list(task.notes)}


def _foreign(ood: Mapping[str, Any], inputs: Inputs) -> dict[str, Decoded]:
    """OoD sets by name, without what the run has seen."""
    if not isinstance(ood, Mapping):
        raise UsageError(f"ood = {brief(ood)}: must be a dict of folders or arrays by name")
    return {name: unseen(foreign_pictures(name, source, inputs), f"ood/{name}", inputs) for name, source in ood.items()}


def word(source: Any) -> str:
    """Origin of pictures as text: a folder's path, or `arrays`."""
    return shown(Path(source).resolve()) if isinstance(source, str | os.PathLike) else "arrays"


def _reloaded(record: Record) -> Task:
    """Task of user-supplied data, loaded again from its path."""
    plan, place = record.plan, Path(record.plan.task)
    if not place.is_absolute():
        raise UsageError(f"task = {place}: was given in Python, and is not kept with the run ({FIX})")
    if _is_absent(place):
        raise UsageError(f"task = {shown(place)}: is not there any more ({FIX})")
    try:
        return load_task(plan.task, 0, None, plan.shape[-1], plan.shape[0], skip_broken=True)
    except UsageError:
        if record.seen is None or not place.is_dir():
            raise
    # Data that no longer suffice for training, such as a class with few pictures left, can still be tested on.
    inputs = inputs_of(record)
    known, ood = of_folder(place, inputs)
    sets = {name: unseen(each, f"ood/{name}", inputs) for name, each in ood.items()}
    return other_task(plan.task, shown(Path(place.name)), inputs, unseen(known, "test", inputs), sets)
