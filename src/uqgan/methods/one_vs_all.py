"""One-vs-all classifiers: minimise Eq. 1, with no generated samples."""

from functools import partial

from torch import Tensor

from uqgan.config import Config
from uqgan.data.tasks import Task
from uqgan.log import Log
from uqgan.losses import one_vs_all_loss
from uqgan.methods.method import Networks
from uqgan.methods.method import classifier_only as networks
from uqgan.shapes import Labels, Logits, Scalar
from uqgan.training import fit_supervised
from uqgan.uncertainty import posterior

__all__ = ["fit", "networks"]


def fit(nets: Networks, task: Task, config: Config, log: Log, outliers: Tensor | None) -> None:
    prior = task.train.class_frequencies(task.n_classes)

    def loss_of(logits: Logits, y: Labels) -> Scalar:
        return one_vs_all_loss(logits, y, prior)

    fit_supervised(nets.classifier, task, config, log, "one_vs_all", loss_of, partial(posterior, prior=prior))
