"""Parts of the report about the shield: generated examples, reconstructions, measurements during training."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from uqgan import health
from uqgan.data.dataset import CHUNK, as_input
from uqgan.data.tasks import Task
from uqgan.health import FAULTS, first_member
from uqgan.report import curves
from uqgan.report.curves import best_row, group_by
from uqgan.report.plots import Pictures, data_uri, png
from uqgan.runs import Record

SHOWN, CLASSES_SHOWN, RECONSTRUCTIONS_SHOWN, LOWEST_SHOWN = 8, 10, 16, 5


def examples(record: Record, y: Tensor) -> Tensor | None:
    """Out-of-class examples of these classes, equal in every call; None for methods without a generator."""
    generated = record.predictor.generate(y, record.plan.seed)
    return None if generated is None else generated.cpu()


def strips(record: Record, task: Task) -> dict[str, Pictures]:
    """Real images and generated out-of-class examples, per class."""
    names = task.class_names[:CLASSES_SHOWN]
    generated = examples(record, torch.arange(len(names)).repeat_interleave(SHOWN))
    if generated is None:
        return {}
    real = [task.test.x[task.test.y == k][:SHOWN] for k in range(len(names))]
    return {
        name: {"real": data_uri(png(x)), "generated": data_uri(png(x_fake))}
        for name, x, x_fake in zip(names, real, torch.split(generated, SHOWN), strict=True)
        if len(x)
    }


def reconstructions(record: Record, task: Task) -> dict[str, Any] | None:
    """Test images and their reconstructions, with the validation loss (Eq. 6) and its lower bound; None without any."""
    few = task.test[torch.linspace(0, len(task.test) - 1, min(RECONSTRUCTIONS_SHOWN, len(task.test))).long()]
    reconstructed = record.predictor.reconstruct(as_input(few.x), few.y)
    if reconstructed is None:
        return None
    trained = group_by("stage", first_member(record.log)).get("autoencoder")
    kept = best_row(trained) if trained else None
    pixels = as_input((task.validation if len(task.validation) else few).x[:CHUNK])
    return {
        "pictures": {"Test images": data_uri(png(few.x)), "Reconstructions": data_uri(png(reconstructed))},
        "loss": kept["validation"] if kept else None,
        "least": float((torch.special.entr(pixels) + torch.special.entr(1 - pixels)).mean()),
    }


def describe_health(log: Sequence[Mapping[str, Any]], class_names: Sequence[str]) -> dict[str, Any] | None:
    """Curves, settled values and warnings of the shield's measurements during training; None without measurements."""
    rows = health.measured(log)
    if not rows:
        return None
    figures = {"distance": curves.distance_curve(rows), "gradient": curves.gradient_curves(rows)}
    figures |= {kind: curves.class_curves(rows, kind) for kind in FAULTS}
    values = {kind: health.settled(rows, kind) for kind in FAULTS}
    shown = set(health.measured_classes(rows))
    many = len(shown) > curves.LINES_SHOWN
    if many:
        shown = {k for found in values.values() for k in sorted(found, key=lambda k: (found[k], k))[:LOWEST_SHOWN]}
    return {
        "curves": {key: data_uri(svg) for key, svg in figures.items()},
        "classes": [(class_names[k], *(found[k] for found in values.values())) for k in sorted(shown)],
        "many": many,
        "warnings": health.warnings(rows, class_names),
    }
