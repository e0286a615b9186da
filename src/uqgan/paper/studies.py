"""The paper's studies: varied setting, its values, and the curve of validation scores."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from operator import attrgetter
from pathlib import Path
from statistics import mean
from typing import Any, Literal

from uqgan.config import suggest
from uqgan.data.tasks import TASKS, is_user_data
from uqgan.environment import shared_by
from uqgan.errors import UsageError
from uqgan.grid.cells import Cell, config_of, plan_cells
from uqgan.paper import TITLES

Value = float | int | str
Settings = Mapping[str, Any]
"""Settings by dotted name."""
POWERS = (0, 1, 2, 4, 8, 16, 32, 64, 128)
N_CLASSES = "n-classes"


@dataclass(frozen=True)
class Study:
    """A study of the paper."""

    title: str
    """Label of the axis of the varied setting."""
    setting: str
    """Dotted name of the varied setting; empty if the task is varied."""
    values: tuple[Value, ...] = ()
    fixed: Mapping[str, Settings] = field(default_factory=dict)
    """Settings fixed in the paper, by task; all others have the task's values."""
    axis: Literal["log", "linear", "names"] = "log"
    methods: tuple[str, ...] = ("uqgan",)


def _fixed(**values: float) -> Settings:
    names = {"cl": "uqgan.lambda_cl", "reg": "uqgan.lambda_reg", "real": "uqgan.lambda_real", "d": "autoencoder.dim"}
    return {names[key]: value for key, value in values.items()}


STUDIES: dict[str, Study] = {
    "lambda-cl": Study(
        "λ_cl",
        "uqgan.lambda_cl",
        POWERS,
        # The caption's λ_reg = 14 for MNIST is not in the paper's grid; the nearest value is used.
        {"mnist": _fixed(reg=16, real=0.5, d=16), "cifar10": _fixed(reg=0, real=0.6, d=128)},
    ),
    "lambda-real": Study(
        "λ_real",
        "uqgan.lambda_real",
        tuple(k / 10 for k in range(11)),
        {"mnist": _fixed(reg=32, cl=1, d=16), "cifar10": _fixed(reg=0, cl=2, d=128)},
        "linear",
    ),
    "lambda-reg": Study(
        "λ_reg",
        "uqgan.lambda_reg",
        POWERS,
        {"mnist": _fixed(cl=1, real=0.5, d=16), "cifar10": _fixed(cl=4, real=0.6, d=128)},
    ),
    "latent-dim": Study(
        "latent dimensions",
        "autoencoder.dim",
        tuple(2**k for k in range(2, 10)),
        {"mnist": _fixed(reg=32, cl=1, real=0.5), "cifar10": _fixed(reg=0, cl=4, real=0.6)},
    ),
    N_CLASSES: Study(
        "known classes", "", axis="linear", methods=("uqgan", "uqgan-mc", "mc-dropout", "ensemble", "gen-sensoy")
    ),
    "regulariser": Study("regulariser", "uqgan.regulariser", ("angle", "cosine", "l1", "l2", "linf"), axis="names"),
}
"""All studies, by their names on the command line."""


@dataclass(frozen=True)
class Point:
    """Validation scores of one run; OoD sets have equal weights, together that of the known samples."""

    value: Value
    method: str
    seed: int
    scores: Mapping[str, float | None]
    """Metrics by the names of `paper.TITLES`; None if undefined."""
    auroc: Mapping[str, float]
    """Metrics per OoD set."""
    sizes: Mapping[str, int]
    """Number of known samples, and of each OoD set."""
    seconds: float
    raw_sha256: str = ""
    """Digest of the raw scores; empty in older studies."""


@dataclass(frozen=True)
class Curve:
    """Results of a study on a task."""

    study: str
    task: str
    settings: Mapping[str, Any]
    """Settings that differ from the task's, the same for all points."""
    points: tuple[Point, ...]
    facts: Mapping[str, Any]
    """Devices, commits, seconds, versions and command."""

    @property
    def methods(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(point.method for point in self.points))

    @property
    def values(self) -> tuple[Value, ...]:
        return tuple(dict.fromkeys(point.value for point in self.points))

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(sorted({point.seed for point in self.points}))

    def means(self, metric: str, method: str | None = None) -> dict[Value, float]:
        """Mean over the seeds of a metric by value, for one method, by default the first."""
        found: dict[Value, list[float]] = {}
        for point in self.points:
            score = point.scores[metric]
            if point.method == (method or self.methods[0]) and score is not None:
                found.setdefault(point.value, []).append(score)
        return {value: mean(scores) for value, scores in found.items()}

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def of_json(tree: Mapping[str, Any]) -> "Curve":
        return Curve(**{**tree, "points": tuple(Point(**point) for point in tree["points"])})


def study_of(name: str) -> Study:
    """Study by its name."""
    if name not in STUDIES:
        close = suggest(name, list(STUDIES)) or f" (known: {', '.join(STUDIES)})"
        raise UsageError(f"study = {name}: no such study{close}")
    return STUDIES[name]


def fixed_settings(name: str, task: str, changes: Settings) -> dict[str, Any]:
    """Fixed settings of a study on a task: the paper's, or chosen ones."""
    study = study_of(name)
    if study.setting in changes:
        raise UsageError(f"{study.setting} = {changes[study.setting]}: the study varies it (give --values)")
    return {**study.fixed.get(task, {}), **changes}


def study_cells(
    name: str,
    task: str,
    methods: Sequence[str] = (),
    seeds: Sequence[int] = (0,),
    values: Sequence[str] = (),
    changes: Settings | None = None,
) -> dict[Value, list[Cell]]:
    """Cells of each value of a study; the same run may serve several values, methods and studies."""
    study = study_of(name)
    methods, fixed = methods or study.methods, fixed_settings(name, task, changes or {})
    if name == N_CLASSES:
        tasks = {n: task_of_classes(task, n) for n in class_numbers(task, values)}
        return {n: plan_cells([each], methods, seeds, [fixed], validation=True) for n, each in tasks.items()}
    found: dict[Value, list[Cell]] = {}
    for given in values or study.values:
        cells = plan_cells([task], methods, seeds, [{**fixed, study.setting: given}], validation=True)
        config = config_of(Cell(task, methods[0], settings=((study.setting, given),)))
        found[attrgetter(study.setting)(config)] = cells
    return found


def class_numbers(task: str, values: Sequence[str] = ()) -> list[int]:
    """Numbers of known classes of a study; by default five equal steps up to the task's number."""
    if is_user_data(task) or not TASKS[task].n_classes:
        named = [each for each, outline in TASKS.items() if outline.n_classes]
        raise UsageError(f"task = {task}: has no classes to choose from (take {', '.join(named)})")
    if not values:
        most = len(TASKS[task].known)
        step = max(1, most // 5)
        return [n for n in range(step, most + 1, step) if n > 1]
    for value in values:
        if not value.isdecimal() or not 2 <= int(value) < TASKS[task].n_classes:
            raise UsageError(f"--values = {value}: must be from 2 to {TASKS[task].n_classes - 1} known classes")
    return list(dict.fromkeys(map(int, values)))


def task_of_classes(task: str, n: int) -> str:
    """Task whose known classes are the first n of its set; all others of the set are OoD."""
    return task if list(TASKS[task].known) == list(range(n)) else f"{task}+0-{n - 1}"


def gather(
    name: str, task: str, cells: Mapping[Value, Sequence[Cell]], changes: Settings, root: Path, command: str
) -> Curve:
    """Curve from the finished cells."""
    records = {
        (value, cell): json.loads((root / cell.name / cell.result).read_bytes())
        for value, each in cells.items()
        for cell in each
        if (root / cell.name / cell.result).exists()
    }
    for (_, cell), record in records.items():
        if "balanced" not in record:
            raise UsageError(f"{root / cell.name / cell.result}: by an older version (delete it, and it is made anew)")
    points = tuple(point_of(value, cell, record) for (value, cell), record in records.items())
    return Curve(
        study=name,
        task=task,
        settings=fixed_settings(name, task, changes),
        points=points,
        facts=shared_by(list(records.values()), command),
    )


def point_of(value: Value, cell: Cell, record: Mapping[str, Any]) -> Point:
    """Point of a curve from a validation record."""
    known, together = record["scores"], record["balanced"]
    return Point(
        value=value,
        method=cell.method,
        seed=cell.seed,
        scores={key: together.get(key, known.get(key)) for key in TITLES},
        auroc={key: row["auroc"] for key, row in known["sets"].items() if key in together["sizes"]},
        sizes=together["sizes"],
        seconds=round(record["seconds"], 1),
        raw_sha256=record["raw_sha256"],
    )
