"""The digits task, made without download from pictures in scikit-learn: digits, photo patches, and noise.

All are reduced to 8 × 8 pixels and enlarged in the same way, so that sharpness does not reveal their origin.
"""

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from uqgan.data.dataset import Dataset
from uqgan.data.splits import Task, split_task

GRAIN, SIZE, PATCH = 8, 32, 32
TEST_SHARE = 0.3


def digits() -> Dataset:
    """scikit-learn's 1,797 handwritten digits."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    return Dataset(_enlarge(torch.tensor(bunch.images / 16.0)), torch.tensor(bunch.target, dtype=torch.long))


def photo_patches() -> tuple[Tensor, Tensor]:
    """Grey patches of scikit-learn's two photographs; those of the second part are from the right thirds."""
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
    """n pictures of uniform noise."""
    return _enlarge(torch.rand(n, GRAIN, GRAIN, generator=torch.Generator().manual_seed(seed), dtype=torch.double))


def _enlarge(grains: Tensor) -> Tensor:
    x = F.interpolate(grains[:, None], size=(SIZE, SIZE), mode="bilinear")
    return (x * 255).round().to(torch.uint8)


def digits_task(name: str, title: str, known: Sequence[int], seed: int) -> Task:
    """Task of the digits; the OoD sets are the other digits, photo patches, and noise."""
    train, test = digits().split(TEST_SHARE, seed)
    others = sorted(set(range(10)) - set(known))
    seen_patches, unseen_patches = photo_patches()

    def foreign(data: Dataset, patches: Tensor, noise_seed: int) -> dict[str, Tensor]:
        return {
            "other-digits": data.keep(others).x,
            "photo-patches": patches,
            "noise": noise(len(data), noise_seed),
        }

    return split_task(
        name=name,
        title=title,
        class_names=tuple(str(k) for k in known),
        train=train.keep(known),
        test=test.keep(known),
        ood_train=foreign(train, seen_patches, 2 * seed),
        ood_test=foreign(test, unseen_patches, 2 * seed + 1),
        seed=seed,
    )
