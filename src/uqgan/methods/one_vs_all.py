"""One-vs-all classifiers: minimise Eq. 1; with outliers, Eq. 9 with outliers in place of generated samples."""

from collections.abc import Sequence
from functools import partial

from torch import Tensor

from uqgan.config import Config
from uqgan.data.tasks import Task
from uqgan.log import Log
from uqgan.losses import foreign_loss, in_class_loss, one_vs_all_loss, other_classes_loss
from uqgan.networks import Networks, logits_of_both
from uqgan.networks import classifier_only as networks
from uqgan.shapes import Scalar
from uqgan.training import SupervisedBatch, fit_supervised
from uqgan.uncertainty import posterior

__all__ = ["SETTINGS", "USES", "fit", "networks"]

SETTINGS: tuple[str, ...] = ("one_vs_all",)
USES: tuple[str, ...] = ("dropout", "outliers")
LAMBDA_REAL = 0.6
"""Weight of the out-of-class loss on known samples, as in the paper's Eq. 9; outliers have the rest."""


def fit(nets: Networks, task: Task, config: Config, log: Log, outliers: Sequence[Tensor]) -> None:
    prior = task.train.class_frequencies(task.n_classes)

    def objective(nets: Networks, batch: SupervisedBatch) -> Scalar:
        if batch.outliers is None:
            return one_vs_all_loss(nets.classifier(batch.x), batch.y, prior)
        known, foreign = logits_of_both(nets.classifier, batch.x, batch.outliers)
        return (
            in_class_loss(known, batch.y)
            + LAMBDA_REAL * other_classes_loss(known, batch.y, prior)
            + (1 - LAMBDA_REAL) * foreign_loss(foreign)
        )

    fit_supervised(nets, task, config, log, "one_vs_all", objective, partial(posterior, prior=prior), outliers)
