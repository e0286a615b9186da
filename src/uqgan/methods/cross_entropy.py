"""Softmax classifiers: minimise the cross-entropy."""

from torch import Tensor

from uqgan.config import Config
from uqgan.data.tasks import Task
from uqgan.log import Log
from uqgan.losses import cross_entropy_loss
from uqgan.methods.method import Networks
from uqgan.methods.method import classifier_only as networks
from uqgan.training import fit_supervised

__all__ = ["fit", "networks"]


def fit(nets: Networks, task: Task, config: Config, log: Log, outliers: Tensor | None) -> None:
    fit_supervised(
        nets.classifier, task, config, log, "cross_entropy", cross_entropy_loss, lambda logits: logits.softmax(-1)
    )
