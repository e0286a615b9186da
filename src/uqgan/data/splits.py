"""A task, and the seeded split of whole training and test sets into its parts, the same on every platform."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from uqgan.data.dataset import Dataset, permutation, split_indices
from uqgan.data.duplicates import duplicates_notes, first_copies
from uqgan.errors import UsageError
from uqgan.shapes import Probs

VALIDATION_SHARE = 0.2
"""Share of the training data, as in the paper; half of it selects checkpoints, half is reserved for thresholds."""
OOD_VALIDATION_SHARE = 0.3
"""Share of the OoD sets' training data; oracles may train on the rest."""
FEW, IMBALANCED = 50, 10
"""Limits for warnings: fewer pictures per class, and a larger ratio between the sizes of two classes."""


@dataclass(frozen=True)
class Task:
    """The data sets that a method is trained and tested on.

    No sample is in two of them, not even as a duplicate with equal pixels; only the test data, `test` and `ood`, may
    contain duplicates.
    """

    name: str
    title: str
    class_names: tuple[str, ...]
    train: Dataset
    validation: Dataset
    """Selects checkpoints."""
    calibration: Dataset
    """Used for thresholds only."""
    test: Dataset
    ood: dict[str, Tensor]
    """Out-of-distribution test samples by the name of their set."""
    ood_validation: dict[str, Tensor]
    """For studies, sweeps and the joint detector."""
    outliers: dict[str, Tensor]
    """Outliers that oracles train on, by the name of their set."""
    flip: bool = False
    """Whether training mirrors images at random."""
    missing: dict[str, str] = field(default_factory=dict)
    """OoD sets of the task that are not on this machine, with advice on how to get them; every table lists them."""
    notes: tuple[str, ...] = ()
    """Choices made, deviations from the paper, warnings."""
    digest: str = ""
    """Digest of user-supplied data, which changes when a picture, a label or a class does. Empty for other tasks."""
    files: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """File names of pictures that came from folders, by part: `test`, `ood/NAME`, … (`data.seen.samples_of`)."""
    drawn_test: bool = False
    """Whether the test samples were split off the training pictures, rather than supplied separately."""
    posterior: Callable[[Tensor], Probs] | None = field(default=None, compare=False)
    """The true p(y|x), where it is known."""

    @property
    def n_classes(self) -> int:
        return len(self.class_names)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one sample: (channels, height, width), or (2,) for points."""
        return tuple(self.train.x.shape[1:])

    @property
    def is_planar(self) -> bool:
        return self.shape == (2,)

    def to(self, device: torch.device) -> "Task":
        """Task with its training and validation data on a device; test data are moved batch by batch."""
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
    known: Iterable[int] | None = None,
    flip: bool = False,
    missing: Mapping[str, str] | None = None,
    notes: tuple[str, ...] = (),
) -> Task:
    """Task with the paper's splits: the whole training set is split first, then the known classes are selected.

    Where only part of the official training set is on the machine, that part is split: the shares are the paper's, the
    samples are not. Duplicates of test samples are removed after the split, so that it does not depend on them.
    """
    indices = cut(len(train), seed)
    if known is not None:
        chosen = torch.tensor(sorted(known))
        inside = torch.isin(train.y, chosen)
        indices = tuple(index[inside[index]] for index in indices)
        train, test = Dataset(train.x, torch.searchsorted(chosen, train.y)), test.keep(chosen.tolist())
    parts = [train[index] for index in indices]
    outliers, ood_validation = cut_ood(ood_train, seed)
    task = Task(
        name=name,
        title=title,
        class_names=class_names,
        train=parts[0],
        validation=parts[1],
        calibration=parts[2],
        test=test,
        ood=dict(ood_test),
        ood_validation=ood_validation,
        outliers=outliers,
        flip=flip,
        missing=dict(missing or {}),
        notes=notes,
    )
    return distinct(task)


def distinct(task: Task) -> Task:
    """Task without samples that duplicate one of an earlier part; test data come first and are kept."""
    seen = [task.train, task.validation, task.calibration]
    foreign = [*task.outliers.values(), *task.ood_validation.values()]
    sets = [task.test.x, *task.ood.values(), *(data.x for data in seen), *foreign]
    n_tests = 1 + len(task.ood)
    sizes = [len(x) for x in sets]
    part = torch.arange(len(sets)).repeat_interleave(torch.tensor(sizes))
    home = part[first_copies(sets)]
    duplicate = (home != part) & (part >= n_tests)
    if not duplicate.any():
        return task
    kept = (~duplicate).split(sizes)[n_tests:]  # type: ignore[no-untyped-call]
    train, validation, calibration = (
        data if keep.all() else data[keep] for data, keep in zip(seen, kept[:3], strict=True)
    )
    lost = set(task.train.y.tolist()) - set(train.y.tolist())
    if lost:
        names = ", ".join(task.class_names[k] for k in sorted(lost))
        raise UsageError(f"{task.name}: every training picture of {names} is a test picture too (choose other files)")
    rest = [x if keep.all() else x[keep] for x, keep in zip(foreign, kept[3:], strict=True)]
    return replace(
        task,
        train=train,
        validation=validation,
        calibration=calibration,
        outliers=dict(zip(task.outliers, rest[: len(task.outliers)], strict=True)),
        ood_validation=dict(zip(task.ood_validation, rest[len(task.outliers) :], strict=True)),
        notes=(*task.notes, *duplicates_notes(home[duplicate] < n_tests, part[duplicate] >= n_tests + len(seen))),
    )


def cut(n: int, seed: int) -> tuple[Tensor, ...]:
    """Indices 0 … n-1 of training, validation and calibration samples."""
    train, held_out = split_indices(n, VALIDATION_SHARE, seed)
    validation, calibration = (held_out[part] for part in split_indices(len(held_out), 0.5, seed + 1))
    assert_disjoint(n, train, validation, calibration)
    return train, validation, calibration


def cut_ood(ood_train: Mapping[str, Tensor], seed: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Training data of the OoD sets for oracles (`outliers`), and for studies (`ood_validation`)."""
    parts = {key: split_indices(len(x), OOD_VALIDATION_SHARE, seed + 2) for key, x in ood_train.items()}
    for key, (rest, part) in parts.items():
        assert_disjoint(len(ood_train[key]), rest, part)
    return (
        {key: ood_train[key].index_select(0, rest) for key, (rest, _) in parts.items()},
        {key: ood_train[key].index_select(0, part) for key, (_, part) in parts.items()},
    )


def cut_by_class(y: Tensor, share: float, seed: int, at_least: int = 1) -> tuple[Tensor, Tensor]:
    """Stratified random split into the indices of the rest and of the share, for small sets."""
    order = permutation(len(y), seed)
    rest, part = [], []
    for k in sorted(set(y.tolist())):
        members = order[y[order] == k]
        n = min(len(members), max(at_least, round(share * len(members))))
        part.append(members[:n])
        rest.append(members[n:])
    indices = torch.cat([order[:0], *rest]), torch.cat([order[:0], *part])
    assert_disjoint(len(y), *indices)
    return indices


def assert_disjoint(n: int, *parts: Tensor) -> None:
    """Assert that each of 0 … n-1 is in exactly one part."""
    assert torch.equal(torch.cat(parts).sort().values, torch.arange(n)), "a sample was lost or is in two parts"


def class_warnings(names: Sequence[str], counts: Sequence[int]) -> list[str]:
    """Warnings about small and imbalanced classes, from the number of pictures per class."""
    few = [f"{name} ({count})" for name, count in zip(names, counts, strict=True) if count < FEW]
    warnings = []
    if few:
        more = f" and {len(few) - 5} more" if len(few) > 5 else ""
        warnings.append(
            f"warning: classes with fewer than {FEW} pictures: {', '.join(few[:5])}{more}: expect poor results for them"
        )
    if max(counts) > IMBALANCED * min(counts):
        large, small = names[counts.index(max(counts))], names[counts.index(min(counts))]
        warnings.append(
            f"warning: {large} has {max(counts):,} pictures and {small} {min(counts):,}: strongly imbalanced classes"
        )
    return warnings
