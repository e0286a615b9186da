"""Files that are whole or absent: atomic writes and hashes."""

import errno
import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from uqgan.errors import RunFailed


def write_bytes(path: Path, data: bytes) -> None:
    """Write all of it or nothing: under another name first, then renamed into place."""
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
            temporary = Path(file.name)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(0o644)
        temporary.replace(path)
    except OSError as error:
        raise disk_failure(path, error) from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    write_bytes(path, text.encode())


def write_json(path: Path, value: Any) -> None:
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def disk_failure(path: Path, error: OSError) -> RunFailed:
    """The sentence for a write that the disk refused."""
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
