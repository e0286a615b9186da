"""Runs as one HTML page that needs nothing from outside: tables, heat maps, galleries, curves, settings.

All words stand in `templates/report.html.jinja`; here are the numbers and pictures they are about.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jinja2 import Environment, PackageLoader, StrictUndefined
from torch import Tensor

from uqgan import curves, plots, shields
from uqgan.data.tasks import Task
from uqgan.evaluation import Outputs, ranking, set_names
from uqgan.files import write_text
from uqgan.health import FAULTS, PER_CLASS
from uqgan.methods import METHODS, Method
from uqgan.metrics import Comparison, paired_bootstrap, reliability
from uqgan.plots import Pictures
from uqgan.runs import Record, run_titles
from uqgan.uncertainty import Prediction, Reading, read_entropy, read_max_softmax, read_one_vs_all

UNITS: dict[Reading, tuple[str, str]] = {
    read_one_vs_all: ("nats", "probability"),
    read_entropy: ("nats", "nats"),
    read_max_softmax: ("1 - max p̂", "1 - max p̂"),
}
"""Of the aleatoric and the epistemic uncertainty, by the reading that gives them."""
SHOWN, POINTS_SHOWN, GAPS_SHOWN = 8, 250, 3000


@dataclass(frozen=True)
class Chapter:
    """One run on the page."""

    record: Record
    task: Task
    outputs: Outputs
    found: dict[str, Any]
    """What `evaluation.evaluate` gave."""

    @property
    def method(self) -> Method:
        return METHODS[self.record.plan.method]

    @property
    def units(self) -> tuple[str, str]:
        return UNITS.get(self.method.reading, ("score", "score"))

    def top(self, unit: str) -> float:
        """The largest value an uncertainty in that unit can have; 0 if nothing is known."""
        return {"nats": math.log(self.task.n_classes), "score": 0.0}.get(unit, 1.0)


def write_report(chapters: list[Chapter], file: Path, title: str = "uqgan report") -> None:
    """The page as a file: whole, or not there."""
    write_text(file, render(chapters, title))


def render(chapters: list[Chapter], title: str) -> str:
    """The whole page; the same runs give the same bytes."""
    pages = Environment(
        loader=PackageLoader("uqgan"), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    pages.globals |= {"percent": percent, "look_up": look_up, "clearly_best": clearly_best, "plots": plots}
    pages.globals |= {"faults": FAULTS, "per_class": PER_CLASS}
    return pages.get_template("report.html.jinja").render(
        title=title, groups=[tell_group(group) for group in by_task(chapters)]
    )


def by_task(chapters: list[Chapter]) -> list[list[Chapter]]:
    """Runs of one task together, of one method next to each other; otherwise in the order given."""
    plans = [chapter.record.plan for chapter in chapters]
    tasks, methods = [plan.task for plan in plans], [plan.method for plan in plans]
    ordered = sorted(chapters, key=lambda c: (tasks.index(c.record.plan.task), methods.index(c.record.plan.method)))
    return [list(group) for _, group in itertools.groupby(ordered, lambda c: c.record.plan.task)]


def tell_group(group: Sequence[Chapter]) -> dict[str, Any]:
    """What the page says about the runs of one task; each is compared with the first of them."""
    first, pairs = group[0].outputs, list(zip(group, run_titles([c.record.plan for c in group]), strict=True))
    return {
        "task": group[0].task,
        "found": [chapter.found for chapter in group],
        "sets": [name for name in set_names(first) if all(name in c.found["scores"]["sets"] for c in group)],
        "runs": [tell(chapter, title) for chapter, title in pairs],
        "differences": [
            (title, name, result)
            for chapter, title in pairs[1:]
            for name, result in differences(first, chapter.outputs).items()
        ],
    }


def tell(chapter: Chapter, title: str) -> dict[str, Any]:
    """What the page says about one run."""
    pictured, log = len(chapter.task.shape) == 3, chapter.record.log
    return {
        "title": title,
        "chapter": chapter,
        "maps": heat_maps(chapter) if chapter.task.is_planar else {},
        "gap": float(posterior_gap(chapter).mean()) if chapter.task.posterior else None,
        "strips": shields.strips(chapter.record, chapter.task) if pictured else {},
        "reconstructions": shields.reconstructions(chapter.record, chapter.task) if pictured else None,
        "health": shields.health_of(log, chapter.task.class_names),
        "galleries": galleries(chapter) if pictured else {},
        "diagrams": diagrams(chapter),
        "curves": {name: plots.data_uri(curves.training_curves(rows)) for name, rows in curves.by_stage(log).items()},
    }


def clearly_best(found: Sequence[Mapping[str, Any]], path: tuple[str, ...], more_is_better: bool) -> int | None:
    """The run whose interval lies clear of those of all others, on the better side; None if there is none."""
    intervals = [look_up(each["intervals"], path) for each in found]
    if len(found) < 2 or None in intervals:
        return None
    ends = [(low, high) if more_is_better else (-high, -low) for low, high in intervals]
    best = max(range(len(ends)), key=lambda k: ends[k])
    return best if all(high < ends[best][0] for k, (_, high) in enumerate(ends) if k != best) else None


def look_up(tree: Mapping[str, Any] | None, path: tuple[str, ...]) -> Any:
    """The value at a path, None where there is none: not every score has one, nor an interval."""
    for key in path:
        tree = tree.get(key) if tree else None
    return tree


def percent(value: float | None, interval: Sequence[float] | None = None) -> tuple[str, str]:
    """A share and its interval as one prints them; a second decimal only where the interval is that narrow."""
    if value is None:
        return "–", ""
    low, high = interval or (0.0, 1.0)
    digits = 2 if high - low < 0.005 else 1
    spelled = f"{100 * low:.{digits}f} to {100 * high:.{digits}f}"
    return f"{100 * value:.{digits}f}", spelled if interval else ""


def differences(first: Outputs, second: Outputs) -> dict[str, Comparison]:
    """How two runs differ in AUROC by Eq. 4 on each OoD set; nothing if they were asked about different samples."""
    sizes = [{name: len(each.probs) for name, each in outputs.ood.items()} for outputs in (first, second)]
    if sizes[0] != sizes[1] or not torch.equal(first.y, second.y):
        return {}
    ranked = {name: [ranking(each, "epistemic", name) for each in (first, second)] for name in set_names(first)}
    return {name: paired_bootstrap(a, b, is_ood) for name, ((a, is_ood), (b, _)) in ranked.items()}


def heat_maps(chapter: Chapter) -> Pictures:
    """The paper's toy figures, and how far p̂ is from the truth where that is known."""
    task, plan = chapter.task, chapter.record.plan
    frame = plots.frame_around(task.test.x, 0.5 if task.name.startswith("moons") else 0.2)
    y = torch.arange(1200) % task.n_classes
    made, real = shields.examples(chapter.record, y), task.test[torch.arange(min(POINTS_SHOWN, len(task.test)))]
    bare = plots.Points(real.x, real.y)
    points = bare if made is None else plots.Points(real.x, real.y, made[:POINTS_SHOWN], y[:POINTS_SHOWN])
    values = map_values(chapter, chapter.record.predictor.predict(plots.cells_of(frame), plan.seed).cpu())
    maps = {
        key: plots.heat_map(map_, frame, unit, chapter.top(unit) or float(map_.max()), points)
        for key, (map_, unit) in values.items()
    }
    if made is not None:
        maps["density"] = plots.density_map(made, y, task.n_classes, frame, bare)
    if task.posterior:
        maps["gap"] = plots.gap_map(task.test.x[:GAPS_SHOWN], posterior_gap(chapter)[:GAPS_SHOWN], frame)
    return {key: plots.data_uri(svg) for key, svg in maps.items()}


def map_values(chapter: Chapter, found: Prediction) -> dict[str, tuple[Tensor, str]]:
    """What a method says about the plane, with units. Eq. 4 fades places where an entropy means nothing."""
    aleatoric, epistemic = chapter.units
    if torch.equal(found.aleatoric, found.epistemic):
        return {"only": (found.epistemic, epistemic)}
    maps = {"epistemic": (found.epistemic, epistemic), "aleatoric": (found.aleatoric, aleatoric)}
    if chapter.method.reading is read_one_vs_all:
        maps["faded"] = (found.aleatoric * (1 - found.epistemic), aleatoric)
        maps["foreignness"] = (found.foreignness, "probability")
    return maps


def posterior_gap(chapter: Chapter) -> Tensor:
    """The largest |p̂(y|x) - p(y|x)| over the classes, for each test sample."""
    assert chapter.task.posterior is not None
    return (chapter.outputs.test.probs - chapter.task.posterior(chapter.task.test.x)).abs().amax(1)


def galleries(chapter: Chapter) -> dict[str, list[dict[str, Any]]]:
    """What the model takes for sure, for torn, for foreign, and where it errs in that."""
    task, test = chapter.task, chapter.outputs.test
    ease = test.epistemic.argsort(stable=True).argsort() + test.aleatoric.argsort(stable=True).argsort()
    keys = {"accepted": ease, "torn": -test.aleatoric, "alarms": -test.epistemic}
    chosen = {name: thumbnails(task, task.test.x, test, None, key) for name, key in keys.items()}
    sets = [(task.ood[name], said, name) for name, said in chapter.outputs.ood.items()]
    each = max(1, SHOWN // max(1, len(sets)))
    missed = [t for x, said, name in sets for t in thumbnails(task, x, said, name, said.epistemic)]
    return chosen | {
        "foreign": [t for x, said, name in sets for t in thumbnails(task, x, said, name, -said.epistemic)[:each]],
        "missed": sorted(missed, key=lambda thumbnail: float(thumbnail["epistemic"]))[:SHOWN],
    }


def thumbnails(task: Task, x: Tensor, said: Prediction, ood: str | None, key: Tensor) -> list[dict[str, Any]]:
    """The pictures with the smallest key and what was said about them; `ood` is their set, None for known ones."""
    return [
        {
            "source": plots.data_uri(plots.png(x[k : k + 1])),
            "ood": ood,
            "truth": ood or task.class_names[task.test.y[k]],
            "classes": [(task.class_names[c], float(said.probs[k, c])) for c in said.probs[k].topk(2).indices.tolist()],
            "aleatoric": float(said.aleatoric[k]),
            "epistemic": float(said.epistemic[k]),
        }
        for k in key.argsort(stable=True)[:SHOWN].tolist()
    ]


def diagrams(chapter: Chapter) -> Pictures:
    """Is it as often right as it says, and do the uncertainties part what they should?"""
    test, right = chapter.outputs.test, chapter.outputs.right
    aleatoric, epistemic = chapter.units
    foreign = [
        test.epistemic[right],
        test.epistemic[~right],
        *(each.epistemic for each in chapter.outputs.ood.values()),
    ]
    drawn = {
        "epistemic": plots.histograms(foreign, epistemic, chapter.top(epistemic)),
        "aleatoric": plots.histograms(
            [test.aleatoric[right], test.aleatoric[~right]], aleatoric, chapter.top(aleatoric)
        ),
        "reliability": plots.reliability_diagram(reliability(test.probs.amax(1), right)),
    }
    return {key: plots.data_uri(svg) for key, svg in drawn.items()}
