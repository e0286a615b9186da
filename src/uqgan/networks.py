"""The networks that a recipe trains, with everything that differs between kinds of networks."""

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
    """The networks of a recipe: a classifier.

    Recipes with further networks, or with draws other than dropout masks, extend this class.
    """

    def __init__(self, classifier: nn.Module) -> None:
        super().__init__()
        self.classifier = classifier

    draws_weights = False
    """Whether a draw is a set of weights shared by all samples, rather than a dropout mask per sample."""

    @property
    def draws(self) -> bool:
        """Whether two forward passes of the same sample differ."""
        return draws(self.classifier)

    def make_fast(self, config: Config) -> None:
        """Prepare the networks for their device."""
        C = self.classifier
        if not isinstance(C, UserClassifier) or C.takes_channels_last:
            prepare(C, config.precision)

    @property
    def undecayed(self) -> list[nn.Parameter]:
        """Weights without weight decay."""
        return []

    def logits(self, x: Images, n_draws: int) -> DrawnLogits:
        """Logits of each draw, as one batch, since every row has an independent dropout mask."""
        rows = x.repeat(n_draws, *[1] * (x.ndim - 1))
        return cast(Tensor, self.classifier(rows).unflatten(0, (n_draws, -1)))

    def generate(self, y: Labels) -> Images | None:
        """Out-of-class examples of these classes; None if the recipe trains no generator."""
        return None

    def reconstruct(self, x: Images, y: Labels) -> Images | None:
        """Images after a pass through the autoencoder; None if the recipe trains none."""
        return None


def logits_of_both(classifier: nn.Module, x: Images, foreign: Images) -> tuple[Logits, Logits]:
    """Logits of known and of foreign samples from one pass, so that batch statistics are of both, as in prediction."""
    logits = classifier(torch.cat([x, foreign]))
    return logits[: len(x)], logits[len(x) :]


def classifier_only(
    shape: tuple[int, ...], n_classes: int, config: Config, dropout: float, user_classifier: nn.Module | None
) -> Networks:
    """Networks of a recipe that trains only a classifier."""
    return Networks(make_classifier(config.classifier, shape, n_classes, dropout, user_classifier))
