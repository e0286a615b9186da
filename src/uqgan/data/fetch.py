"""Sets fetched from the hub: its Parquet files, unchanged, in the folder where a local copy would lie."""

import os
import warnings
from pathlib import Path
from typing import Any

from uqgan.data.dataset import Say, silent
from uqgan.data.parquet import check_layout
from uqgan.data.sources import REPOSITORIES, configured_root, files_of, folder_of, how_to_get, splits_of
from uqgan.errors import RunFailed, UsageError
from uqgan.files import disk_failure


def made_root(root: Path | None) -> Path:
    """Folder for fetched sets, created if it does not exist."""
    place = configured_root(root)
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise disk_failure(place, error) from error
    return place


def fetch(name: str, root: Path, say: Say = silent) -> Path:
    """Fetch a set, except for files that are on this machine already; returns its folder."""
    repository = REPOSITORIES[name]
    if not repository.hub:
        raise UsageError(f"{name}: no faithful copy is known on the hub ({how_to_get(name, root)})")
    snapshot_download = _hub()
    folder = folder_of(name, root)
    patterns = [f"{repository.config}/{split}-*.parquet" for split in (*repository.train, *repository.test)]
    say(f"fetching {name} from {repository.hub} into {folder}")
    try:
        with warnings.catch_warnings(action="ignore"):
            snapshot_download(
                repository.hub,
                repo_type="dataset",
                revision=repository.revision,
                allow_patterns=patterns,
                local_dir=folder,
                etag_timeout=15,
                endpoint=os.environ.get("HF_ENDPOINT"),
            )
    except Exception as error:  # network libraries raise many kinds
        raise _failure(name, root, error) from error
    for part in ("train", "test"):
        splits = splits_of(name, part, root)
        if not splits:
            raise RunFailed(
                f"{name}: {repository.hub} has no {part} files in {repository.config} ({how_to_get(name, root)})"
            )
        check_layout(files_of(name, splits[0], root)[0], *repository.columns)
    return folder


def _failure(name: str, root: Path, error: Exception) -> RunFailed:
    kind = type(error).__name__
    unreachable = any(word in kind for word in ("Connect", "Timeout", "LocalEntryNotFound", "Offline"))
    reason = "no connection to the hub" if unreachable else " ".join(str(error).split())[:200] or kind
    return RunFailed(f"{name}: could not be fetched from {REPOSITORIES[name].hub}, {reason} ({how_to_get(name, root)})")


def origin(name: str, root: Path) -> str:
    """Origin of a set's files: the hub with its revision, or placed by hand."""
    records = sorted((folder_of(name, root) / ".cache" / "huggingface" / "download").rglob("*.parquet.metadata"))
    if not records:
        return "placed by hand"
    revision = (records[0].read_text().split() or ["?"])[0]
    return f"{REPOSITORIES[name].hub} at {revision[:12]}"


def _hub() -> Any:
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.utils import logging
    except ImportError:
        raise UsageError("huggingface_hub: not installed (pip install 'uqgan[hf]')") from None
    quiet: Any = logging.set_verbosity_error
    quiet()  # failures are reported once, by the caller
    return snapshot_download
