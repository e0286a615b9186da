"""Pictures that come with scikit-learn, so that nothing has to be downloaded: digits, photo patches, and noise.

All are brought to 8 × 8 pixels first and enlarged alike, so that sharpness tells nothing about where one is from.
"""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from uqgan.data.dataset import Dataset

GRAIN, SIZE, PATCH = 8, 32, 32


def digits() -> Dataset:
    """scikit-learn's 1,797 handwritten digits."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    return Dataset(_enlarge(torch.tensor(bunch.images / 16.0)), torch.tensor(bunch.target, dtype=torch.long))


def photo_patches() -> tuple[Tensor, Tensor]:
    """Patches of scikit-learn's two photographs, in grey; the second part is from the right thirds of the photos."""
    from sklearn.datasets import load_sample_images

    grey = [np.asarray(photo) @ np.array([0.299, 0.587, 0.114]) / 255 for photo in load_sample_images().images]
    halves = [[], []]  # type: list[list[Tensor]]
    for photo in grey:
        patches = torch.tensor(photo).unfold(0, PATCH, PATCH).unfold(1, PATCH, PATCH)  # (rows, columns, 32, 32)
        cut = patches.shape[1] * 2 // 3
        halves[0].append(patches[:, :cut].reshape(-1, 1, PATCH, PATCH))
        halves[1].append(patches[:, cut:].reshape(-1, 1, PATCH, PATCH))
    left, right = (F.avg_pool2d(torch.cat(half), PATCH // GRAIN)[:, 0] for half in halves)
    return _enlarge(left), _enlarge(right)


def noise(n: int, seed: int) -> Tensor:
    """Grains of uniform noise."""
    return _enlarge(torch.rand(n, GRAIN, GRAIN, generator=torch.Generator().manual_seed(seed), dtype=torch.double))


def _enlarge(grains: Tensor) -> Tensor:
    x = F.interpolate(grains[:, None], size=(SIZE, SIZE), mode="bilinear")
    return (x * 255).round().to(torch.uint8)
