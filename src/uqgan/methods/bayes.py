"""Bayes-by-Backprop: learn a distribution over the weights (Blundell et al., 2015).

Minimise the cross-entropy of one draw, summed over the batch, plus the batch's share of KL(q‖p), estimated from the
same draw: log q(w) - log p(w) summed over *all* random weights (decision 0017).
"""

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.func import vmap

from uqgan.acceleration import prepare
from uqgan.config import BayesConfig, Config
from uqgan.data.tasks import Task
from uqgan.log import Log
from uqgan.losses import cross_entropy_loss, log_scale_mixture, log_variational_density, minibatch_share
from uqgan.models.bayesian import BayesianNet, to_bayesian
from uqgan.models.classifiers import make_classifier
from uqgan.models.user import UserClassifier
from uqgan.networks import Networks
from uqgan.shapes import DrawnLogits, Images, Scalar
from uqgan.training import SupervisedBatch, fit_supervised

SETTINGS: tuple[str, ...] = ("bayes",)
USES: tuple[str, ...] = ()
BATCHED_ROWS = 512
"""Limit of rows, over all draws, that pass a network at once; more are faster one draw at a time."""


class BayesianNetworks(Networks):
    """A classifier with random weights."""

    draws_weights = True

    @property
    def net(self) -> BayesianNet:
        return cast(BayesianNet, self.classifier)

    @property
    def undecayed(self) -> list[nn.Parameter]:
        return [self.net.rho]

    def make_fast(self, config: Config) -> None:
        inner = self.net.net
        if not isinstance(inner, UserClassifier) or inner.takes_channels_last:
            prepare(inner, config.precision)

    def logits(self, x: Images, n_draws: int) -> DrawnLogits:
        """Logits of each draw: in one batched pass for few rows, otherwise one draw at a time."""
        net = self.net
        weights = net.weights(net.noise(n_draws), net.scales())
        if n_draws > 1 and n_draws * len(x) <= BATCHED_ROWS and not isinstance(net.net, UserClassifier):
            return vmap(net.run, (None, 0))(x, weights)
        return torch.stack([net.run(x, draw) for draw in weights])


def networks(
    shape: tuple[int, ...], n_classes: int, config: Config, dropout: float, user_classifier: nn.Module | None
) -> BayesianNetworks:
    return BayesianNetworks(to_bayesian(make_classifier(config.classifier, shape, n_classes, 0.0, user_classifier)))


def divergence(noise: Tensor, scales: Tensor, weights: Tensor, settings: BayesConfig) -> Scalar:
    """log q(w) - log p(w) of one draw: an estimate of KL(q‖p)."""
    log_q = log_variational_density(noise, scales)
    log_p = log_scale_mixture(weights, settings.prior_share, settings.prior_wide, settings.prior_narrow)
    return log_q.sum() - log_p.sum()


def fit(nets: Networks, task: Task, config: Config, log: Log, outliers: Sequence[Tensor]) -> None:
    assert isinstance(nets, BayesianNetworks)
    net, settings = nets.net, config.bayes
    n_batches = task.train.steps_per_epoch(settings.batch_size, drop_last=False)

    def objective(nets: Networks, batch: SupervisedBatch) -> Scalar:
        noise, scales = net.noise(), net.scales()
        weights = net.weights(noise, scales)
        likelihood = len(batch.x) * cross_entropy_loss(net.run(batch.x, weights), batch.y)
        kl = divergence(noise, scales, weights, settings)
        return likelihood + settings.kl_factor * minibatch_share(batch.position, n_batches) * kl

    fit_supervised(nets, task, config, log, "bayes", objective, lambda logits: logits.softmax(-1))
