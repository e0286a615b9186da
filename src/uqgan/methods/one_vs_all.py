"""One-vs-all classifiers: minimise Eq. 1, with no generated samples."""

from collections.abc import Sequence
from functools import partial

from torch import Tensor

from uqgan.config import Config
from uqgan.data.tasks import Task
from uqgan.log import Log
from uqgan.losses import one_vs_all_loss
from uqgan.networks import Networks
from uqgan.networks import classifier_only as networks
from uqgan.shapes import Scalar
from uqgan.training import SupervisedBatch, fit_supervised
from uqgan.uncertainty import posterior

__all__ = ["SETTINGS", "USES", "fit", "networks"]

SETTINGS: tuple[str, ...] = ("one_vs_all",)
USES: tuple[str, ...] = ("dropout",)


def fit(nets: Networks, task: Task, config: Config, log: Log, outliers: Sequence[Tensor]) -> None:
    prior = task.train.class_frequencies(task.n_classes)

    def objective(nets: Networks, batch: SupervisedBatch) -> Scalar:
        return one_vs_all_loss(nets.classifier(batch.x), batch.y, prior)

    fit_supervised(nets, task, config, log, "one_vs_all", objective, partial(posterior, prior=prior))
