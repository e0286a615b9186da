"""Report of runs as one self-contained HTML page: tables, heat maps, galleries, curves, settings.

All text is in `templates/report.html.jinja`; this module supplies the numbers and figures.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from jinja2 import Environment, PackageLoader, StrictUndefined
from torch import Tensor

from uqgan.data.tasks import Task
from uqgan.decisions import WORDS, Decisions
from uqgan.environment import training_seconds
from uqgan.errors import UsageError, count
from uqgan.evaluation import Outputs, ranking, set_names
from uqgan.files import write_text
from uqgan.health import FAULTS, PER_CLASS
from uqgan.methods import METHODS, Method
from uqgan.metrics import Comparison, paired_bootstrap, reliability
from uqgan.progress import spell
from uqgan.report import curves, plots, shields
from uqgan.report.contest import RESAMPLES, Contestant, compare
from uqgan.report.galleries import Made, extremes, galleries, shares
from uqgan.report.plots import Pictures
from uqgan.runs import Record, run_titles
from uqgan.uncertainty import UNITS, Prediction, read_one_vs_all

POINTS_SHOWN, GAPS_SHOWN = 250, 3000
MANY, FEW_RESAMPLES = 8, 200
"""Number of runs from which on details are given of one run per method, and only the best is compared with all, on
so many resamples."""


@dataclass(frozen=True)
class Chapter:
    """Data of one run for the page."""

    record: Record
    task: Task
    outputs: Outputs
    found: dict[str, Any]
    """Result of `evaluation.evaluate`."""
    decisions: Callable[[Prediction], Decisions] | None = None
    """Decision function with the run's calibration; None for pages without decisions."""

    def __post_init__(self) -> None:
        if len(self.task.test) != len(self.outputs.y):
            raise UsageError(
                f"task = {self.record.plan.task}: its test pictures, which a report shows, are not there any more "
                "(test the run on other pictures: --test FOLDER)"
            )

    @property
    def method(self) -> Method:
        return METHODS[self.record.plan.method]

    @property
    def units(self) -> tuple[str, str]:
        """Units of the aleatoric and of the epistemic uncertainty."""
        return UNITS[self.method.reading]

    def top(self, unit: str) -> float:
        """Upper bound of an uncertainty in this unit."""
        return {"nats": math.log(self.task.n_classes), "probability": 1.0, "1 - max p̂": 1.0}[unit]


def write_report(chapters: list[Chapter], file: Path, title: str = "uqgan report") -> None:
    """Write the page atomically."""
    write_text(file, render(chapters, title))


def render(chapters: list[Chapter], title: str) -> str:
    """HTML of the page; equal runs give equal bytes."""
    pages = Environment(
        loader=PackageLoader("uqgan"), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    pages.globals |= {"percent": percent, "look_up": look_up, "clearly_best": clearly_best, "plots": plots}
    pages.globals |= {"faults": FAULTS, "per_class": PER_CLASS, "words": WORDS, "count": count}
    return pages.get_template("report.html.jinja").render(
        title=title, groups=[describe_group(group) for group in by_task(chapters)]
    )


def by_task(chapters: list[Chapter]) -> list[list[Chapter]]:
    """Runs grouped by task, otherwise in the given order."""
    groups: dict[str, list[Chapter]] = {}
    for chapter in chapters:
        groups.setdefault(chapter.record.plan.task, []).append(chapter)
    return list(groups.values())


def describe_group(group: Sequence[Chapter]) -> dict[str, Any]:
    """Template variables of one task; several methods are in the order of their leaderboard.

    Its runs are compared with the first of them, of several methods with the first of the best without outliers.
    """
    alike, many = contestants(group), len(group) >= MANY
    contest, first = None, group[0]
    if len(alike) > 1:
        every = [contestant(title, members) for title, members in alike.items()]
        contest = compare(every, FEW_RESAMPLES if many else RESAMPLES)
        alike = {row["title"]: alike[row["title"]] for row in contest["rows"]}
        first = alike[contest["best"]][0]
    group = [chapter for members in alike.values() for chapter in members]
    pairs = list(zip(group, run_titles([c.record.plan for c in group]), strict=True))
    shown = [members[0] for members in alike.values()] if many else group
    return {
        "contest": contest,
        "many": many,
        "left_out": len(group) - len(shown),
        "task": group[0].task,
        "kind": {1: "point", 3: "picture"}[len(group[0].task.shape)],
        "found": [chapter.found for chapter in group],
        "sets": [name for name in set_names(first.outputs) if all(name in c.found["scores"]["sets"] for c in group)],
        "titles": [title for _, title in pairs],
        "seeds": [chapter.record.plan.seed for chapter in group],
        "runs": [describe(chapter, title) for chapter, title in pairs if any(chapter is each for each in shown)],
        "first": next(title for chapter, title in pairs if chapter is first),
        "differences": [
            (title, name, result)
            for chapter, title in (pairs if not many else [])
            if chapter is not first
            for name, result in differences(first.outputs, chapter.outputs).items()
        ],
    }


def contestants(group: Sequence[Chapter]) -> dict[str, list[Chapter]]:
    """Runs that differ only by their seed, by a title without it."""
    alike: dict[Any, list[Chapter]] = {}
    for chapter in group:
        plan = chapter.record.plan
        alike.setdefault((plan.method, *plan.settings.items()), []).append(chapter)
    titles = run_titles([replace(members[0].record.plan, seed=0) for members in alike.values()])
    return dict(zip(titles, alike.values(), strict=True))


def contestant(title: str, members: Sequence[Chapter]) -> Contestant:
    return Contestant(
        title,
        tuple(chapter.record.plan.seed for chapter in members),
        tuple(chapter.outputs for chapter in members),
        tuple(chapter.found for chapter in members),
        members[0].method.sees_ood,
    )


def describe(chapter: Chapter, title: str) -> dict[str, Any]:
    """Template variables of one run."""
    has_images, log = len(chapter.task.shape) == 3, chapter.record.log
    stages = curves.group_by("stage", log)
    made, undecided = decided(chapter)
    return {
        "title": title,
        "chapter": chapter,
        "duration": spell(training_seconds(chapter.record.about)),
        "maps": heat_maps(chapter) if chapter.task.is_planar else {},
        "gap": float(posterior_gap(chapter).mean()) if chapter.task.posterior else None,
        "strips": shields.strips(chapter.record, chapter.task) if has_images else {},
        "reconstructions": shields.reconstructions(chapter.record, chapter.task) if has_images else None,
        "health": shields.describe_health(log, chapter.task.class_names),
        "shares": shares(chapter.outputs, made) if made else [],
        "why": made[None].why if made else undecided,
        "galleries": galleries(chapter.task, chapter.outputs, made) if has_images else {},
        "extremes": extremes(chapter.task, chapter.outputs, made) if has_images else {},
        "diagrams": diagrams(chapter),
        "curves": {name: plots.data_uri(curves.training_curves(rows)) for name, rows in stages.items()},
    }


def decided(chapter: Chapter) -> tuple[Made, str]:
    """Decisions on all test samples; if the run's calibration does not allow any, none and the reason."""
    if chapter.decisions is None:
        return {}, ""
    found = [(None, chapter.outputs.test), *chapter.outputs.ood.items()]
    try:
        return {name: chapter.decisions(each) for name, each in found}, ""
    except UsageError as error:
        return {}, str(error)


def clearly_best(found: Sequence[Mapping[str, Any]], path: tuple[str, ...], more_is_better: bool) -> int | None:
    """Index of the run whose interval is better than all others and does not overlap them; None if there is none."""
    intervals = [look_up(each["intervals"], path) for each in found]
    if len(found) < 2 or None in intervals:
        return None
    ends = [(low, high) if more_is_better else (-high, -low) for low, high in intervals]
    best = max(range(len(ends)), key=lambda k: ends[k])
    return best if all(high < ends[best][0] for k, (_, high) in enumerate(ends) if k != best) else None


def look_up(tree: Mapping[str, Any] | None, path: tuple[str, ...]) -> Any:
    """Value at a path; None where it, or a part of the path, is missing: scores may be undefined or lack intervals."""
    for key in path:
        tree = tree.get(key) if tree else None
    return tree


def percent(value: float | None, interval: Sequence[float] | None = None) -> tuple[str, str]:
    """Percentage and its interval as text; two decimals where the interval is narrower than half a percentage point."""
    if value is None:
        return "–", ""
    low, high = interval or (0.0, 1.0)
    digits = 2 if high - low < 0.005 else 1
    spelled = f"{100 * low:.{digits}f} to {100 * high:.{digits}f}"
    return f"{100 * value:.{digits}f}", spelled if interval else ""


def differences(first: Outputs, second: Outputs) -> dict[str, Comparison]:
    """Difference of two runs in AUROC of `epistemic`, per OoD set; empty if their test samples differ."""
    sizes = [{name: len(each.probs) for name, each in outputs.ood.items()} for outputs in (first, second)]
    if sizes[0] != sizes[1] or not torch.equal(first.y, second.y):
        return {}
    ranked = {name: [ranking(each, "epistemic", name) for each in (first, second)] for name in set_names(first)}
    return {name: paired_bootstrap(a, b, is_ood, RESAMPLES) for name, ((a, is_ood), (b, _)) in ranked.items()}


def heat_maps(chapter: Chapter) -> Pictures:
    """The paper's toy figures, and the error of p̂ where the true posterior is known."""
    task, plan = chapter.task, chapter.record.plan
    frame = plots.frame_around(task.test.x, 0.5 if task.name.startswith("moons") else 0.2)
    y = torch.arange(1200) % task.n_classes
    generated, real = shields.examples(chapter.record, y), task.test[torch.arange(min(POINTS_SHOWN, len(task.test)))]
    points = real_only = plots.Points(real.x, real.y)
    if generated is not None:
        points = plots.Points(real.x, real.y, generated[:POINTS_SHOWN], y[:POINTS_SHOWN])
    values = map_values(chapter, chapter.record.predictor.predict(plots.cells_of(frame), plan.seed).cpu())
    maps = {key: plots.heat_map(map_, frame, unit, chapter.top(unit), points) for key, (map_, unit) in values.items()}
    if generated is not None:
        maps["density"] = plots.density_map(generated, y, task.n_classes, frame, real_only)
    if task.posterior:
        maps["gap"] = plots.gap_map(task.test.x[:GAPS_SHOWN], posterior_gap(chapter)[:GAPS_SHOWN], frame)
    return {key: plots.data_uri(svg) for key, svg in maps.items()}


def map_values(chapter: Chapter, found: Prediction) -> dict[str, tuple[Tensor, str]]:
    """Values and unit of each heat map; `faded` hides the entropy far from all data, where it is meaningless."""
    aleatoric, epistemic = chapter.units
    if torch.equal(found.aleatoric, found.epistemic):
        return {"only": (found.epistemic, epistemic)}
    maps = {"epistemic": (found.epistemic, epistemic), "aleatoric": (found.aleatoric, aleatoric)}
    if chapter.method.reading is read_one_vs_all:
        maps["faded"] = (found.aleatoric * (1 - found.epistemic), aleatoric)
        maps["foreignness"] = (found.foreignness, "probability")
    return maps


def posterior_gap(chapter: Chapter) -> Tensor:
    """Largest |p̂(y|x) - p(y|x)| over the classes, per test sample."""
    assert chapter.task.posterior is not None
    return (chapter.outputs.test.probs - chapter.task.posterior(chapter.task.test.x)).abs().amax(1)


def diagrams(chapter: Chapter) -> Pictures:
    """Reliability diagram, and histograms of both uncertainties per group that they should separate."""
    test, right = chapter.outputs.test, chapter.outputs.right
    aleatoric, epistemic = chapter.units
    ood = [each.epistemic for each in chapter.outputs.ood.values()]
    epistemics = [test.epistemic[right], test.epistemic[~right], *ood]
    aleatorics = [test.aleatoric[right], test.aleatoric[~right]]
    drawn = {
        "epistemic": plots.histograms(epistemics, epistemic, chapter.top(epistemic)),
        "aleatoric": plots.histograms(aleatorics, aleatoric, chapter.top(aleatoric)),
        "reliability": plots.reliability_diagram(reliability(test.probs.amax(1), right)),
    }
    return {key: plots.data_uri(svg) for key, svg in drawn.items()}
