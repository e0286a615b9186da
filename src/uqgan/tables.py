"""Tables written row by row, as CSV, JSON lines or Parquet; the file appears only when it is complete."""

import csv
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any

from uqgan.errors import UsageError
from uqgan.files import disk_failure, written

Row = list[Any]
"""Values in the order of the columns: text, numbers, lists of text, None."""
Write = Callable[[Sequence[Row]], None]
GROUP = 65_536
"""Number of rows per group in a Parquet file."""
LISTS = ("set",)
"""Columns of lists of text; those in TEXT are text, all others numbers."""
TEXT = ("path", "label", "decision", "reason", "error")
CHANGED = {"columns": "other columns (with or without --probabilities)", "rule": "another rule (uqgan calibrate)"}
"""Facts too long to be printed, in words."""
_compact = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


class Table:
    """Rows written into a hidden draft of FILE, which becomes FILE in the end, and saved in FILE.part, one per line.

    They come in chunks, of which a killed process loses at most one. The first line of FILE.part holds the facts they
    depend on: rows with other facts are not appended.
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
        whole = Path(os.path.realpath(file))  # beside the target of a link
        self._draft, self._open = whole.with_name(f".{whole.name}.draft"), ExitStack()
        try:
            self.n = self._begin(chunk, resume)
            self._lines = self._open.enter_context(self.part.open("ab", buffering=0))
            self._write = self._open.enter_context(WRITERS[file.suffix.lower()](self._draft, self.columns))
            rows = self.rows()
            while group := list(islice(rows, GROUP)):
                self._write(group)
        except OSError as error:
            self.close()
            raise disk_failure(self.part, error) from error
        except BaseException:
            self.close()
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
            self._write(rows)
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
        """Replace the file by the complete draft, atomically."""
        with written(self.file) as temporary:
            self._open.close()
            self._draft.replace(temporary)
        self.part.unlink()

    def close(self) -> None:
        """Delete the draft if it is not complete, and release the file to other processes."""
        with suppress(OSError):
            self._open.close()
        self._draft.unlink(missing_ok=True)
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


@contextmanager
def csv_writer(file: Path, columns: Sequence[str]) -> Iterator[Write]:
    """Write rows below a header; lists are joined by |, and None is empty."""
    lists = {k for k, name in enumerate(columns) if name in LISTS}
    with file.open("w", encoding="utf-8", newline="") as stream:
        lines = csv.writer(stream, lineterminator="\n")
        lines.writerow(columns)

        def write(rows: Sequence[Row]) -> None:
            lines.writerows(["|".join(v) if k in lists and v is not None else v for k, v in enumerate(r)] for r in rows)

        yield write


@contextmanager
def json_writer(file: Path, columns: Sequence[str]) -> Iterator[Write]:
    """Write rows as JSON objects, one per line."""
    with file.open("w", encoding="utf-8") as stream:
        yield lambda rows: stream.writelines(json_line(columns, row) for row in rows)


@contextmanager
def parquet_writer(file: Path, columns: Sequence[str]) -> Iterator[Write]:
    """Write rows in groups, so that few of them are in memory."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    types = [pa.list_(pa.string()) if c in LISTS else pa.string() if c in TEXT else pa.float64() for c in columns]
    schema = pa.schema(list(zip(columns, types, strict=True)))
    waiting: list[Row] = []
    with pq.ParquetWriter(file, schema) as out:

        def write(rows: Sequence[Row], least: int = GROUP) -> None:
            waiting.extend(rows)
            while len(waiting) >= least:
                group = zip(*waiting[:GROUP], strict=True)
                cells = [pa.array(list(cell), kind) for cell, kind in zip(group, types, strict=True)]
                out.write_table(pa.table(cells, schema=schema))
                del waiting[:GROUP]

        yield write
        if waiting:
            write([], len(waiting))


WRITERS: dict[str, Callable[[Path, Sequence[str]], AbstractContextManager[Write]]] = {
    ".csv": csv_writer,
    ".jsonl": json_writer,
    ".parquet": parquet_writer,
}
