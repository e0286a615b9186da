"""Search for settings by validation scores: grid search, or a tree-structured Parzen estimator."""

import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from operator import attrgetter
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any

from uqgan.config import suggest
from uqgan.errors import UsageError
from uqgan.grid.cells import Cell, config_of, plan_cells
from uqgan.paper import LOWER_IS_BETTER, TITLES

if TYPE_CHECKING:
    from optuna.trial import Trial

Settings = dict[str, Any]
"""Settings by dotted name."""
DIGITS = 3
"""Number of significant digits of values drawn from a range."""


@dataclass(frozen=True)
class Range:
    """Interval of numbers to draw from."""

    low: float
    high: float
    log: bool = False

    @property
    def whole(self) -> bool:
        return isinstance(self.low, int)


Space = Mapping[str, tuple[str, ...] | Range]
"""Values of settings to choose from, by dotted name."""


@dataclass(frozen=True)
class Tried:
    """Tried settings with the mean of their validation scores over the seeds."""

    settings: Settings
    cells: tuple[Cell, ...]
    scores: Mapping[str, float | None] = field(default_factory=dict)
    """Means by the names of `paper.TITLES`; empty until all cells are done."""


def space_of(given: Mapping[str, str], task: str, method: str) -> Space:
    """Values as `0.1,0.3,0.5`, or a range as `0.1:0.9` or `1:128:log`; all of them are checked."""
    if not given:
        raise UsageError("sweep: no settings to vary (such as --uqgan.lambda-real 0.1,0.3,0.5)")
    space: dict[str, tuple[str, ...] | Range] = {}
    for name, text in given.items():
        if ":" in text:
            space[name] = _range(name, text, task, method)
        else:
            values = tuple(value.strip() for value in text.split(","))
            plan_cells([task], [method], [0], [{name: value} for value in values])  # refuses what is wrong
            space[name] = values
    return space


def _range(name: str, text: str, task: str, method: str) -> Range:
    low, high, *scale = (part.strip() for part in text.split(":"))
    cells = plan_cells([task], [method], [0], [{name: low}, {name: high}])
    ends = [attrgetter(name)(config_of(Cell(task, method, settings=((name, end),)))) for end in (low, high)]
    numbers = all(isinstance(end, int | float) and not isinstance(end, bool) for end in ends)
    if not numbers or scale not in ([], ["log"]) or len(cells) < 2 or ends[0] >= ends[1]:
        raise UsageError(f"{name} = {text}: must look like 0.1:0.9 or 1:128:log, the smaller number first")
    if scale and ends[0] <= 0:
        raise UsageError(f"{name} = {text}: a logarithmic range must begin above 0")
    return Range(ends[0], ends[1], bool(scale))


def combinations(space: Space) -> Iterator[Settings]:
    """All combinations of the values."""
    for name, values in space.items():
        if isinstance(values, Range):
            raise UsageError(f"{name}: a range needs --trials N (or give values joined by commas)")
    lists = [values for values in space.values() if not isinstance(values, Range)]
    for chosen in product(*lists):
        yield dict(zip(space, chosen, strict=True))


def check_metric(name: str) -> str:
    """Metric for the selection, by its name."""
    if name not in TITLES:
        close = suggest(name, list(TITLES)) or f" (known: {', '.join(TITLES)})"
        raise UsageError(f"--by = {name}: no such metric{close}")
    return name


def judged(settings: Settings, cells: Sequence[Cell], root: Path) -> Tried:
    """Settings with the scores of their cells, as far as these are done."""
    files = [root / cell.name / cell.result for cell in cells]
    if not all(file.exists() for file in files):
        return Tried(settings, tuple(cells))
    records = [json.loads(file.read_bytes()) for file in files]
    if any(record["samples"] != "validation" for record in records):
        raise UsageError(f"{files[0]}: holds no validation scores, and no others may be chosen by")
    rows = [{**record["scores"], **record.get("balanced", {})} for record in records]
    return Tried(settings, tuple(cells), {key: _mean([row.get(key) for row in rows]) for key in TITLES})


def _mean(scores: Sequence[float | None]) -> float | None:
    """Mean over the seeds; None if one of them has no such score."""
    known = [score for score in scores if score is not None]
    return mean(known) if len(known) == len(scores) else None


def best(tried: Sequence[Tried], by: str) -> Tried | None:
    """Trial with the best score, of equal ones the first; None if none is done."""
    done = [one for one in tried if one.scores]
    if done and all(one.scores[by] is None for one in done):
        raise UsageError(f"--by = {by}: no run has it on validation samples (take accuracy)")
    return max((one for one in done if one.scores[by] is not None), key=lambda one: gain(one, by), default=None)


def gain(one: Tried, by: str) -> float:
    """Score with a sign such that larger is better."""
    score = one.scores[by]
    assert score is not None
    return -score if by in LOWER_IS_BETTER else score


class Trials:
    """Settings drawn by the tree-structured Parzen estimator, given the scores of earlier ones.

    The same space, seed and scores give the same settings, so a killed search can be resumed.
    """

    def __init__(self, space: Space, seed: int = 0) -> None:
        try:
            import optuna
        except ImportError:
            raise UsageError("--trials: needs optuna (pip install 'uqgan[sweep]'), or leave it out") from None
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # pending trials count as bad ones: useful, if called experimental
            sampler = optuna.samplers.TPESampler(seed=seed, constant_liar=True)
        self.space, self.study = space, optuna.create_study(direction="maximize", sampler=sampler)

    def ask(self, n: int) -> list[tuple["Trial", Settings]]:
        """Next settings to try."""
        asked = [self.study.ask() for _ in range(n)]
        return [(trial, {name: _drawn(trial, name, values) for name, values in self.space.items()}) for trial in asked]

    def tell(self, trial: "Trial", value: float | None) -> None:
        """Report the score of settings, larger is better, or None if they failed."""
        from optuna.trial import TrialState

        self.study.tell(trial, value, state=TrialState.FAIL if value is None else TrialState.COMPLETE)


def _drawn(trial: "Trial", name: str, values: tuple[str, ...] | Range) -> Any:
    if not isinstance(values, Range):
        return trial.suggest_categorical(name, values)
    if values.whole:
        return trial.suggest_int(name, int(values.low), int(values.high), log=values.log)
    drawn = trial.suggest_float(name, values.low, values.high, log=values.log)
    return min(max(float(f"{drawn:.{DIGITS}g}"), values.low), values.high)
