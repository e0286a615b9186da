"""The networks that a recipe trains, with all that differs between kinds of them."""

from typing import cast

import torch
from torch import Tensor, nn

from uqgan.acceleration import prepare
from uqgan.config import Config
from uqgan.models.classifiers import make_classifier
from uqgan.models.layers import draws
from uqgan.models.user import UserClassifier
from uqgan.shapes import DrawnLogits, Images, Labels, Logits


class Networks(nn.Module):
    """What a recipe trains, and all that differs between kinds of networks.

    A recipe with more than a classifier, or with draws other than dropout masks, extends it.
    """

    def __init__(self, classifier: nn.Module) -> None:
        super().__init__()
        self.classifier = classifier

    draws_weights = False
    """Whether a draw is one of the weights, which all samples share, rather than of a mask per sample."""

    @property
    def draws(self) -> bool:
        """Whether two passes of the same sample differ."""
        return draws(self.classifier)

    def make_fast(self, config: Config) -> None:
        """Prepare the networks for the device they are on."""
        C = self.classifier
        if not isinstance(C, UserClassifier) or C.takes_channels_last:
            prepare(C, config.precision)

    @property
    def undecayed(self) -> list[nn.Parameter]:
        """Weights that weight decay leaves alone."""
        return []

    def logits(self, x: Images, n_draws: int) -> DrawnLogits:
        """Logits of each draw: all of them as one batch, as every row gets a dropout mask of its own."""
        rows = x.repeat(n_draws, *[1] * (x.ndim - 1))
        return cast(Tensor, self.classifier(rows).unflatten(0, (n_draws, -1)))

    def generate(self, y: Labels) -> Images | None:
        """Out-of-class examples of these classes; None if the recipe trains no generator."""
        return None

    def reconstruct(self, x: Images, y: Labels) -> Images | None:
        """Images after a pass through the autoencoder; None if the recipe trains none."""
        return None


def logits_of_both(classifier: nn.Module, x: Images, foreign: Images) -> tuple[Logits, Logits]:
    """Logits of known and of foreign samples from one pass: batch norm sees them mixed, as it will in prediction."""
    logits = classifier(torch.cat([x, foreign]))
    return logits[: len(x)], logits[len(x) :]


def classifier_only(
    shape: tuple[int, ...], n_classes: int, config: Config, dropout: float, user_classifier: nn.Module | None
) -> Networks:
    """The networks of every recipe that trains nothing beside its classifier."""
    return Networks(make_classifier(config.classifier, shape, n_classes, dropout, user_classifier))
