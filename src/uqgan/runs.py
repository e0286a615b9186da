"""Folders of runs: config.yaml, weights.safetensors, log.jsonl, seen.npz, calibration.npz, about.json.

An evaluation adds scores.json and the raw scores, a calibration by hand decisions.json, joint detection its result and
the raw scores of the validation samples.
"""

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import yaml
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import nn

from uqgan import __version__
from uqgan.checkpoint import RESUME
from uqgan.config import Config, check_networks, parse
from uqgan.data.seen import Seen
from uqgan.decisions import Calibration
from uqgan.errors import UsageError
from uqgan.files import sha256, write_bytes, write_json, write_text
from uqgan.log import LOG, read_log
from uqgan.methods import METHODS, Predictor

CONFIG, WEIGHTS, ABOUT, SCORES = "config.yaml", "weights.safetensors", "about.json", "scores.json"
RAW_SCORES, SEEN = "raw_scores.npz", "seen.npz"
CALIBRATION, DECISIONS = "calibration.npz", "decisions.json"
RAW_VALIDATION, DETECTION = "raw_validation_scores.npz", "detection.json"
OF_WEIGHTS = (SCORES, RAW_SCORES, RAW_VALIDATION, DETECTION)
"""Files with results that hold only for the present weights."""


@dataclass(frozen=True)
class Plan:
    """Specification of a run, with which it can be trained again, or its networks be built without its data."""

    task: str
    method: str
    seed: int
    shape: tuple[int, ...]
    class_names: tuple[str, ...]
    config: Config
    digest: str = ""
    """Digest of user-supplied data; empty for named tasks."""
    custom_classifier: str = ""
    """Class name of a user-supplied network; empty for the built-in ones."""

    def write(self, folder: Path) -> None:
        tree = {
            "task": self.task,
            "method": self.method,
            "seed": self.seed,
            "shape": list(self.shape),
            "class_names": list(self.class_names),
            "digest": self.digest,
            "custom_classifier": self.custom_classifier,
            "settings": self.config.model_dump(),
        }
        write_text(folder / CONFIG, yaml.safe_dump(tree, sort_keys=False, allow_unicode=True))

    @staticmethod
    def read(folder: Path) -> "Plan":
        tree = _parsed(folder, CONFIG, yaml.safe_load)
        try:
            if tree["method"] not in METHODS:
                raise UsageError(f"method = {tree['method']}: no such method")
            plan = Plan(
                task=str(tree["task"]),
                method=tree["method"],
                seed=int(tree["seed"]),
                shape=tuple(tree["shape"]),
                class_names=tuple(tree["class_names"]),
                config=parse(tree["settings"]),
                digest=str(tree.get("digest", "")),
                custom_classifier=str(tree.get("custom_classifier", "")),
            )
            if plan.config.classifier == "custom" and not plan.custom_classifier:
                raise UsageError("classifier = custom: custom_classifier, the name of the network, is missing")
            return plan
        except UsageError as error:
            why = "changed by hand, or saved by another version of uqgan: put it back, or train it again"
            raise UsageError(f"{folder / CONFIG}: {error} ({why})") from None
        except (KeyError, TypeError, ValueError, AttributeError):
            raise UsageError(f"{folder / CONFIG}: damaged, or no run's (choose another folder)") from None

    @cached_property
    def settings(self) -> dict[str, str]:
        """Settings of the training as text: the method's by their short names, without those it does not read."""
        section, *shared = METHODS[self.method].sections
        rows: dict[str, Any] = {}
        for name, value in self.config.model_dump().items():
            if not isinstance(value, dict):
                rows[name] = value
            elif name in (section, *shared):
                rows |= {key if name == section else f"{name}.{key}": each for key, each in value.items()}
        return {key: f"{value:g}" if isinstance(value, float) else str(value) for key, value in rows.items()}

    def assemble(self, classifier: nn.Module | None = None) -> Predictor:
        """Untrained networks of the run."""
        return METHODS[self.method].assemble(self.shape, len(self.class_names), self.config, classifier)

    def check_classifier(self, classifier: nn.Module | None, folder: Path) -> None:
        """Refuse a user-supplied network if the run in that folder has none, and a missing one if it has one."""
        if self.config.classifier == "custom" and classifier is None:
            call = f'uqgan.load("{folder}", classifier={self.custom_classifier}())'
            what = f"has a user-supplied classifier, {self.custom_classifier}"
            raise UsageError(f"run = {folder}: {what} (in Python: {call})")
        if self.config.classifier != "custom" and classifier is not None:
            name = type(classifier).__qualname__
            raise UsageError(f"classifier = {name}: that of {folder} is {self.config.classifier} (leave it out)")


@dataclass(frozen=True)
class Record:
    """A finished run: its plan, trained networks, log, and conditions."""

    plan: Plan
    predictor: Predictor
    log: list[dict[str, Any]]
    about: dict[str, Any]
    made: Calibration | None = None
    """Calibration scores from training; None if the run was read from its folder."""
    folder: Path | None = None
    """Folder of the run, if it is saved."""
    notes: tuple[str, ...] = ()
    """Messages from reading it, to be printed."""
    met: Seen | None = None
    """Record of the samples used in training; None if the run was read from its folder."""

    @cached_property
    def calibration(self) -> Calibration | None:
        """Calibration scores, read on first use; None for a run of an older version, which has none."""
        file = self.folder and self.folder / CALIBRATION
        return Calibration.read(file) if self.made is None and file and file.exists() else self.made

    @cached_property
    def seen(self) -> Seen | None:
        """Record of the pictures used, read on first use; None for points, and for a run of an older version."""
        file = self.folder and self.folder / SEEN
        return Seen.read(file) if self.met is None and file and file.exists() else self.met

    def write(self, folder: Path) -> None:
        """Write the run into a folder; about.json comes last, so that a folder with it is complete."""
        self.plan.write(folder)
        state = self.predictor.state_dict()
        weights = {key: tensor.cpu().clone(memory_format=torch.contiguous_format) for key, tensor in state.items()}
        data = save_tensors(weights)
        if (folder / WEIGHTS).exists() and (folder / WEIGHTS).read_bytes() != data:
            for name in OF_WEIGHTS:
                (folder / name).unlink(missing_ok=True)
        write_bytes(folder / WEIGHTS, data)
        write_text(folder / LOG, "".join(json.dumps(row) + "\n" for row in self.log))
        if self.seen:
            self.seen.write(folder / SEEN)
        if self.calibration:
            self.calibration.write(folder / CALIBRATION)
        write_json(folder / ABOUT, self.about | {"weights_sha256": sha256(folder / WEIGHTS)})
        if self.about["finished"]:
            shutil.rmtree(folder / RESUME, ignore_errors=True)

    @staticmethod
    def read(folder: Path, classifier: nn.Module | None = None) -> "Record":
        """Run saved in a folder, identical to the trained one bit for bit."""
        if not folder.is_dir():
            found = "is a file: must be the folder of a run" if folder.is_file() else "no such folder"
            raise UsageError(f"run = {folder}: {found}")
        plan = Plan.read(folder)
        if not (folder / ABOUT).exists() and (folder / RESUME).exists():
            raise UsageError(f"run = {folder}: its training has not finished (uqgan train … --resume)")
        about = _parsed(folder, ABOUT, _about)
        log, notes = read_log(folder / LOG)
        data = _read(folder, WEIGHTS)
        if sha256(folder / WEIGHTS) != about.get("weights_sha256"):
            raise UsageError(f"{folder / WEIGHTS}: damaged, its sha256 is not the one in {ABOUT} (train it again)")
        plan.check_classifier(classifier, folder)
        try:
            check_networks(plan.config, plan.shape)
            predictor = plan.assemble(classifier)
            predictor.load_state_dict(load_tensors(data))
        except Exception as error:
            if classifier is not None:
                name, rule = type(classifier).__qualname__, f"build {plan.custom_classifier} as it was for training"
                raise UsageError(f"classifier = {name}: does not take the weights in {folder} ({rule})") from None
            written = about["versions"].get("uqgan", "an unknown version")
            why = f"it was written by uqgan {written}, this is {__version__} (train it again)"
            if written == __version__:
                why = f"{CONFIG} was changed after training (put it back, or train it again)"
            raise UsageError(f"{folder / WEIGHTS}: does not fit the networks of {CONFIG}; {why}") from error
        return Record(plan, predictor, log, about, folder=folder, notes=notes)


def run_titles(plans: Sequence[Plan]) -> list[str]:
    """Title per run: its method, and the settings in which it differs from other runs of the method."""
    facts = [plan.settings | {"seed": str(plan.seed), "method": plan.method} for plan in plans]
    titles = []
    for each in facts:
        alike = [other for other in facts if other["method"] == each["method"]]
        differing = [f"{key} = {value}" for key, value in each.items() if any(other[key] != value for other in alike)]
        titles.append(", ".join([each["method"], *differing]))
    return titles


def holds_run(folder: Path) -> bool:
    """Whether a folder holds a run, finished or not."""
    return (folder / CONFIG).exists()


def finished(folder: Path) -> bool:
    """Whether training of the run in a folder is complete."""
    return (folder / ABOUT).exists() and bool(_parsed(folder, ABOUT, _about)["finished"])


def remove_run(folder: Path) -> None:
    """Delete the files of a run, and nothing else in its folder."""
    if not holds_run(folder):
        return
    Plan.read(folder)
    for name in (ABOUT, *OF_WEIGHTS, CALIBRATION, DECISIONS, SEEN, WEIGHTS, LOG, CONFIG):
        (folder / name).unlink(missing_ok=True)
    for name in (RESUME, "tensorboard"):
        shutil.rmtree(folder / name, ignore_errors=True)
    with suppress(OSError):
        folder.rmdir()


def claim_folder(folder: Path, plan: Plan, resume: bool, overwrite: bool) -> None:
    """Prepare a folder for a run of that plan; a run that is there is never replaced unless requested."""
    if holds_run(folder) and overwrite and not resume:
        remove_run(folder)
    if not holds_run(folder):
        plan.write(folder)
        return
    if not resume:
        raise UsageError(f"{folder}: holds a run already (--resume to go on with it, --overwrite to replace it)")
    old = Plan.read(folder)
    if old != plan:
        raise UsageError(f"{folder}: holds a run with other settings ({difference(old, plan)}); choose another folder")


def difference(old: Plan, new: Plan) -> str:
    """First difference between two plans, as text."""

    def flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
        rows: dict[str, Any] = {}
        for key, value in tree.items():
            rows |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
        return rows

    def words(plan: Plan) -> dict[str, Any]:
        facts = {key: getattr(plan, key) for key in ("task", "method", "seed", "shape", "class_names", "digest")}
        return facts | flat(plan.config.model_dump()) | {"custom_classifier": plan.custom_classifier}

    before, after = words(old), words(new)
    key = next(key for key in after if before.get(key) != after[key])
    return f"{key} was {before.get(key)}, is {after[key]}"


def _about(data: bytes) -> dict[str, Any]:
    about = dict(json.loads(data))
    if not isinstance(about.get("versions"), dict):
        raise ValueError("versions")
    if missing := {"finished", "stopped", "device", "seconds", "versions", "command"} - set(about):
        raise ValueError(missing)
    return about


def _parsed(folder: Path, name: str, parser: Callable[[bytes], Any]) -> Any:
    data = _read(folder, name)
    try:
        return parser(data)
    except (ValueError, TypeError, yaml.YAMLError):
        raise UsageError(f"{folder / name}: damaged (train the run again)") from None


def _read(folder: Path, name: str) -> bytes:
    try:
        return (folder / name).read_bytes()
    except FileNotFoundError:
        raise UsageError(f"run = {folder}: not a whole run, {name} is missing") from None
    except OSError as error:
        raise UsageError(f"{folder / name}: cannot be read ({error.strerror})") from None
