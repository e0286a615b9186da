"""Records of evaluated runs: found in folders, filtered, with values and intervals in percent.

A record is the scores.json of a run's folder, or a copy of it as results/TASK/METHOD/seed-N.json.
"""

import json
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from uqgan.config import load_config
from uqgan.errors import UsageError
from uqgan.methods import METHODS
from uqgan.paper import AVERAGED, pooled, sizes
from uqgan.runs import ABOUT, RAW_SCORES, SCORES, finished
from uqgan.uncertainty import WITH_FOREIGNNESS

ORIGIN = ("command", "commit", "seconds", "raw_sha256")
"""Keys that a record needs so that its run can be repeated and compared."""
SET_TITLES = {
    "mnist": "MNIST",
    "cifar10": "CIFAR10",
    "cifar100": "CIFAR100",
    "tiny-imagenet": "Tiny ImageNet",
    "emnist-letters": "EMNIST-Letters",
    "fashion-mnist": "Fashion-MNIST",
    "omniglot": "Omniglot",
    "svhn": "SVHN",
    "lsun": "LSUN",
    "other-digits": "digits 5-9",
    "digits": "Digits",
}


def set_title(name: str) -> str:
    """Name of a data set or task in tables."""
    family, _, classes = name.partition("+")
    return SET_TITLES.get(family, family.replace("-", " ")) + (f" {classes}" if classes else "")


def names_of(sets: Sequence[str]) -> str:
    """Names of several sets, as people read them."""
    return ", ".join(map(set_title, sets))


@dataclass(frozen=True)
class Result:
    """Record of one evaluated run."""

    file: Path
    record: dict[str, Any]

    @property
    def task(self) -> str:
        return str(self.record["task"])

    @property
    def method(self) -> str:
        return str(self.record["method"])

    @property
    def seed(self) -> int:
        return int(self.record["seed"])

    @property
    def sets(self) -> list[str]:
        """OoD sets of its test."""
        return [name for name in self.record["scores"]["sets"] if name != "all"]

    @cached_property
    def raw(self) -> Path | None:
        """File of its raw scores, in the run's folder, beside the record, or in results/raw/."""
        name = f"seed-{self.seed}.npz"
        places = [self.file.with_name(RAW_SCORES)] if self.file.name == SCORES else [self.file.with_suffix(".npz")]
        if len(self.file.parents) > 2:
            places.append(self.file.parents[2] / "raw" / self.task / self.method / name)
        return next((place for place in places if place.exists()), None)

    def known(self, metric: str) -> float | None:
        """Value of a metric of the known classes."""
        return _percent(self.record["scores"].get(metric))

    def ood(self, metric: str, names: Collection[str], score: str = "sets") -> float | None:
        """A metric of OoD sets together, ranked by Eq. 4 (`sets`) or by `foreignness`; None if unknown.

        AUROC and FPR95 of several sets together are computed as means over the sets' samples.
        """
        if score == "foreignness" and METHODS[self.method].reading not in WITH_FOREIGNNESS:
            return None
        rows, counts = self.record["scores"].get(score, {}), sizes(self.task)
        key = self._key(names, rows)
        if key:
            return _percent(rows[key].get(metric))
        if metric not in AVERAGED or not names or not set(names) <= set(rows) & set(counts):
            return None
        return _percent(pooled({name: rows[name][metric] for name in names}, counts))

    def interval(self, metric: str, names: Collection[str], score: str = "sets") -> tuple[float, float] | None:
        """95 % interval over test samples, if the record has one; without names, of a metric of the known classes."""
        found = self.record.get("intervals") or {}
        if names:
            rows = found.get("foreignness" if score == "foreignness" else "sets", {})
            found = rows.get(self._key(names, rows) or "", {})
        ends = found.get(metric)
        return (100 * ends[0], 100 * ends[1]) if ends else None

    def _key(self, names: Collection[str], rows: dict[str, Any]) -> str | None:
        """Key in a record for these sets together."""
        if len(names) == 1:
            name = next(iter(names))
            return name if name in rows else None
        return "all" if "all" in rows and set(names) == set(rows) - {"all"} else None


@dataclass
class Found:
    """Results by method and seed, and excluded ones with the reason."""

    results: dict[str, dict[int, Result]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def add(self, result: Result) -> None:
        seeds = self.results.setdefault(result.method, {})
        if result.seed in seeds:
            self.notes.append(f"{result.file}: left out, {seeds[result.seed].file} is the same method and seed")
        else:
            seeds[result.seed] = result

    def of(self, method: str) -> list[Result]:
        """Results of a method by their seeds."""
        return [result for _, result in sorted(self.results.get(method, {}).items())]


def find_results(
    places: Iterable[Path], task: str, methods: Collection[str] = (), seeds: Collection[int] = ()
) -> Found:
    """Results of a task in these folders and below, restricted to methods and seeds if given."""
    found = Found()
    for place in places:
        for file in sorted([*place.rglob(SCORES), *place.rglob("seed-*.json")]):
            try:
                result = read_result(file)
            except UsageError as error:
                found.notes.append(f"{error}; left out")
                continue
            chosen = (not methods or result.method in methods) and (not seeds or result.seed in seeds)
            if result.task != task or not chosen:
                continue
            if why := deviation(result):
                found.notes.append(f"{file}: left out, {why}")
            else:
                found.add(result)
    return found


def read_result(file: Path) -> Result:
    """The record in a file."""
    try:
        record = json.loads(file.read_bytes())
        result = Result(file, record)
        if not isinstance(record["scores"]["sets"], dict) or result.method not in METHODS or result.seed < 0:
            raise ValueError
        assert result.task
    except (OSError, ValueError, TypeError, KeyError):
        raise UsageError(f"{file}: damaged, or no record of an evaluated run (uqgan evaluate writes it)") from None
    return result


def deviation(result: Result) -> str:
    """Reason why a result is excluded: training or test differ from the task's settings."""
    if "test_set" in result.record:
        return "it was tested on other pictures"
    if result.record.get("samples", "test") != "test":
        return f"its samples are {result.record['samples']}, not test"
    if (result.file.parent / ABOUT).exists() and not finished(result.file.parent):
        return "its training has not finished (uqgan train … --resume)"
    given, usual = result.record.get("settings", {}), load_config(result.task).model_dump()
    if given.get("classifier", usual["classifier"]) != usual["classifier"]:
        return f"classifier = {given['classifier']}, not {usual['classifier']}"
    for section in METHODS[result.method].sections:
        for key, value in given.get(section, {}).items():
            if usual[section].get(key, value) != value:
                return f"{section}.{key} = {value}, not {usual[section][key]}"
    return ""


def check_origin(file: Path, record: dict[str, Any]) -> None:
    """Refuse a run's record without its conditions; one whose commit the program did not write must have its source."""
    check_keys(file, record, ORIGIN)
    written = re.fullmatch(r"[0-9a-f]{40}\+?", str(record["commit"]))
    if not isinstance(record.get("imported", "" if written else None), str):
        given = record.get("imported", "missing")
        raise UsageError(
            f"{file}: commit = {record['commit']}, imported = {given}: must say in words where it comes from"
        )


def check_keys(file: Path, record: dict[str, Any], keys: Iterable[str]) -> None:
    """Refuse a record without one of these conditions."""
    for key in keys:
        value = record.get(key)
        if value in (None, "", [], {}) or (isinstance(value, list) and None in value):
            raise UsageError(f"{file}: has no {key} (a result is repeatable, or no result)")


def _percent(value: float | None) -> float | None:
    return None if value is None else 100 * value
