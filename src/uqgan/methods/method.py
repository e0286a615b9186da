"""A method is how a classifier is trained (recipe) times how its logits are read (reading)."""

from dataclasses import dataclass
from typing import Protocol, cast

import torch
from torch import Tensor, nn

from uqgan.acceleration import compiled, keep_freed_memory, own_randomness, prepare
from uqgan.config import Config
from uqgan.data.dataset import CHUNK, equal_chunks
from uqgan.data.tasks import Task
from uqgan.log import Log
from uqgan.models.autoencoders import CODERS
from uqgan.models.classifiers import make_classifier
from uqgan.models.gan import Shield
from uqgan.models.own import OwnClassifier
from uqgan.shapes import DrawnLogits, Images, Prior
from uqgan.uncertainty import Prediction, Reading

COMPILED_FROM = 7_000_000
"""Passes of a sample from which on it pays to compile the networks for them."""


class Networks(nn.Module):
    """What a recipe trains."""

    def __init__(self, classifier: nn.Module, shield: Shield | None = None) -> None:
        super().__init__()
        self.classifier, self.shield = classifier, shield


class Recipe(Protocol):
    """A module of this package: the networks it needs, and how they are trained."""

    __name__: str

    def networks(
        self, shape: tuple[int, ...], n_classes: int, config: Config, dropout: float, own: nn.Module | None
    ) -> Networks: ...

    def fit(self, nets: Networks, task: Task, config: Config, log: Log, outliers: Tensor | None) -> None: ...


def classifier_only(
    shape: tuple[int, ...], n_classes: int, config: Config, dropout: float, own: nn.Module | None
) -> Networks:
    """The networks of every recipe that trains nothing beside its classifier."""
    return Networks(make_classifier(config.classifier, shape, n_classes, dropout, own))


class Predictor(nn.Module):
    """Trained networks with the way to read them."""

    prior: Tensor

    def __init__(self, members: list[Networks], reading: Reading, prior: Prior, passes: int) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)
        self.reading, self.passes = reading, passes
        self.register_buffer("prior", prior)
        self._fast = self._logits

    @property
    def shield(self) -> Shield | None:
        return cast(Networks, self.members[0]).shield

    def prepare(self, config: Config) -> None:
        """Make the convolutional networks fast on the device they are on."""
        for nets in self.members:
            C = cast(Networks, nets).classifier
            if not isinstance(C, OwnClassifier) or C.takes_channels_last:
                prepare(C, config.precision)
        if self.shield:
            prepare(self.shield.autoencoder, config.precision, *CODERS)
        self._fast = compiled(self._logits, self.prior.device, config.compiles)

    @torch.no_grad()
    def predict(self, x: Tensor, seed: int | None = None) -> Prediction:
        """Read x: uint8 images, pixels in [0, 1], or points. The same seed repeats the same draws."""
        with own_randomness(self.prior.device, seed):
            chunks = equal_chunks(x.to(self.prior.device), max(1, CHUNK // self.passes))
            logits = self._fast if self.passes * len(self.members) * len(x) >= COMPILED_FROM else self._logits
            parts = [self.reading(logits(chunk), self.prior) for chunk in chunks]
        return Prediction.join(parts).first(len(x))

    def _logits(self, x: Images) -> DrawnLogits:
        rows = x.repeat(self.passes, *[1] * (x.ndim - 1))  # all passes as one batch
        drawn = [cast(Networks, net).classifier(rows).unflatten(0, (self.passes, len(x))) for net in self.members]
        return torch.cat(drawn)


@dataclass(frozen=True)
class Method:
    """A row of the paper's tables."""

    title: str
    recipe: Recipe
    reading: Reading
    dropout: float = 0.0
    passes: int = 1
    members: int = 1
    sees_ood: bool = False

    @property
    def section(self) -> str:
        """The section of the settings that its recipe reads."""
        return self.recipe.__name__.rpartition(".")[2]

    def assemble(
        self, shape: tuple[int, ...], n_classes: int, config: Config, own: nn.Module | None = None
    ) -> Predictor:
        """The method's networks, not trained yet; each member with a copy of one's own classifier, if there is one."""
        nets = [self.recipe.networks(shape, n_classes, config, self.dropout, own) for _ in range(self.members)]
        prior = torch.full((n_classes,), 1 / n_classes)
        return Predictor(nets, self.reading, prior, self.passes).eval()

    def fit(self, task: Task, config: Config, log: Log, own: nn.Module | None = None) -> Predictor:
        """Train on the device that holds the task's data."""
        device = task.train.x.device
        if device.type == "cpu":
            keep_freed_memory()
        torch.manual_seed(log.seed)
        predictor = self.assemble(task.shape, task.n_classes, config, own).to(device)
        predictor.prepare(config)
        predictor.prior.copy_(task.train.class_frequencies(task.n_classes))
        outliers = torch.cat(list(task.outliers.values())).to(device) if self.sees_ood else None
        for nets in predictor.members:
            self.recipe.fit(cast(Networks, nets), task, config, log, outliers)
        return predictor.eval()
