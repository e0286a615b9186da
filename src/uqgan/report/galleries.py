"""Parts of the report about decisions: number and share of each, and galleries of pictures."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from uqgan.data.tasks import Task
from uqgan.decisions import WORDS, Decisions
from uqgan.evaluation import Outputs
from uqgan.report.plots import data_uri, png
from uqgan.uncertainty import Prediction

SHOWN = 6

Place = tuple[str | None, int]
"""A test sample: the name of its OoD set, None for the known classes, and its index there."""
Made = Mapping[str | None, Decisions]
"""Decisions by the name of the OoD set, None for the known classes; empty without decisions."""


def shares(outputs: Outputs, made: Made) -> list[tuple[str, int, dict[str, float]]]:
    """Number of samples and shares of the decisions, for correct and wrong predictions, and per OoD set."""
    right = outputs.right.tolist()
    groups = [
        (f"known, predicted {name}", [w for w, r in zip(made[None].words, right, strict=True) if r == wanted])
        for name, wanted in (("correctly", True), ("wrongly", False))
    ]
    groups += [(name, list(made[name].words)) for name in outputs.ood]
    return [(name, len(group), {w: group.count(w) / len(group) for w in WORDS}) for name, group in groups if group]


def galleries(task: Task, outputs: Outputs, made: Made) -> dict[str, dict[str, Any]]:
    """Galleries of known and foreign pictures per decision; without decisions, of extreme uncertainties."""
    found: dict[str, dict[str, Any]] = {}
    sides: dict[str, Mapping[Any, Prediction]] = {"known": {None: outputs.test}, "foreign": outputs.ood}
    for side, sets in sides.items():
        places = [(name, k) for name, each in sets.items() for k in range(len(each.probs))]
        if not places:
            continue
        groups = by_decision(places, made) if made else by_uncertainty(places, Prediction.join(list(sets.values())))
        for key, group in groups.items():
            shown = evenly(group) if made else group
            pictures = [thumbnail(task, outputs, made, place) for place in shown]
            found.setdefault(key, {})[side] = {"n": len(group), "of": len(places), "pictures": pictures}
    return found


def extremes(task: Task, outputs: Outputs, made: Made) -> dict[str, dict[str, Any]]:
    """The most uncertain pictures, the most foreign ones, and wrong predictions with the highest probability."""
    known: list[Place] = [(None, k) for k in range(len(outputs.y))]
    foreign: list[Place] = [(name, k) for name, each in outputs.ood.items() for k in range(len(each.probs))]
    sides = {"known": (known, outputs.test)}
    if foreign:
        sides["foreign"] = (foreign, Prediction.join(list(outputs.ood.values())))
    found: dict[str, dict[str, Any]] = {"uncertain": {}, "foreign": {}, "confident": {}}
    for side, (places, prediction) in sides.items():
        for key, score in (("uncertain", prediction.aleatoric), ("foreign", prediction.foreignness)):
            top = [places[k] for k in (-score).argsort(stable=True)[:SHOWN].tolist()]
            found[key][side] = _shelf(task, outputs, made, top, len(top), len(places))
    wrong = (~outputs.right).nonzero().flatten()
    sure = wrong[(-outputs.test.probs.amax(1)[wrong]).argsort(stable=True)]
    chosen = [known[k] for k in sure[:SHOWN].tolist()]
    found["confident"]["known"] = _shelf(task, outputs, made, chosen, len(wrong), len(known))
    return found


def _shelf(task: Task, outputs: Outputs, made: Made, places: Sequence[Place], n: int, of: int) -> dict[str, Any]:
    return {"n": n, "of": of, "pictures": [thumbnail(task, outputs, made, place) for place in places]}


def by_decision(places: Sequence[Place], made: Made) -> dict[str, list[Place]]:
    """Samples by decision."""
    words = [made[name].words[k] for name, k in places]
    return {word: [place for place, w in zip(places, words, strict=True) if w == word] for word in WORDS}


def by_uncertainty(places: Sequence[Place], found: Prediction) -> dict[str, list[Place]]:
    """A few samples with the lowest epistemic, the highest aleatoric, and the highest epistemic uncertainty."""
    keys = {"least": found.epistemic, "torn": -found.aleatoric, "most": -found.epistemic}
    return {name: [places[k] for k in key.argsort(stable=True)[:SHOWN].tolist()] for name, key in keys.items()}


def evenly(group: Sequence[Place]) -> list[Place]:
    """A few of these samples at equal distances, so that they are typical."""
    return [group[k] for k in torch.linspace(0, len(group) - 1, min(SHOWN, len(group))).long().tolist()]


def thumbnail(task: Task, outputs: Outputs, made: Made, place: Place) -> dict[str, Any]:
    """Template variables of a picture in `gallery.html.jinja`."""
    ood, k = place
    x, found = (task.test.x, outputs.test) if ood is None else (task.ood[ood], outputs.ood[ood])
    files = task.files.get("test" if ood is None else f"ood/{ood}", ())
    ranked = found.probs[k].argsort(descending=True, stable=True).tolist()
    names = [c for c in ranked if made[ood].shown[k, c]] if made else ranked[:1]
    return {
        "source": data_uri(png(x[k : k + 1])),
        "file": files[k] if len(files) == len(x) else "",
        "names": [task.class_names[c] for c in names],
        "probability": float(found.probs[k, ranked[0]]),
        "truth": task.class_names[outputs.y[k]] if ood is None else None,
        "wrong": ood is None and ranked[0] != int(outputs.y[k]),
        "ood": ood,
        "aleatoric": float(found.aleatoric[k]),
        "epistemic": float(found.epistemic[k]),
        "p_value": float(made[ood].p_value[k]) if made else None,
        "reason": made[ood].reasons[k] if made else "",
    }
