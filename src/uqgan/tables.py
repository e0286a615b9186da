"""Tables written row by row, as CSV, JSON lines or Parquet; the file appears only when it is complete."""

import csv
import json
import os
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from uqgan.errors import UsageError
from uqgan.files import disk_failure, written

Row = list[Any]
"""Values in the order of the columns: text, numbers, lists of text, None."""
GROUP = 65_536
"""Number of rows per group in a Parquet file."""
LISTS = ("set",)
"""Columns of lists of text; those in TEXT are text, all others numbers."""
TEXT = ("path", "label", "decision", "reason", "error")
CHANGED = {"columns": "other columns (with or without --probabilities)", "rule": "another rule (uqgan calibrate)"}
"""Facts too long to be printed, in words."""
_compact = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


class Table:
    """Rows saved in FILE.part, one per line, until FILE is written from them.

    They come in chunks, of which a killed process loses at most one. The first line holds the facts they depend on:
    rows with other facts are not appended.
    """

    def __init__(self, file: Path, columns: Sequence[str], facts: dict[str, Any], chunk: int, resume: bool) -> None:
        from filelock import FileLock, Timeout

        check_ending(file)
        self.file, self.part, self.columns = file, file.with_name(f"{file.name}.part"), list(columns)
        self._facts = {"columns": self.columns, "chunk": chunk} | facts
        self._lock = FileLock(file.with_name(f"{file.name}.lock"))
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            Path(self._lock.lock_file).touch()
            self._lock.acquire(blocking=False)
        except Timeout:
            raise UsageError(f"output = {file}: another process is writing it (choose another file)") from None
        except OSError as error:
            raise disk_failure(file, error) from error
        try:
            self.n = self._begin(chunk, resume)
            self._lines = self.part.open("ab", buffering=0)
        except OSError as error:
            self._unlock()
            raise disk_failure(self.part, error) from error
        except BaseException:
            self._unlock()
            raise

    def _begin(self, chunk: int, resume: bool) -> int:
        """Number of saved rows in complete chunks; the rest is cut off."""
        n, end, head = self._saved() if self.part.exists() else (0, 0, {})
        if not n:
            self.part.write_bytes(_line(self._facts))
            return 0
        if not resume:
            raise UsageError(f"{self.part}: holds {n:,} rows (--resume to go on with them; delete it to begin anew)")
        for key, value in self._facts.items():
            if head.get(key) != value:
                change = CHANGED.get(key) or f"another {key}: {head.get(key)} instead of {value}"
                change = f"was begun with {change}"
                raise UsageError(f"{self.part}: {change} (delete it to begin anew)")
        os.truncate(self.part, end)
        return n

    def _saved(self) -> tuple[int, int, dict[str, Any]]:
        """Number of rows in complete chunks, their size in bytes, and the facts they depend on."""
        with self.part.open("rb") as lines:
            first = lines.readline()
            try:
                head = dict(json.loads(first))
                chunk = int(head["chunk"])
            except (ValueError, TypeError, KeyError):
                return 0, 0, {}
            n, place, saved = 0, len(first), (0, 0)
            for line in lines:
                if not (line.startswith(b"[") and line.endswith(b"]\n")):
                    break
                n, place = n + 1, place + len(line)
                if n % chunk == 0:
                    saved = (n, place)
        return *saved, head

    def append(self, rows: Sequence[Row]) -> None:
        """Save the rows of a chunk."""
        try:
            self._lines.write(b"".join(map(_line, rows)))
        except OSError as error:
            raise disk_failure(self.part, error) from error
        self.n += len(rows)

    def rows(self) -> Iterator[Row]:
        """Saved rows, read one by one."""
        with self.part.open("rb") as lines:
            next(lines)
            for line in lines:
                yield json.loads(line)

    def finish(self) -> None:
        """Write the file atomically."""
        with written(self.file) as temporary:
            WRITERS[self.file.suffix.lower()](temporary, self.columns, self.rows())
        self.part.unlink()

    def close(self) -> None:
        """Release the file to other processes."""
        self._lines.close()
        self._unlock()

    def _unlock(self) -> None:
        Path(self._lock.lock_file).unlink(missing_ok=True)
        self._lock.release()


def check_ending(file: Path) -> None:
    """Refuse a file whose ending is not that of a table."""
    if file.suffix.lower() not in WRITERS:
        raise UsageError(f"output = {file}: must end in {', '.join(WRITERS)}")


def json_line(columns: Sequence[str], row: Row) -> str:
    """Row as a JSON object on one line."""
    return json.dumps(dict(zip(columns, row, strict=True)), ensure_ascii=False) + "\n"


def _line(value: Any) -> bytes:
    return _compact(value).encode() + b"\n"


def write_csv(file: Path, columns: Sequence[str], rows: Iterator[Row]) -> None:
    """Write rows with a header; lists are joined by |, and None is empty."""
    lists = [k for k, name in enumerate(columns) if name in LISTS]
    with file.open("w", encoding="utf-8", newline="") as stream:
        lines = csv.writer(stream, lineterminator="\n")
        lines.writerow(columns)
        for row in rows:
            for k in lists:
                row[k] = None if row[k] is None else "|".join(row[k])
            lines.writerow(row)


def write_lines(file: Path, columns: Sequence[str], rows: Iterator[Row]) -> None:
    """Write rows as JSON objects, one per line."""
    with file.open("w", encoding="utf-8") as stream:
        stream.writelines(json_line(columns, row) for row in rows)


def write_parquet(file: Path, columns: Sequence[str], rows: Iterator[Row]) -> None:
    """Write rows in groups, so that few of them are in memory."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    types = [pa.list_(pa.string()) if c in LISTS else pa.string() if c in TEXT else pa.float64() for c in columns]
    schema = pa.schema(list(zip(columns, types, strict=True)))
    with pq.ParquetWriter(file, schema) as out:
        while group := list(islice(rows, GROUP)):
            cells = [pa.array(list(cell), kind) for cell, kind in zip(zip(*group, strict=True), types, strict=True)]
            out.write_table(pa.table(cells, schema=schema))


WRITERS: dict[str, Callable[[Path, Sequence[str], Iterator[Row]], None]] = {
    ".csv": write_csv,
    ".jsonl": write_lines,
    ".parquet": write_parquet,
}
