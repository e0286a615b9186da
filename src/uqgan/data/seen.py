"""Record of the samples that a run has seen: fingerprints per part of its task, and changed data assigned by them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from uqgan.data.dataset import Dataset, Decoded
from uqgan.data.duplicates import Prints, fingerprints
from uqgan.data.splits import Task
from uqgan.errors import UsageError
from uqgan.files import read_arrays, write_arrays

KNOWN, FOREIGN = ("test", "train", "validation", "calibration"), ("ood", "ood_validation", "outliers")
"""Parts of a task; each of the latter has one part per OoD set, such as `ood/noise`."""
USED = "left out because training, validation, calibration or studies used them"
Rows = npt.NDArray[np.intp]


def samples_of(task: Task) -> dict[str, Tensor]:
    """Samples of a task by part: `test`, `train`, …, `ood/NAME`, `ood_validation/NAME`, `outliers/NAME`."""
    known = {part: getattr(task, part).x for part in KNOWN}
    return known | {f"{part}/{name}": x for part in FOREIGN for name, x in getattr(task, part).items()}


@dataclass(frozen=True)
class Seen:
    """Fingerprints of a task's samples, by the parts of `samples_of`."""

    parts: dict[str, Prints]

    @staticmethod
    def of(task: Task) -> "Seen":
        return Seen({part: fingerprints(x) for part, x in samples_of(task).items()})

    @property
    def everything(self) -> Prints:
        return np.concatenate(list(self.parts.values()))

    @property
    def kept(self) -> Prints:
        """Fingerprints of all parts except `test` and `ood`: samples that no test may contain."""
        return np.concatenate([prints for part, prints in self.parts.items() if not _tested(part)])

    def agrees(self, task: Task) -> bool:
        """Whether a task's test samples are those of the run, in the same order."""
        prints = {part: fingerprints(x) for part, x in samples_of(task).items() if _tested(part)}
        before = {part: prints for part, prints in self.parts.items() if _tested(part)}
        return prints.keys() == before.keys() and all(np.array_equal(prints[part], before[part]) for part in prints)

    def write(self, file: Path) -> None:
        write_arrays(file, self.parts)

    @staticmethod
    def read(file: Path) -> "Seen":
        with read_arrays(file, "record of what a run has seen", "train the run again") as arrays:
            parts = {part: prints.numpy() for part, prints in arrays.items()}
            if set(KNOWN) - set(parts) or {(prints.dtype.name, prints.ndim) for prints in parts.values()} != {
                ("uint64", 1)
            }:
                raise ValueError(parts)
        return Seen(parts)


def file_names(task: Task, parts: Mapping[str, Decoded], ood: Mapping[str, Decoded]) -> dict[str, tuple[str, ...]]:
    """File of each sample of a task made from these pictures, by part."""
    first = [parts[level] for level in ("test", "val", "train") if level in parts]
    sources = [*first, *ood.values()]
    names = [name for source in sources for name in source.sources]
    prints = np.concatenate([fingerprints(source.x) for source in sources])
    if len(names) != len(prints):
        return {}
    rows = {part: rows_of(fingerprints(x), prints) for part, x in samples_of(task).items()}
    found = {part: tuple(names[row] for row in each) for part, each in rows.items()}
    given = parts["test"].sources if "test" in parts else ()
    return found | ({"test": given} if len(given) == len(task.test) else {})  # names of equal pictures differ


def rows_of(wanted: Prints, prints: Prints) -> Rows:
    """Row of each requested fingerprint, in the requested order; absent ones are skipped."""
    if not len(prints):
        return np.zeros(0, np.intp)
    known, first = np.unique(prints, return_index=True)
    place = np.searchsorted(known, wanted).clip(max=len(known) - 1)
    rows: Rows = first[place[known[place] == wanted]]
    return rows


def new_rows(prints: Prints, known: Prints) -> Rows:
    """Rows with an unknown fingerprint, the first row of each."""
    fresh = np.zeros(len(prints), bool)
    fresh[np.unique(prints, return_index=True)[1]] = True
    return np.flatnonzero(fresh & ~np.isin(prints, known))


def as_trained(task: Task, seen: Seen, class_names: tuple[str, ...]) -> tuple[Task, str]:
    """Task of changed data, with every picture in the same part as in training, and a note about the change.

    New pictures are tested: all of them where the test samples were drawn from the training data, otherwise those
    supplied as test data.
    """
    x, number = samples_of(task), torch.tensor([class_names.index(name) for name in task.class_names])
    y = number[torch.cat([getattr(task, part).y for part in KNOWN])]
    files: dict[str, tuple[str, ...]] = {}
    prints: list[Prints] = []
    for parts in (KNOWN, *([f"{part}/{name}" for part in FOREIGN] for name in task.ood)):
        pool = np.concatenate([fingerprints(x[part]) for part in parts])
        given = parts == KNOWN and not task.drawn_test
        rows = _divide(pool, parts, seen, len(task.test) if given else len(pool))
        together = torch.cat([x[part] for part in parts])
        x |= {part: together[each] for part, each in rows.items()}
        if parts == KNOWN:
            known = {part: Dataset(x[part], y[each]) for part, each in rows.items()}
        names = [name for part in parts for name in task.files.get(part, ())]
        if len(names) == len(pool):
            files |= {part: tuple(names[row] for row in each) for part, each in rows.items()}
        prints.append(pool)
    if not len(known["test"]):
        raise UsageError(f"{task.title}: has no picture that the run has not seen (test it on others: --test FOLDER)")
    changed = replace(
        task,
        class_names=class_names,
        train=known["train"],
        validation=known["validation"],
        calibration=known["calibration"],
        test=known["test"],
        ood={name: x[f"ood/{name}"] for name in task.ood if len(x[f"ood/{name}"])},
        ood_validation={name: x[f"ood_validation/{name}"] for name in task.ood},
        outliers={name: x[f"outliers/{name}"] for name in task.ood},
        files=files,
    )
    return changed, _change(task.title, np.concatenate(prints), seen)


def _divide(prints: Prints, parts: Sequence[str], seen: Seen, tested: int) -> dict[str, Rows]:
    """Rows of each part as in training; the first part, for tests, also gets new rows up to index `tested`."""
    rows = {part: rows_of(seen.parts.get(part, prints[:0]), prints) for part in parts}
    fresh = new_rows(prints, seen.everything)
    return rows | {parts[0]: np.concatenate([rows[parts[0]], fresh[fresh < tested]])}


def _change(title: str, prints: Prints, seen: Seen) -> str:
    """Sentence about what changed since the run was trained, which does not record names and classes of pictures."""
    new, gone = (len(np.setdiff1d(*pair)) for pair in ((prints, seen.everything), (seen.everything, prints)))
    counts = f"pictures new: {new:,}, gone: {gone:,}"
    same = "the same pictures, with other file names or in other folders"
    return f"{title}: changed since the run was trained: {counts if new or gone else same}"


def _tested(part: str) -> bool:
    return part == "test" or part.startswith("ood/")
