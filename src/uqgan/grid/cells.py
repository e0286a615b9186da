"""Cells of a grid: each is a run of a method on a task, with a name, a folder, and an atomically written result."""

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from uqgan import api
from uqgan.checkpoint import Stopped
from uqgan.config import Config, load_config
from uqgan.data.dataset import Say
from uqgan.data.tasks import Task, check_place, is_user_data
from uqgan.errors import RunFailed, UsageError
from uqgan.evaluation import balanced
from uqgan.files import alone_in, sha256, write_bytes
from uqgan.log import Log
from uqgan.methods import METHODS
from uqgan.methods.method import MOST_MEMBERS
from uqgan.picture_settings import settings_for_pictures
from uqgan.progress import Pace
from uqgan.run import Run, save_scores, write_scores
from uqgan.runs import SCORES, claim_folder, finished, holds_run

VALIDATION_SCORES = "validation_scores.json"
FAILED = "failed.log"
"""File in a cell's folder with the reason why its run failed."""
LONGEST_NAME = 120
"""Limit of characters in a folder's name; longer names end in a digest."""
REPORT_SECONDS = 0.2
"""Least interval between two progress reports of a stage, in seconds."""


@dataclass(frozen=True)
class Cell:
    """A run of a method on a task, as a part of a grid."""

    task: str
    method: str
    seed: int = 0
    settings: tuple[tuple[str, Any], ...] = ()
    """Settings by dotted name that differ from the task's: `(("uqgan.lambda_real", 0.3),)`."""
    validation: bool = False
    """Whether it is scored on validation samples, known and OoD, rather than on the test sets."""

    @cached_property
    def name(self) -> str:
        """Identifier, equal for equal cells on all machines; also the path of its folder within the grid's."""
        changed = ",".join(f"{key}={value}" for key, value in self.settings)
        if len(changed) > LONGEST_NAME:
            changed = f"{changed[: LONGEST_NAME - 10]}-{_digest(changed)[:8]}"
        return "/".join([title_of(self.task), self.method, *([changed] if changed else []), f"seed-{self.seed}"])

    @property
    def result(self) -> str:
        """Name of the file with its scores."""
        return VALIDATION_SCORES if self.validation else SCORES

    @property
    def tree(self) -> dict[str, Any]:
        """Its settings as a tree of sections."""
        found: dict[str, Any] = {}
        for name, value in self.settings:
            *sections, key = name.split(".")
            inner = found
            for section in sections:
                inner = inner.setdefault(section, {})
            inner[key] = value
        return found

    @property
    def work(self) -> frozenset[str]:
        """Names of the classifiers it trains; cells that share one run in sequence, so that it is trained once."""
        method = METHODS[self.method]
        seeds = [MOST_MEMBERS * self.seed + j for j in range(method.members)] if method.members > 1 else [self.seed]
        parts = (self.task, method.section, method.dropout, method.sees_ood, self.settings)
        return frozenset(f"{parts} {seed}" for seed in seeds)

    def command(self, device: str) -> str:
        """Command that makes the same run on its own."""
        words = ["uqgan", "train", self.task, "--method", self.method, "--seed", str(self.seed), "--device", device]
        for name, value in self.settings:
            words += [f"--{name.replace('_', '-')}", str(value)]
        return " ".join([*words, *(["--untested"] if self.validation else [])])


def title_of(task: str) -> str:
    """Name of a task, or of the folder or file with user-supplied pictures."""
    return Path(task).resolve().name if is_user_data(task) else task


def plan_cells(
    tasks: Iterable[str],
    methods: Sequence[str],
    seeds: Sequence[int],
    variants: Sequence[Mapping[str, Any]] = ({},),
    validation: bool = False,
) -> list[Cell]:
    """All cells of tasks × methods × seeds × variants, each once; a variant is a set of settings by dotted name.

    Settings that a method does not read, or that equal the task's, make no separate cell.
    """
    if not methods or not seeds or not variants:
        raise UsageError("grid: has no cells (name tasks, methods and seeds)")
    for name in dict.fromkeys(name for variant in variants for name in variant):
        section = name.partition(".")[0] if "." in name else ""
        if section and not any(section in METHODS[method].sections for method in methods):
            raise UsageError(f"{name}: has no effect, none of the methods reads it (methods: {', '.join(methods)})")
    tasks = list(dict.fromkeys(tasks))
    for task in filter(is_user_data, tasks):
        check_place(task)
    titles = [title_of(task) for task in tasks]
    if alike := [task for task, title in zip(tasks, titles, strict=True) if titles.count(title) > 1]:
        raise UsageError(f"{' and '.join(alike)}: would share a folder, as they have the same name (rename one)")
    cells = [
        Cell(task, method, seed, _own_settings(task, method, variant), validation)
        for task in tasks
        for method in methods
        for variant in variants
        for seed in seeds
    ]
    return list(dict.fromkeys(cells))


def _own_settings(task: str, method: str, variant: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    """Settings of a variant that change a method's run, parsed and in order."""
    read = METHODS[method].sections
    given = {name: value for name, value in variant.items() if "." not in name or name.partition(".")[0] in read}
    config = config_of(Cell(task, method, settings=tuple(given.items())))  # refuses what is wrong
    parsed = {name: _value(config, name) for name in given}
    if not is_user_data(task):
        usual = load_config(task)
        parsed = {name: value for name, value in parsed.items() if value != _value(usual, name)}
    return tuple(sorted(parsed.items()))


def config_of(cell: Cell, task: Task | None = None) -> Config:
    """Settings of a cell's run; for user-supplied pictures, by the loaded task."""
    if task is not None:
        return api.settings_of(task, overrides=cell.tree)
    # Whether settings fit together depends on the kind of data; user-supplied pictures are not loaded for this check.
    fitting = settings_for_pictures((3, 32, 32), 1) if is_user_data(cell.task) else None
    return load_config(cell.task, None, cell.tree, fitting)


def _value(config: Config, name: str) -> Any:
    value: Any = config
    for part in name.split("."):
        value = getattr(value, part)
    return value


def is_done(cell: Cell, root: Path) -> bool:
    """Whether its result exists; one with other settings, from an older version, is refused."""
    file = root / cell.name / cell.result
    if not file.exists():
        return False
    try:
        given = json.loads(file.read_bytes())["settings"]
    except (OSError, ValueError, KeyError, TypeError):
        raise UsageError(f"{file}: damaged (delete it, and it is made anew)") from None
    if not is_user_data(cell.task):
        wanted = config_of(cell).model_dump()
        for section in METHODS[cell.method].sections:
            known = {key: value for key, value in wanted[section].items() if key in given.get(section, {})}
            if known != given.get(section, {}):
                raise UsageError(f"{file.parent}: holds a run with other settings of {section} (choose another folder)")
    return True


def has_failed(cell: Cell, root: Path) -> bool:
    """Whether its last run failed."""
    return (root / cell.name / FAILED).exists()


class Reporting(Log):
    """Log of a cell's run, which reports progress instead of printing it, and ends with the parent process."""

    def __init__(
        self,
        folder: Path,
        seed: int,
        resume: bool,
        minutes: float | None,
        say: Say,
        progress: Callable[[Pace], None],
        asked: Callable[[], bool] = lambda: False,
    ) -> None:
        self._say, self._progress, self._asked = say, progress, asked
        super().__init__(folder, seed, resume, minutes, child=True)

    def say(self, sentence: str) -> None:
        self._say(sentence)

    @property
    def out_of_time(self) -> bool:
        return self._asked() or super().out_of_time

    @contextmanager
    def bar(self, name: str, done: int, total: int) -> Iterator[Callable[[], None]]:
        with super().bar(name, done, total) as advance:
            pace, told = self._pace, 0.0
            assert pace

            def report() -> None:
                nonlocal told
                advance()
                if time.monotonic() - told >= REPORT_SECONDS:
                    told = time.monotonic()
                    self._progress(pace)

            yield report


def run_cell(
    cell: Cell,
    root: Path,
    task: Task,
    device: torch.device,
    minutes: float | None = None,
    say: Say = lambda _: None,
    progress: Callable[[Pace], None] = lambda _: None,
    asked: Callable[[], bool] = lambda: False,
) -> str | None:
    """Train or resume the cell's run, and write its scores; returns the reason for an early stop, else None.

    After a kill the same call continues from the last saved state. The result is the last file written. If
    another process works on the cell, the call waits: one whose parent was killed is about to end. It stops as soon
    as it is `asked` to.
    """
    folder = root / cell.name
    plan = api.checked_plan(cell.method, task, cell.seed, config_of(cell, task), None)
    with alone_in(folder, "working on it", wait=True):
        if is_done(cell, root):
            return None
        (folder / FAILED).unlink(missing_ok=True)
        resume = holds_run(folder)
        claim_folder(folder, plan, resume=True, overwrite=False)
        if finished(folder):
            run = Run(api.load(folder, device).record, task)
        else:
            log = Reporting(folder, cell.seed, resume, minutes, say, progress, asked)
            try:
                run = Run(api.train(plan, task, device, log, None, cell.command(device.type)), task)
            except Stopped as error:
                return reason(error)
        if run.record.about["stopped"]:
            return str(run.record.about["stopped"])
        progress(Pace("scoring", 0, 1))
        write_result(cell, folder, run)
    return None


def reason(error: RunFailed) -> str:
    """Why a run stopped, without the advice for a run alone: a grid goes on by its own command."""
    return str(error).partition(" (")[0]


def write_result(cell: Cell, folder: Path, run: Run) -> None:
    """Score a trained run and write the result of its cell."""
    outputs = run.outputs(cell.validation)
    found = run.evaluate(outputs=outputs) | {"samples": "validation" if cell.validation else "test"}
    if cell.validation:
        write_scores(folder, run.record, found | {"balanced": balanced(outputs)}, VALIDATION_SCORES)
    else:
        save_scores(folder, run, found, outputs)


def keep_failure(cell: Cell, root: Path, text: str) -> Path:
    """Write the reason why a cell failed into its folder."""
    file = root / cell.name / FAILED
    write_bytes(file, text.encode())
    return file


def result_digests(cells: Iterable[Cell], root: Path) -> dict[str, str]:
    """Digests of all existing results, by the name of the cell."""
    files = {cell.name: root / cell.name / cell.result for cell in cells}
    return {name: sha256(file) for name, file in files.items() if file.exists()}


def _digest(text: str) -> str:
    from hashlib import sha256 as digest

    return digest(text.encode()).hexdigest()
