"""Atomic writes, locks, hashes, and the folder of the cache."""

import errno
import hashlib
import io
import json
import os
import platform
import shlex
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from uqgan.errors import RunFailed, UsageError

CACHE_VARIABLE = "UQGAN_CACHE"
LOCK = ".lock"
"""Lock file of a folder that one process at a time may use."""


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file atomically."""
    with written(path) as temporary:
        temporary.write_bytes(data)


@contextmanager
def written(path: Path) -> Iterator[Path]:
    """Temporary file to write into; after the block it is flushed to the disk and renamed to `path`."""
    temporary = None
    path = Path(os.path.realpath(path))  # replace the target of a link, not the link
    if path.exists() and not path.is_file():
        raise RunFailed(f"{path}: could not be written, it is no plain file (choose another place)")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
            temporary = Path(file.name)
        yield temporary
        with temporary.open("r+b") as file:
            os.fsync(file.fileno())
        temporary.chmod(0o644)
        temporary.replace(path)
    except OSError as error:
        raise disk_failure(path, error) from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


@contextmanager
def locked(path: Path, on_wait: Callable[[], None] | None = None) -> Iterator[None]:
    """Exclusive lock on a file between processes; `on_wait` is called if another process holds it.

    On file systems without locks every process goes on: as files are written atomically, work is only done twice.
    """
    from filelock import FileLock, Timeout

    file = path.with_name(f"{path.name}.lock")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    except OSError as error:
        raise disk_failure(file, error) from error
    lock = FileLock(file)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        if on_wait:
            on_wait()
        with suppress(OSError):
            lock.acquire()
    except (OSError, NotImplementedError):
        pass
    try:
        yield
    finally:
        lock.release()


@contextmanager
def alone_in(folder: Path, doing: str, wait: bool = False) -> Iterator[None]:
    """Exclusive use of a folder, created if needed, by one process within the block; the lock ends with its process.

    A second process waits, or is refused with the name of the first and what it is `doing`. On file systems without
    locks none is refused. At the end the lock file is deleted, and so is the folder if it is empty.
    """
    from filelock import FileLock, Timeout

    file = folder / LOCK
    lock = FileLock(file)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire(blocking=wait)
        _sign(file)
    except Timeout:
        raise UsageError(f"{folder}: {_holder(file)} is {doing} (wait for it, or choose another folder)") from None
    except (OSError, NotImplementedError):
        with suppress(OSError):
            if not file.stat().st_size:
                file.unlink()
    try:
        yield
    finally:
        with suppress(OSError):
            if lock.is_locked:
                file.unlink(missing_ok=True)
                lock.release()
            folder.rmdir()


def _sign(file: Path) -> None:
    """Write the process that holds a lock into the lock file."""
    program = Path(sys.argv[0])
    name = "uqgan" if program.parts[-2:] == ("uqgan", "__main__.py") else program.name or "python"
    facts = {"process": os.getpid(), "machine": platform.node(), "command": shlex.join([name, *sys.argv[1:]])}
    file.write_text(json.dumps(facts))


def _holder(file: Path) -> str:
    """Description of the process that holds a lock."""
    try:
        facts = json.loads(file.read_text())
        place = "" if facts["machine"] == platform.node() else f" on {facts['machine']}"
        return f"process {facts['process']}{place} ({facts['command']})"
    except (OSError, ValueError, TypeError, KeyError):  # not written yet, or the system forbids reading a locked file
        return "another process"


def cache_folder() -> Path:
    """Folder of the cache: UQGAN_CACHE, or uqgan in the user's cache folder."""
    chosen = os.environ.get(CACHE_VARIABLE)
    return Path(chosen) if chosen else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "uqgan"


def write_text(path: Path, text: str) -> None:
    write_bytes(path, text.encode())


def write_json(path: Path, value: Any) -> None:
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def write_arrays(path: Path, arrays: Mapping[str, Any]) -> None:
    """Write named arrays into a compressed .npz file."""
    import numpy as np

    packed = io.BytesIO()
    np.savez_compressed(packed, allow_pickle=False, **arrays)
    write_bytes(path, packed.getvalue())


@contextmanager
def read_arrays(path: Path, what: str, fix: str) -> Iterator[dict[str, Any]]:
    """Arrays of a .npz file as tensors by name; a KeyError within the block means that the file is damaged."""
    import numpy as np
    import torch

    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise UsageError(f"{path}: no such file ({fix})") from None
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({(error.strerror or str(error)).lower()})") from None
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as saved:
            arrays = {key: torch.from_numpy(saved[key]) for key in saved.files}
        yield arrays
    except (OSError, EOFError, KeyError, ValueError, TypeError, zipfile.BadZipFile):
        raise UsageError(f"{path}: damaged, or no {what} ({fix})") from None


def disk_failure(path: Path, error: OSError) -> RunFailed:
    """Error for a failed write, with advice."""
    fixes = {
        errno.ENOSPC: "free some space",
        errno.EDQUOT: "free some space",
        errno.EROFS: "choose a folder that can be written",
        errno.EACCES: "choose a folder that can be written",
        errno.EPERM: "choose a folder that can be written",
        errno.ENOTDIR: "a file stands where a folder is needed",
        errno.EEXIST: "a file stands where a folder is needed",
    }
    fix = fixes.get(error.errno or 0, "choose another place")
    reason = (error.strerror or str(error)).lower()
    return RunFailed(f"{path}: could not be written, {reason} ({fix})")


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
