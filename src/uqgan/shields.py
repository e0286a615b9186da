"""The shield on the page: its examples, what its autoencoder keeps, and how it fared while it was trained."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from uqgan import curves, health
from uqgan.acceleration import own_randomness
from uqgan.curves import best_row, by_stage
from uqgan.data.dataset import CHUNK, as_input
from uqgan.data.tasks import Task
from uqgan.health import FAULTS
from uqgan.plots import Pictures, data_uri, png
from uqgan.runs import Record

SHOWN, CLASSES_SHOWN, RECONSTRUCTIONS_SHOWN, LOWEST_SHOWN = 8, 10, 16, 5


@torch.no_grad()
def examples(record: Record, y: Tensor) -> Tensor | None:
    """Out-of-class examples of these classes, the same each time; None for methods that make none."""
    predictor = record.predictor
    if predictor.shield is None:
        return None
    device = predictor.prior.device
    with own_randomness(device, record.plan.seed):
        made: Tensor = predictor.shield.eval()(y.to(device))
    return made.cpu()


def strips(record: Record, task: Task) -> dict[str, Pictures]:
    """For each class: real pictures, and generated out-of-class examples."""
    names = task.class_names[:CLASSES_SHOWN]
    made = examples(record, torch.arange(len(names)).repeat_interleave(SHOWN))
    if made is None:
        return {}
    pairs = [(task.test.x[task.test.y == k][:SHOWN], made[SHOWN * k : SHOWN * (k + 1)]) for k in range(len(names))]
    return {
        name: {"real": data_uri(png(real)), "generated": data_uri(png(generated))}
        for name, (real, generated) in zip(names, pairs, strict=True)
        if len(real)
    }


@torch.no_grad()
def reconstructions(record: Record, task: Task) -> dict[str, Any] | None:
    """Test pictures and what the autoencoder makes of them, with its loss (Eq. 6) and the least it could be."""
    shield, test = record.predictor.shield, task.test
    if shield is None:
        return None
    few = test[torch.linspace(0, len(test) - 1, min(RECONSTRUCTIONS_SHOWN, len(test))).long()]
    few = few.to(record.predictor.prior.device)
    again = shield.autoencoder.decode(shield.autoencoder.encode(as_input(few.x), few.y), few.y)
    trained = by_stage(record.log).get("autoencoder")
    kept = best_row(trained) if trained else None
    pixels = as_input(task.validation.x[:CHUNK])
    return {
        "pictures": {"Test pictures": data_uri(png(few.x)), "Reconstructions": data_uri(png(again))},
        "loss": kept["validation"] if kept else None,
        "least": float((torch.special.entr(pixels) + torch.special.entr(1 - pixels)).mean()),
    }


def health_of(log: Sequence[Mapping[str, Any]], class_names: Sequence[str]) -> dict[str, Any] | None:
    """What was measured of the shield during training; None if nothing was."""
    rows = health.measured(log)
    if not rows:
        return None
    figures = {"distance": curves.distance_curve(rows), "gradient": curves.gradient_curves(rows)}
    figures |= {kind: curves.class_curves(rows, kind) for kind in FAULTS}
    values = {kind: health.settled(rows, kind) for kind in FAULTS}
    shown, many = set(health.classes(rows)), len(health.classes(rows)) > curves.LINES_SHOWN
    if many:
        shown = {k for found in values.values() for k in sorted(found, key=lambda k: (found[k], k))[:LOWEST_SHOWN]}
    return {
        "curves": {key: data_uri(svg) for key, svg in figures.items()},
        "classes": [(class_names[k], *(found[k] for found in values.values())) for k in sorted(shown)],
        "many": many,
        "warnings": health.warnings(rows, class_names),
    }
