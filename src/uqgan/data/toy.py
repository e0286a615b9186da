"""Toy tasks in the plane: Gaussians, two moons, 3 × 3 grids, with their true posterior and surrounding outliers."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from uqgan.data.dataset import Dataset, permutation
from uqgan.data.splits import Task
from uqgan.shapes import Probs

N, N_TEST = 100_000, 10_000
"""Number of training points, and of points in each other part of a task."""
OUTLIER_DISTANCE = 4.0
"""Least distance of outliers from every mode, in standard deviations, or (scaled) from the moons."""


@dataclass(frozen=True)
class Gaussians:
    """A mixture of isotropic Gaussians of equal weight; several may belong to one class."""

    means: tuple[tuple[float, float], ...]
    classes: tuple[int, ...]
    std: float

    def sample(self, n: int, generator: torch.Generator) -> Dataset:
        """n points in random order, equally many per mode (up to one)."""
        mode = torch.arange(n)[permutation(n, int(torch.randint(2**31, (), generator=generator)))]
        mode = mode % len(self.means)
        noise = torch.randn(n, 2, generator=generator)
        return Dataset(
            torch.tensor(self.means, dtype=torch.float)[mode] + self.std * noise, torch.tensor(self.classes)[mode]
        )

    def posterior(self, x: Tensor) -> Probs:
        """The true p(y|x)."""
        distance = torch.cdist(x.double(), torch.tensor(self.means).double())
        per_mode = torch.softmax(-distance.square() / (2 * self.std**2), 1)
        probs = per_mode.new_zeros(len(x), max(self.classes) + 1)
        return probs.index_add(1, torch.tensor(self.classes), per_mode)

    def distance(self, x: Tensor) -> Tensor:
        """Distance to the nearest mode, in standard deviations."""
        return torch.cdist(x, torch.tensor(self.means, dtype=x.dtype)).amin(1) / self.std


@dataclass(frozen=True)
class Moons:
    """Two interleaved half circles of radius 1 with Gaussian noise: class 0 the upper, class 1 the lower one."""

    noise: float

    def sample(self, n: int, generator: torch.Generator) -> Dataset:
        """n points in random order, equally many per moon (up to one), evenly spaced along it."""
        order = permutation(n, int(torch.randint(2**31, (), generator=generator)))
        y = order % 2
        clean = _on_moon(torch.pi * (order // 2) / max(1, (n + 1) // 2 - 1), y)
        return Dataset(clean + self.noise * torch.randn(n, 2, generator=generator), y)

    def posterior(self, x: Tensor) -> Probs:
        """The true p(y|x): the density along each moon, integrated numerically."""
        angle = torch.linspace(0, torch.pi, 2001, dtype=torch.double)
        log_density = [
            (-torch.cdist(x.double(), _on_moon(angle, torch.tensor(y))).square() / (2 * self.noise**2)).logsumexp(1)
            for y in (0, 1)
        ]
        return torch.softmax(torch.stack(log_density, 1), 1)

    def distance(self, x: Tensor) -> Tensor:
        """Distance to the nearer moon, scaled so that `OUTLIER_DISTANCE` applies as for Gaussians."""
        angle = torch.linspace(0, torch.pi, 201)
        moons = torch.cat([_on_moon(angle, torch.tensor(y)) for y in (0, 1)])
        return torch.cdist(x, moons).amin(1) / max(self.noise, 0.15)


def _on_moon(angle: Tensor, y: Tensor) -> Tensor:
    upper = torch.stack([angle.cos(), angle.sin()], -1)
    lower = torch.stack([1 - angle.cos(), 0.5 - angle.sin()], -1)
    return torch.where((y == 0)[..., None], upper, lower)


_GRID = tuple((4.0 * i, 4.0 * j) for i in range(3) for j in range(3))

TOYS: dict[str, Gaussians | Moons] = {
    "gaussians": Gaussians(((4, 0), (-4, 0)), (0, 1), 0.4),
    "gaussians-overlap": Gaussians(((2, 0), (-2, 0)), (0, 1), 1.0),
    "moons": Moons(0.1),
    "moons-noisy": Moons(0.25),
    "grid-9": Gaussians(_GRID, tuple(range(9)), 1.0),
    "grid-3": Gaussians(_GRID, (0, 1, 2, 1, 2, 0, 2, 0, 1), 1.0),
}


def sample_outliers(toy: Gaussians | Moons, around: Tensor, n: int, generator: torch.Generator) -> Tensor:
    """n points away from the data, uniform over the bounding box of the data with a margin of half its size."""
    low, high = around.amin(0), around.amax(0)
    margin = (high - low) / 2
    kept = torch.empty(0, 2)
    while len(kept) < n:
        points = low - margin + (high - low + 2 * margin) * torch.rand(n, 2, generator=generator)
        kept = torch.cat([kept, points[toy.distance(points) > OUTLIER_DISTANCE]])
    return kept[:n]


def toy_task(name: str, title: str, known: Sequence[int], seed: int) -> Task:
    """Task of points in the plane, sampled per seed; all classes are known, whatever `known` says."""
    toy, generator = TOYS[name], torch.Generator().manual_seed(seed)
    train, validation, calibration, test = (toy.sample(k, generator) for k in (N, N_TEST, N_TEST, N_TEST))
    ood, ood_validation, outliers = (
        {"uniform": sample_outliers(toy, test.x, k, generator)} for k in (N_TEST, N_TEST, N)
    )
    return Task(
        name=name,
        title=title,
        class_names=tuple(str(k) for k in range(int(train.y.max()) + 1)),
        train=train,
        validation=validation,
        calibration=calibration,
        test=test,
        ood=ood,
        ood_validation=ood_validation,
        outliers=outliers,
        posterior=toy.posterior,
    )
