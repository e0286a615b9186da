"""Transfer of run folders between machines: files in memory, or at a URL that all machines can access."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from uqgan.errors import RunFailed, UsageError, first_line
from uqgan.files import LOCK, write_bytes

Parcel = dict[str, bytes]
"""Contents of files by their paths within a folder."""
Marks = dict[str, tuple[int, int]]
"""Size and time of files, to detect changes."""
PART = ".part"
"""Ending of an incomplete file at a URL."""


def marks_of(folder: Path) -> Marks:
    """Files of a folder, saved states first, as a log may contain more than its state covers, but not less."""
    found: Marks = {}
    for file in folder.rglob("*"):
        with suppress(FileNotFoundError):  # replaced meanwhile
            about = file.stat()
            if file.is_file() and not file.name.startswith(".") and file.name != LOCK:
                found[file.relative_to(folder).as_posix()] = (about.st_size, about.st_mtime_ns)
    return dict(sorted(found.items(), key=lambda item: (not item[0].endswith(".safetensors"), item[0])))


def packed(folder: Path, known: Mapping[str, tuple[int, int]] | None = None) -> Parcel:
    """Contents of a folder: all files, or those that differ from known ones."""
    parcel: Parcel = {}
    for name, mark in marks_of(folder).items():
        if (known or {}).get(name) != mark:
            with suppress(FileNotFoundError):
                parcel[name] = (folder / name).read_bytes()
    return parcel


def unpack(parcel: Parcel, folder: Path, result: str, whole: bool) -> None:
    """Write files into a folder, the result last; with a `whole` parcel, files that are not in it are deleted."""
    for name, data in in_order(parcel, result):
        if name == result and whole:
            _clear(folder, parcel)
        write_bytes(folder / name, data)
    if whole and result not in parcel:
        _clear(folder, parcel)


def in_order(parcel: Parcel, result: str) -> list[tuple[str, bytes]]:
    """Order for writing files: logs before their saved states, the result last."""
    return sorted(parcel.items(), key=lambda item: (item[0] == result, item[0].endswith(".safetensors"), item[0]))


def _clear(folder: Path, parcel: Parcel) -> None:
    for name in marks_of(folder):
        if name not in parcel:
            (folder / name).unlink(missing_ok=True)
    for place in sorted((place for place in folder.rglob("*") if place.is_dir()), reverse=True):
        with suppress(OSError):
            place.rmdir()


@dataclass(frozen=True)
class Share:
    """A folder at a URL that fsspec knows: file://, s3://, gs://, memory:// and others."""

    url: str

    def check(self) -> None:
        """Refuse a URL of an unknown kind, or one that cannot be used."""
        try:
            files, place = self._open()
            files.makedirs(place, exist_ok=True)
        except (ImportError, ValueError) as error:
            raise UsageError(f"--share = {self.url}: {first_line(error)}") from None
        except OSError as error:
            raise RunFailed(f"--share = {self.url}: cannot be used, {first_line(error)}") from None

    def names(self, folder: str) -> list[str]:
        """Paths of all files in a folder below the URL."""
        files, place = self._open(folder)
        files.invalidate_cache()
        with suppress(FileNotFoundError):
            paths = (found[len(place) :].lstrip("/") for found in files.find(place))
            return [path for path in paths if not path.endswith(PART)]
        return []

    def fetch(self, folder: str) -> Parcel:
        """All files of a folder."""
        files, place = self._open(folder)
        return {name: files.cat_file(f"{place}/{name}") for name in self.names(folder)}

    def keep(self, folder: str, parcel: Parcel, result: str, whole: bool) -> None:
        """Write files into a folder atomically, the result last; an existing result is not replaced."""
        files, place = self._open(folder)
        there = self.names(folder)
        if result in there:
            return
        for name, data in in_order(parcel, result):
            if name == result and whole:
                self._clear(folder, [name for name in there if name not in parcel])
            files.makedirs(f"{place}/{name}".rpartition("/")[0], exist_ok=True)
            files.pipe_file(f"{place}/{name}{PART}", data)
            files.mv(f"{place}/{name}{PART}", f"{place}/{name}")

    def _clear(self, folder: str, names: list[str]) -> None:
        files, place = self._open(folder)
        for name in names:
            with suppress(FileNotFoundError):
                files.rm_file(f"{place}/{name}")

    def _open(self, folder: str = "") -> tuple[Any, str]:
        from fsspec.core import url_to_fs

        files, place = url_to_fs(f"{self.url.rstrip('/')}/{folder}" if folder else self.url)
        return files, place.rstrip("/")
