"""Softmax classifiers: minimise the cross-entropy; on outliers, fit the uniform distribution."""

from collections.abc import Sequence

from torch import Tensor

from uqgan.config import Config
from uqgan.data.tasks import Task
from uqgan.log import Log
from uqgan.losses import cross_entropy_loss, uniform_loss
from uqgan.networks import Networks, logits_of_both
from uqgan.networks import classifier_only as networks
from uqgan.shapes import Scalar
from uqgan.training import SupervisedBatch, fit_supervised

__all__ = ["SETTINGS", "USES", "fit", "networks"]

SETTINGS: tuple[str, ...] = ("cross_entropy",)
USES: tuple[str, ...] = ("dropout", "outliers")


def objective(nets: Networks, batch: SupervisedBatch) -> Scalar:
    if batch.outliers is None:
        return cross_entropy_loss(nets.classifier(batch.x), batch.y)
    known, foreign = logits_of_both(nets.classifier, batch.x, batch.outliers)
    return cross_entropy_loss(known, batch.y) + uniform_loss(foreign)


def fit(nets: Networks, task: Task, config: Config, log: Log, outliers: Sequence[Tensor]) -> None:
    fit_supervised(nets, task, config, log, "cross_entropy", objective, lambda logits: logits.softmax(-1), outliers)
