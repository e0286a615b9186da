"""A method is how a classifier is trained (recipe) times how its logits are read (reading)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol, cast

import joblib
import torch
from torch import Tensor, nn

from uqgan.acceleration import compiled, in_bf16, keep_freed_memory, local_seed
from uqgan.config import Config
from uqgan.data.dataset import CHUNK, as_input, equal_chunks
from uqgan.data.tasks import Task
from uqgan.errors import UsageError, count
from uqgan.files import cache_folder
from uqgan.log import Log
from uqgan.methods.parallel import PARALLEL_FROM_SECONDS, train_in_parallel
from uqgan.models.user import UserClassifier
from uqgan.networks import Networks
from uqgan.shapes import DrawnLogits, Images, Labels, Prior
from uqgan.uncertainty import Prediction, Reading
from uqgan.weight_cache import cached_file, data_key, train_once

COMPILED_FROM = 7_000_000
"""Least number of single-sample forward passes for which compiling the networks saves time."""
NETWORKS = "networks"
"""Subfolder of the weight cache for trained networks."""
MOST_MEMBERS = 5
"""Limit of members in an ensemble; member j of seed k has seed 5k + j, so that no two runs share a seed."""


class Recipe(Protocol):
    """Module of this package: the networks of a method, and their training."""

    SETTINGS: tuple[str, ...]
    """Sections of the settings that it reads, the section named after it first."""
    USES: tuple[str, ...]
    """Switches of a method that it supports: `dropout`, `outliers`. A method that sets another one is refused."""

    def networks(
        self, shape: tuple[int, ...], n_classes: int, config: Config, dropout: float, user_classifier: nn.Module | None
    ) -> Networks: ...

    def fit(self, nets: Networks, task: Task, config: Config, log: Log, outliers: Sequence[Tensor]) -> None: ...


class Predictor(nn.Module):
    """Trained networks with the reading of their logits."""

    prior: Tensor

    def __init__(self, members: Sequence[Networks], reading: Reading, prior: Prior, passes: int) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)
        self.reading, self.passes = reading, passes
        self.register_buffer("prior", prior)
        self._fast = self._logits

    @property
    def networks(self) -> list[Networks]:
        """The members; one, unless the method is an ensemble."""
        return [cast(Networks, member) for member in self.members]

    def member(self, j: int) -> "Predictor":
        """Predictor of member j of an ensemble alone."""
        return Predictor([self.networks[j]], self.reading, self.prior, self.passes).eval()

    def make_fast(self, config: Config) -> None:
        """Prepare all networks for their device."""
        for nets in self.networks:
            nets.make_fast(config)
        self._fast = compiled(self._logits, self.prior.device, config.compiles)

    @torch.no_grad()
    def predict(self, x: Tensor, seed: int | None = None) -> Prediction:
        """Prediction for x: uint8 images, pixels in [0, 1], or points. The same seed repeats the same draws."""
        with local_seed(self.prior.device, seed):
            if any(nets.draws_weights for nets in self.networks):
                return self._predict_with_the_same_weights(x)
            chunks = equal_chunks(x.to(self.prior.device), max(1, CHUNK // self.passes))
            logits = self._fast if self.passes * len(self.members) * len(x) >= COMPILED_FROM else self._logits
            parts = [self.reading(logits(chunk), self.prior) for chunk in chunks]
        return Prediction.join(parts).first(len(x))

    def _predict_with_the_same_weights(self, x: Tensor) -> Prediction:
        """Prediction of networks with random weights; all chunks share the draws of one call."""
        parts, device = [], self.prior.device
        seed = int(torch.randint(2**31, ()))
        for chunk in torch.split(x, CHUNK):
            with local_seed(device, seed):
                parts.append(self.reading(self._logits(as_input(chunk.to(device))), self.prior))
        return Prediction.join(parts)

    @torch.no_grad()
    def generate(self, y: Labels, seed: int | None = None) -> Images | None:
        """Out-of-class examples of these classes by the first member; None for methods without a generator."""
        with local_seed(self.prior.device, seed):
            return self.networks[0].generate(y.to(self.prior.device))

    @torch.no_grad()
    def reconstruct(self, x: Images, y: Labels) -> Images | None:
        """Images reconstructed by the first member's autoencoder; None for methods without one."""
        return self.networks[0].reconstruct(x.to(self.prior.device), y.to(self.prior.device))

    def _logits(self, x: Images) -> DrawnLogits:
        return torch.cat([nets.logits(x, self.passes) for nets in self.networks])


@dataclass(frozen=True)
class Method:
    """A row of the paper's tables."""

    title: str
    recipe: Recipe
    reading: Reading
    dropout: float = 0.0
    passes: int = 1
    """Stochastic forward passes per sample."""
    members: int = 1
    """Number of independently trained networks."""
    sees_ood: bool = False
    """Whether it trains on the task's outliers, as an oracle does."""
    settings: str = ""
    """Section of the settings that replaces the recipe's; empty: the recipe's."""

    def __post_init__(self) -> None:
        for switch, is_set in (("dropout", self.dropout > 0), ("outliers", self.sees_ood)):
            if is_set and switch not in self.recipe.USES:
                raise UsageError(
                    f"{self.title}: its recipe {self.recipe.SETTINGS[0]} does not use {switch} (leave it out)"
                )
        if not 1 <= self.members <= MOST_MEMBERS:
            raise UsageError(f"{self.title}: members = {self.members}: must be within 1 to {MOST_MEMBERS}")

    @property
    def sections(self) -> tuple[str, ...]:
        """Sections of the settings that it reads, the method's first."""
        first, *shared = self.recipe.SETTINGS
        return (self.settings or first, *shared)

    @property
    def section(self) -> str:
        """Section of the settings that holds the method's values."""
        return self.sections[0]

    def recipe_config(self, config: Config) -> Config:
        """Settings with the method's section under the name that its recipe reads."""
        return config.model_copy(update={self.recipe.SETTINGS[0]: getattr(config, self.section)})

    def assemble(
        self, shape: tuple[int, ...], n_classes: int, config: Config, user_classifier: nn.Module | None = None
    ) -> Predictor:
        """Untrained networks of the method; each member gets a copy of a user-supplied classifier."""
        config = self.recipe_config(config)
        members = [self._networks(shape, n_classes, config, user_classifier) for _ in range(self.members)]
        return self._predictor(members, n_classes)

    def fit(self, task: Task, config: Config, log: Log, user_classifier: nn.Module | None = None) -> Predictor:
        """Train on the device that holds the task's data."""
        device, config = task.train.x.device, self.recipe_config(config)
        if device.type == "cpu":
            keep_freed_memory()
        members = []
        for j in range(self.members):
            if j == 1 and user_classifier is None:
                self._train_rest_in_parallel(task, config, log)
            members.append(self._fit_member(j, task, config, log, user_classifier))
            if log.signal and j + 1 < self.members:
                raise log.ended("before all members are trained (--resume goes on)")
        predictor = self._predictor(members, task.n_classes).to(device)
        predictor.prior.copy_(task.train.class_frequencies(task.n_classes))
        predictor.make_fast(config)
        return predictor

    def _fit_member(self, j: int, task: Task, config: Config, log: Log, user_classifier: nn.Module | None) -> Networks:
        its_log = log if self.members == 1 else log.of_member(j, self._seeds(log)[j])
        torch.manual_seed(its_log.seed)
        nets = self._networks(task.shape, task.n_classes, config, user_classifier)
        if j > 0:
            _start_anew(nets, its_log)
        nets.to(task.train.x.device).make_fast(config)
        train = partial(self.recipe.fit, nets, task, config, its_log, self._outliers(task))
        if user_classifier is None and not config.fresh:
            train_once(nets, NETWORKS, self._key(task, config, its_log.seed), task, its_log, train)
        else:
            train()
        log.stopped, log.signal = its_log.stopped, its_log.signal
        return nets

    def _train_rest_in_parallel(self, task: Task, config: Config, log: Log) -> None:
        """On a CPU, train the members after the first in parallel, if the first took long enough."""
        trained = sum(seconds for name, seconds in log.seconds.items() if name not in log.reused)
        pays = joblib.cpu_count() > 1 and trained * (self.members - 1) >= PARALLEL_FROM_SECONDS
        if task.train.x.device.type != "cpu" or config.fresh or not pays:
            return
        keys = {seed: self._key(task, config, seed) for seed in self._seeds(log)[1:]}
        missing = {seed: key for seed, key in keys.items() if not cached_file(NETWORKS, key, task).exists()}
        folders = [cache_folder() / "unfinished" / key for key in missing.values()]
        if len(missing) > 1:
            single = replace(self, members=1)
            train_in_parallel(partial(single.fit, task, config), folders, list(missing), log)

    def _seeds(self, log: Log) -> list[int]:
        """Seed of each member."""
        return [log.seed] if self.members == 1 else [MOST_MEMBERS * log.seed + j for j in range(self.members)]

    def _networks(
        self, shape: tuple[int, ...], n_classes: int, config: Config, user_classifier: nn.Module | None
    ) -> Networks:
        nets = self.recipe.networks(shape, n_classes, config, self.dropout, user_classifier)
        if self.passes > 1 and not nets.draws:
            raise UsageError(f"{self.title}: passes = {self.passes}: its networks have nothing to draw (set dropout)")
        return nets

    def _predictor(self, members: Sequence[Networks], n_classes: int) -> Predictor:
        return Predictor(members, self.reading, torch.full((n_classes,), 1 / n_classes), self.passes).eval()

    def _outliers(self, task: Task) -> list[Tensor]:
        """Outlier sets of the task, for methods that train on them."""
        if not self.sees_ood:
            return []
        sets = [x.to(task.train.x.device) for x in task.outliers.values() if len(x)]
        if not sets:
            raise UsageError(
                f"task = {task.name}: has no outliers to train {self.title} on (add pictures in ood/NAME/)"
            )
        return sets

    def _key(self, task: Task, config: Config, seed: int) -> str:
        """Digest of everything that the trained weights of a member depend on."""
        device = task.train.x.device
        switches = [self.recipe.SETTINGS[0], self.dropout, self.sees_ood, config.classifier]
        modes = [in_bf16(config.precision, device), config.compiles and device.type == "cuda"]
        sections = {name: getattr(config, name).model_dump() for name in self.recipe.SETTINGS}
        return data_key(task, [*switches, *modes, sections], seed, self._outliers(task))


def _start_anew(nets: Networks, log: Log) -> None:
    """Give a user-supplied classifier a start of its own: copies of one start would agree too much."""
    for net in nets.modules():
        if isinstance(net, UserClassifier) and (kept := net.start_anew()) and log.member == 1:
            drawn = f"no reset_parameters draws {count(len(kept), 'weight')} anew, such as {kept[0]}"
            log.say(f"classifier = {net.name}: {drawn}: equal at the start of all members")
