"""Decoded pictures on the disk: one file per content and pixel format, complete or absent."""

import glob
import hashlib
import json
import zlib
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from uqgan.data.dataset import Decoded, Say
from uqgan.data.preprocessing import PixelFormat
from uqgan.errors import RunFailed
from uqgan.files import cache_folder, locked, sha256, write_text, written

VERSION = 1
"""Raised when decoding changes, so that older files are not used."""


def pictures_folder() -> Path:
    """Folder of decoded pictures."""
    return cache_folder() / "pictures"


def cached(
    name: str, content: str, pixel_format: PixelFormat, extra: Sequence[Any], decode: Callable[[], Decoded], say: Say
) -> Decoded:
    """Result of `decode` for files with that content and pixel format; read from the disk if it is cached.

    Of several processes that request the same, one decodes and the others wait. Where nothing can be written the
    pictures are decoded each time.
    """
    facts = [VERSION, version("pillow"), content, asdict(pixel_format), *extra]
    key = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:20]
    file = pictures_folder() / f"{name}-{pixel_format.channels}x{pixel_format.size}-{key}.safetensors"
    found = read(file)
    if found:
        return found
    with ExitStack() as stack:
        try:
            stack.enter_context(locked(file))
        except RunFailed as error:
            say(f"{error}; decoding without a cache")
            return decode()
        found = read(file)
        if found:
            return found
        for rest in file.parent.glob(f".{glob.escape(file.name)}.*"):  # a process was killed while it held the lock
            rest.unlink(missing_ok=True)
        decoded = decode()
        try:
            write(file, decoded)
        except RunFailed as error:
            say(f"{error}; going on without a cache")
        return decoded


def read(file: Path) -> Decoded | None:
    """Decoded pictures of a file; None if it is absent or incomplete."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, "pt") as saved:
            facts = json.loads(saved.metadata()["facts"])
            x, y = saved.get_tensor("x"), saved.get_tensor("y")
    except (OSError, SafetensorError, KeyError, TypeError, ValueError):
        return None
    if zlib.crc32(x.numpy().data) != facts["crc32"]:
        return None
    return Decoded(x, y, tuple(facts["class_names"]), tuple(facts["left_out"]))


def write(file: Path, decoded: Decoded) -> None:
    """Write decoded pictures, with a checksum."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    facts = {
        "class_names": decoded.class_names,
        "left_out": decoded.left_out,
        "crc32": zlib.crc32(decoded.x.numpy().data),
    }
    with written(file) as temporary:
        try:
            save_file({"x": decoded.x, "y": decoded.y}, temporary, {"facts": json.dumps(facts)})
        except SafetensorError as error:  # raised for a full disk
            raise RunFailed(f"{file}: could not be written, {error} (free some space)") from error


def content_of(files: Sequence[Path], root: Path) -> str:
    """Digest of the files' names and bytes, cached as long as their sizes and times are the same."""
    stats = [(file, file.stat()) for file in files]
    listing = [(str(file.absolute()), s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns) for file, s in stats]
    memo = cache_folder() / "digests" / hashlib.sha256(repr(listing).encode(errors="surrogateescape")).hexdigest()[:32]
    with suppress(OSError):
        return memo.read_text()
    whole = hashlib.sha256()
    for file in files:
        try:
            inside = sha256(file)
        except OSError as error:  # decoding reports what is wrong with it
            inside = str(error.errno)
        whole.update(f"{file.relative_to(root)}\0{inside}\n".encode(errors="surrogateescape"))
    with suppress(RunFailed):
        write_text(memo, whole.hexdigest())
    return whole.hexdigest()


def cache_files() -> list[Path]:
    """All files of the cache: decoded pictures, digests of files, trained networks."""
    folders = [cache_folder() / name for name in ("pictures", "digests", "autoencoders", "networks")]
    return sorted(file for folder in folders if folder.is_dir() for file in folder.iterdir() if file.is_file())


def clean() -> int:
    """Empty the cache, except for fetched data; returns the number of bytes freed."""
    freed = 0
    for file in cache_files():
        size = file.stat().st_size
        file.unlink(missing_ok=True)
        freed += size
    return freed
