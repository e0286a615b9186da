"""Conditions of a result besides its settings: device, versions of packages, commit of the source."""

import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from uqgan import __version__

MEMBERS = "members"
"""Stage of training members of an ensemble in parallel; each member also has its own stages."""


def circumstances(
    device: torch.device,
    seconds: float,
    stopped: str | None,
    stages: Mapping[str, float],
    reused: Sequence[str] = (),
    command: str | None = None,
) -> dict[str, Any]:
    """Conditions of a result besides its settings: device, versions, and the time of each stage.

    `reused` are the stages loaded from the cache; their times are those of the run that trained them. `command` is
    the command that made the run, by default that of this process.
    """
    this_command = " ".join(["uqgan", *sys.argv[1:]]) if Path(sys.argv[0]).stem == "uqgan" else None
    return {
        "finished": stopped is None,
        "stopped": stopped,
        "device": describe(device),
        "threads": torch.get_num_threads(),
        "seconds": round(seconds, 1),
        "stage_seconds": {name: round(value, 1) for name, value in stages.items()},
        "reused": list(reused),
        "command": command or this_command,
        "versions": versions(),
        "commit": COMMIT,
    }


def training_seconds(record: Mapping[str, Any]) -> float:
    """Seconds of a whole training, including the stages that were loaded from the cache."""
    stages = record.get("stage_seconds") or {}
    return max(float(record["seconds"]), sum(float(seconds) for name, seconds in stages.items() if name != MEMBERS))


def shared_by(records: Sequence[Mapping[str, Any]], command: str) -> dict[str, Any]:
    """Conditions of several runs together: all devices and commits, seconds in all, versions, and the command."""
    found = {key: list(dict.fromkeys(record[key] for record in records)) for key in ("device", "commit")}
    seconds = round(sum(record["seconds"] for record in records), 1)
    return {**found, "seconds": seconds, "versions": records[0]["versions"] if records else {}, "command": command}


def versions() -> dict[str, str]:
    packages = ("torch", "numpy", "scikit-learn", "safetensors", "pydantic")
    program = {"uqgan": __version__, "python": platform.python_version()}
    return program | {name: _version(name) for name in packages}


def describe(device: torch.device) -> str:
    """Name of a device."""
    if device.type == "cuda":
        return f"cuda ({torch.cuda.get_device_name(device)})"
    return f"{device.type} ({platform.processor() or platform.machine()})"


def source_commit() -> str | None:
    """Commit of the running source tree, with a + if the tree has changes; None outside of a repository."""
    git = ["git", "-C", str(Path(__file__).parent)]
    try:
        head, changes = (
            subprocess.run([*git, *words], capture_output=True, check=True, text=True, timeout=5).stdout.strip()
            for words in (["rev-parse", "HEAD"], ["status", "--porcelain", "--untracked-files=no", "."])
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return head + "+" if changes else head


COMMIT = source_commit()
"""Commit at the start of the program, as the tree may change while it runs."""


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"
