"""Runs as one HTML page that needs nothing from outside: tables, heat maps, galleries, curves, settings.

The words stand in `templates/report.html.jinja`; here are the numbers and pictures it shows.
"""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from jinja2 import Environment, PackageLoader, StrictUndefined
from torch import Tensor

from uqgan import plots
from uqgan.data.dataset import as_input
from uqgan.data.tasks import Task
from uqgan.evaluation import Outputs, ranking, set_names
from uqgan.files import write_text
from uqgan.methods import METHODS, Method
from uqgan.metrics import LEVEL, Interval, paired_bootstrap, reliability
from uqgan.runs import Record
from uqgan.uncertainty import Prediction, read_entropy, read_max_softmax, read_one_vs_all

UNITS = {
    read_one_vs_all: ("nats", "probability"),
    read_entropy: ("nats", "nats"),
    read_max_softmax: ("1 - max p̂", "1 - max p̂"),
}
"""Of the aleatoric and the epistemic uncertainty, by the reading that gives them."""
HEADLINES = (("accuracy", True), ("auroc_sf", True), ("ece", False))
OOD_COLUMNS = (
    ("sets", "auroc", True),
    ("sets", "aupr_in", True),
    ("sets", "aupr_out", True),
    ("sets", "fpr95_id_positive", False),
    ("sets", "fpr95_ood_positive", False),
    ("foreignness", "auroc", True),
)
"""Where a score is found, its name, and whether more is better."""
SHOWN, CLASSES_SHOWN, POINTS_SHOWN = 8, 10, 250


@dataclass(frozen=True)
class Chapter:
    """One run on the page."""

    record: Record
    task: Task
    outputs: Outputs
    found: dict[str, Any]

    @property
    def method(self) -> Method:
        return METHODS[self.record.plan.method]

    @property
    def units(self) -> tuple[str, str]:
        return UNITS.get(self.method.reading, ("score", "score"))

    @cached_property
    def settings(self) -> dict[str, Any]:
        """Flat: those of the method's own recipe by their short names, the others with their section."""
        own = self.method.recipe.__name__.rpartition(".")[2]  # type: ignore[attr-defined]
        return {key.removeprefix(f"{own}."): value for key, value in flat(self.record.plan.config.model_dump()).items()}

    def top(self, unit: str) -> float:
        """The largest value an uncertainty in that unit can have; 0 if nothing is known."""
        return {"nats": math.log(self.task.n_classes), "score": 0.0}.get(unit, 1.0)


@dataclass(frozen=True)
class Cell:
    """A number of a table, in percent."""

    text: str
    interval: str = ""
    best: bool = False


@dataclass(frozen=True)
class Comparison:
    """Two runs on the same samples of an OoD set."""

    first: str
    second: str
    set_name: str
    difference: Interval
    p_value: float


@dataclass(frozen=True)
class Picture:
    """An image with its words; `legend` holds pairs of a colour and a name."""

    source: str
    alt: str
    caption: str | list[str]
    legend: Sequence[tuple[str, str]] = ()


def write_report(chapters: list[Chapter], file: Path, title: str = "uqgan report") -> None:
    """The page as a file: whole, or not there."""
    write_text(file, render(chapters, title))


def render(chapters: list[Chapter], title: str) -> str:
    """The whole page; the same runs give the same bytes."""
    pages = Environment(
        loader=PackageLoader("uqgan"), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    groups = by_task(chapters)
    titles = {id(chapter): name for group in groups for chapter, name in zip(group, run_titles(group), strict=True)}
    return pages.get_template("report.html.jinja").render(
        title=title,
        level=f"{LEVEL:.0%}".replace("%", " %"),
        tables=[table(group, [titles[id(chapter)] for chapter in group]) for group in groups],
        runs=[tell(chapter, titles[id(chapter)]) for group in groups for chapter in group],
        with_images=any(len(chapter.task.shape) == 3 for chapter in chapters),
    )


def by_task(chapters: list[Chapter]) -> list[list[Chapter]]:
    """Runs of one task together, of one method next to each other; otherwise in the order given."""
    plans = [chapter.record.plan for chapter in chapters]
    tasks = list(dict.fromkeys(plan.task for plan in plans))
    methods = list(dict.fromkeys(plan.method for plan in plans))
    ordered = sorted(chapters, key=lambda c: (tasks.index(c.record.plan.task), methods.index(c.record.plan.method)))
    return [list(group) for _, group in itertools.groupby(ordered, lambda c: c.record.plan.task)]


def run_titles(group: Sequence[Chapter]) -> list[str]:
    """The method, and the settings in which a run differs from the others of its task and method."""
    titles = []
    for chapter in group:
        alike = [c for c in group if c.record.plan.method == chapter.record.plan.method]
        facts = [c.settings | {"seed": c.record.plan.seed} for c in alike]
        own = facts[alike.index(chapter)]
        differing = [f"{key} = {shown(own[key])}" for key in own if any(f[key] != own[key] for f in facts)]
        titles.append(", ".join([chapter.record.plan.method, *differing]))
    return titles


def table(group: Sequence[Chapter], titles: list[str]) -> dict[str, Any]:
    """What the runs of a task are compared by."""
    found = [chapter.found for chapter in group]
    heads = zip(*(cells(found, (name,), more) for name, more in HEADLINES), strict=True)
    names = [name for name in set_names(group[0].outputs) if all(name in each["scores"]["sets"] for each in found)]
    ood = {
        name: list(zip(*(cells(found, (key, name, score), more) for key, score, more in OOD_COLUMNS), strict=True))
        for name in names
    }
    return {
        "task": group[0].task,
        "rows": list(zip(titles, [chapter.record.plan.seed for chapter in group], heads, strict=True)),
        "titles": titles,
        "ood": ood,
        "sizes": {name: len(each.probs) for name, each in group[0].outputs.ood.items()},
        "comparisons": [
            compare(group[0], other, titles[0], title, name)
            for other, title in zip(group[1:], titles[1:], strict=True)
            for name in names
            if same_samples(group[0].outputs, other.outputs)
        ],
    }


def cells(found: Sequence[Mapping[str, Any]], path: tuple[str, ...], more_is_better: bool) -> list[Cell]:
    """A column. The best is marked only where its interval lies clear of all others."""
    values = [look_up(each["scores"], path) for each in found]
    intervals = [look_up(each["intervals"], path) for each in found]
    texts = [percent(value, interval) for value, interval in zip(values, intervals, strict=True)]
    if len(found) < 2 or None in values or None in intervals:
        return [Cell(*text) for text in texts]
    sign = 1 if more_is_better else -1
    best = max(range(len(values)), key=lambda k: sign * values[k])
    worst_end = min(sign * end for end in intervals[best])
    clear = all(max(sign * end for end in other) < worst_end for other in intervals if other is not intervals[best])
    return [Cell(*text, best=clear and k == best) for k, text in enumerate(texts)]


def look_up(tree: Mapping[str, Any] | None, path: tuple[str, ...]) -> Any:
    """The value at a path, None where there is none: not every score has one, nor an interval."""
    for key in path:
        tree = tree.get(key) if tree else None
    return tree


def percent(value: float | None, interval: Sequence[float] | None = None) -> tuple[str, str]:
    """A share and its interval as one prints them: a second decimal only where the interval is that narrow."""
    if value is None:
        return "–", ""
    if interval is None:
        return f"{100 * value:.1f}", ""
    low, high = interval
    digits = 2 if high - low < 0.005 else 1
    return f"{100 * value:.{digits}f}", f"{100 * low:.{digits}f} to {100 * high:.{digits}f}"


def same_samples(first: Outputs, second: Outputs) -> bool:
    """Whether two runs were asked about the same samples, as a paired test needs it."""
    sizes = [{name: len(each.probs) for name, each in outputs.ood.items()} for outputs in (first, second)]
    return sizes[0] == sizes[1] and torch.equal(first.y, second.y)


def compare(first: Chapter, second: Chapter, title: str, other: str, name: str) -> Comparison:
    score, is_ood = ranking(first.outputs, "epistemic", name)
    result = paired_bootstrap(score, ranking(second.outputs, "epistemic", name)[0], is_ood)
    return Comparison(title, other, name, result.difference, result.p_value)


def tell(chapter: Chapter, title: str) -> dict[str, Any]:
    """All that the page says about one run."""
    is_image = len(chapter.task.shape) == 3
    return {
        "title": title,
        "plan": chapter.record.plan,
        "about": chapter.record.about,
        "task": chapter.task,
        "method": chapter.method,
        "settings": {key: shown(value) for key, value in chapter.settings.items()},
        "scores": {name: percent(chapter.found["scores"][name])[0] for name, _ in HEADLINES},
        "maps": heat_maps(chapter) if chapter.task.is_planar else [],
        "strips": shield_strips(chapter) if is_image else [],
        "galleries": galleries(chapter) if is_image else {},
        "diagrams": diagrams(chapter),
        "curves": curves(chapter.record.log),
    }


def heat_maps(chapter: Chapter) -> list[Picture]:
    """The paper's toy figures, and how far p̂ is from the truth where that is known."""
    task, predictor = chapter.task, chapter.record.predictor
    frame = plots.frame_around(task.test.x, 0.5 if task.name.startswith("moons") else 0.2)
    found = predictor.predict(plots.cells_of(frame), chapter.record.plan.seed).cpu()
    y = torch.arange(task.n_classes).repeat_interleave(1 + 1200 // task.n_classes)
    made = examples(chapter, y)
    few = torch.linspace(0, len(y) - 1, POINTS_SHOWN).long()
    real = task.test[torch.arange(min(POINTS_SHOWN, len(task.test)))]
    points = plots.Points(real.x, real.y, *((made[few], y[few]) if made is not None else ()))
    legend = [(plots.colour_of(k), name) for k, name in enumerate(task.class_names)]
    pictures = [
        Picture(plots.data_uri(plots.heat_map(values, frame, unit, chapter.top(unit) or float(values.max()), points)),
                f"Heat map of the plane: {caption}", caption, legend)
        for values, unit, caption in map_values(chapter, found)
    ]  # fmt: skip
    if made is not None:
        caption = "Density of the generated examples, in the colour of the class they are to shield"
        drawn = plots.density_map(made, y, task.n_classes, frame, plots.Points(real.x, real.y))
        pictures.append(Picture(plots.data_uri(drawn), f"Map of the plane: {caption}", caption, legend))
    if task.posterior:
        gap = (chapter.outputs.test.probs - task.posterior(task.test.x)).abs().amax(1)
        caption = f"Error of the class probabilities against the true ones: {gap.mean():.3f} on average over the test set"
        drawn = plots.gap_map(task.test.x[:3000], gap[:3000], frame)
        pictures.append(Picture(plots.data_uri(drawn), f"Scatter plot of test samples. {caption}", caption))
    return pictures


def map_values(chapter: Chapter, found: Prediction) -> Iterable[tuple[Tensor, str, str]]:
    """What a method says about the plane, as (values, unit, caption)."""
    aleatoric, epistemic = chapter.units
    if torch.equal(found.aleatoric, found.epistemic):
        yield found.epistemic, epistemic, "Uncertainty: this method has one for both purposes"
        return
    yield found.epistemic, epistemic, "Epistemic uncertainty: how foreign a place is to all classes (Eq. 4)"
    yield found.aleatoric, aleatoric, "Aleatoric uncertainty: how torn between the classes (Eq. 5)"
    if chapter.method.reading is read_one_vs_all:
        masked = found.aleatoric * (1 - found.epistemic)
        yield masked, aleatoric, "Aleatoric uncertainty, faded where the place is foreign: aleatoric × (1 - epistemic)"
        yield found.foreignness, "probability", "Foreignness: 0 for every mixture of known classes, 1 far from all"


@torch.no_grad()
def examples(chapter: Chapter, y: Tensor) -> Tensor | None:
    """Out-of-class examples of these classes, the same each time; None for methods that make none."""
    predictor = chapter.record.predictor
    if predictor.shield is None:
        return None
    device = predictor.prior.device
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(chapter.record.plan.seed)
        return predictor.shield.eval()(y.to(device)).cpu()


@torch.no_grad()
def shield_strips(chapter: Chapter) -> list[tuple[str, list[Picture]]]:
    """For each class: real pictures, what the autoencoder keeps of them, and generated out-of-class examples."""
    shield, test = chapter.record.predictor.shield, chapter.task.test
    strips = []
    for k, name in enumerate(chapter.task.class_names[:CLASSES_SHOWN]):
        y = torch.full((SHOWN,), k)
        x, made = test.x[test.y == k][:SHOWN], examples(chapter, y)
        if shield is None or made is None or not len(x):
            continue
        device = chapter.record.predictor.prior.device
        inputs, labels = as_input(x).to(device), y[: len(x)].to(device)
        again = shield.autoencoder.decode(shield.autoencoder.encode(inputs, labels), labels)
        rows = {"real": x, "reconstructed": as_bytes(again), "generated": as_bytes(made)}
        strips.append((name, [Picture(plots.data_uri(plots.png(row)), f"{len(row)} {kind} pictures of class {name}", kind)
                              for kind, row in rows.items()]))  # fmt: skip
    return strips
