"""Tasks: an in-distribution data set with its splits, and the out-of-distribution sets it is tested against."""

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from uqgan.data import digits
from uqgan.data.dataset import Dataset, split_indices
from uqgan.data.toy import TOYS, sample_outliers
from uqgan.errors import UsageError
from uqgan.shapes import Probs

VALIDATION_SHARE = 0.2
"""Of the training data, as in the paper; half of it selects checkpoints, half is left for thresholds."""
OOD_VALIDATION_SHARE = 0.3
"""Of the OoD sets' training data; the rest is what oracles may see."""


@dataclass(frozen=True)
class Task:
    """What a method is trained and tested on. No sample is in two of these sets."""

    name: str
    title: str
    class_names: tuple[str, ...]
    train: Dataset
    validation: Dataset
    """Selects checkpoints."""
    calibration: Dataset
    """Seen by nothing but thresholds."""
    test: Dataset
    ood: dict[str, Tensor]
    """Out-of-distribution test samples by the name of their set."""
    ood_validation: dict[str, Tensor]
    """For studies, sweeps and the joint detector."""
    outliers: dict[str, Tensor]
    """What the oracles may train on."""
    flip: bool = False
    """Whether training mirrors images at random."""
    posterior: Callable[[Tensor], Probs] | None = field(default=None, compare=False)
    """The true p(y|x), where it is known."""

    @property
    def n_classes(self) -> int:
        return len(self.class_names)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one sample: (channels, height, width), or (2,) for points."""
        return tuple(self.train.x.shape[1:])

    @property
    def is_planar(self) -> bool:
        return self.shape == (2,)

    def to(self, device: torch.device) -> "Task":
        """The same task with its training and validation data on a device; test data follow batch by batch."""
        return replace(self, train=self.train.to(device), validation=self.validation.to(device))


def split_task(
    name: str,
    title: str,
    class_names: tuple[str, ...],
    train: Dataset,
    test: Dataset,
    ood_train: Mapping[str, Tensor],
    ood_test: Mapping[str, Tensor],
    seed: int,
) -> Task:
    """The paper's splits of raw train and test sets (decision 0002)."""
    train, held_out = train.split(VALIDATION_SHARE, seed)
    validation, calibration = held_out.split(0.5, seed + 1)
    parts = {key: split_indices(len(x), OOD_VALIDATION_SHARE, seed + 2) for key, x in ood_train.items()}
    return Task(
        name=name,
        title=title,
        class_names=class_names,
        train=train,
        validation=validation,
        calibration=calibration,
        test=test,
        ood=dict(ood_test),
        ood_validation={key: ood_train[key][part] for key, (_, part) in parts.items()},
        outliers={key: ood_train[key][rest] for key, (rest, _) in parts.items()},
    )


def load_task(name: str, seed: int = 0) -> Task:
    """A task by name, such as `digits`, `moons`, or `digits+0,2-4` for other classes than its own."""
    base, _, ranges = name.partition("+")
    if base not in TASKS:
        close = difflib.get_close_matches(base, TASKS, n=1)
        fix = f"did you mean {close[0]}?" if close else f"known: {', '.join(TASKS)}"
        raise UsageError(f"task = {name}: no such task ({fix})")
    if base in TOYS:
        if ranges:
            raise UsageError(f"task = {name}: a toy has no other classes to choose from (write {base})")
        return _toy_task(base, seed)
    return _digits_task(name, parse_classes(ranges, 10) if ranges else range(5), seed)


def parse_classes(text: str, n_classes: int) -> list[int]:
    """`0,3,6-8` (or `6..8`) → [0, 3, 6, 7, 8]."""
    chosen: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)\s*(?:(?:-|\.\.)\s*(\d+)\s*)?", part)
        if not match:
            raise UsageError(f"classes = {text}: must look like 0,3,6-8")
        first, last = int(match[1]), int(match[2] or match[1])
        if first > last or last >= n_classes:
            raise UsageError(f"classes = {text}: must be within 0-{n_classes - 1}, the smaller number first")
        chosen.update(range(first, last + 1))
    if not 2 <= len(chosen) < n_classes:
        raise UsageError(f"classes = {text}: at least 2 must be known and at least 1 left out, of {n_classes}")
    return sorted(chosen)


def _toy_task(name: str, seed: int, n: int = 100_000, n_test: int = 10_000) -> Task:
    toy, generator = TOYS[name], torch.Generator().manual_seed(seed)
    train, validation, calibration, test = (toy.sample(k, generator) for k in (n, n_test, n_test, n_test))
    ood, ood_validation, outliers = (
        {"uniform": sample_outliers(toy, test.x, k, generator)} for k in (n_test, n_test, n)
    )
    return Task(
        name=name,
        title=TASKS[name],
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


def _digits_task(name: str, known: range | list[int], seed: int, test_share: float = 0.3) -> Task:
    train, test = digits.digits().split(test_share, seed)
    others = sorted(set(range(10)) - set(known))
    seen_patches, unseen_patches = digits.photo_patches()
    return split_task(
        name=name,
        title=TASKS["digits"],
        class_names=tuple(str(k) for k in known),
        train=train.keep(known),
        test=test.keep(known),
        ood_train={
            "other-digits": train.keep(others).x,
            "photo-patches": seen_patches,
            "noise": digits.noise(len(train), 2 * seed),
        },
        ood_test={
            "other-digits": test.keep(others).x,
            "photo-patches": unseen_patches,
            "noise": digits.noise(len(test), 2 * seed + 1),
        },
        seed=seed,
    )


TASKS: dict[str, str] = {
    "gaussians": "Two Gaussians, well apart",
    "gaussians-overlap": "Two Gaussians that overlap",
    "moons": "Two moons with little noise",
    "moons-noisy": "Two moons with much noise",
    "grid-9": "3 × 3 Gaussians, one class each",
    "grid-3": "3 × 3 Gaussians, three disconnected classes",
    "digits": "8 × 8 digits: 0-4 known, 5-9 unknown",
}
