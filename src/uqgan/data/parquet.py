"""Parquet files with a column of encoded pictures, struct{bytes, path} or binary, and one of integer labels.

The names of the classes stand in the schema, as the Hugging Face hub writes them.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from uqgan.data.decode import Encoded, decode
from uqgan.data.preprocessing import PixelFormat
from uqgan.errors import UsageError, count

BATCH = 1024
"""Number of rows per read."""


def count_rows(files: Sequence[Path]) -> list[int]:
    """Number of rows per file, without reading them."""
    return [_open(file).metadata.num_rows for file in files]


def read_pictures(files: Sequence[Path], name: str) -> Iterator[list[Encoded]]:
    """Encoded pictures, in batches, of the column with this name, or else of the column image."""
    for file in files:
        opened = _open(file)
        column = _column(opened, file, name, "image")
        for batch in opened.iter_batches(BATCH, columns=[column]):
            yield _blobs(batch.column(column), file)


def read_labels(files: Sequence[Path], name: str) -> tuple[npt.NDArray[np.int64], tuple[str, ...]]:
    """Labels of the column with this name, or else of the column label, and the names of all classes."""
    names = _class_names(_open(files[0]).schema_arrow, name)
    labels = []
    for file in files:
        opened = _open(file)
        column = _column(opened, file, name, "label")
        labels += [_labels(batch.column(column), names, file) for batch in opened.iter_batches(columns=[column])]
    if not labels:
        raise UsageError(f"{files[0]}: holds no pictures")
    y = np.concatenate(labels).astype(np.int64)
    return y, names or tuple(str(k) for k in range(int(y.max()) + 1))


def check_layout(file: Path, image: str, label: str) -> None:
    """Refuse a file without these columns, or whose first picture or label cannot be read."""
    read_labels([file], label)
    _, broken = decode(next(read_pictures([file], image))[:1], PixelFormat(8, 1))
    if broken:
        raise UsageError(f"{file}: its first picture cannot be read, {broken[0]}")


def _class_names(schema: Any, label: str) -> tuple[str, ...]:
    """Names of the classes in the schema; empty if it has none."""
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        return tuple(str(name) for name in (features.get(label) or features["label"])["names"])
    except (KeyError, TypeError, ValueError):
        return ()


def _open(file: Path) -> Any:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return pq.ParquetFile(file)
    except (pa.ArrowException, OSError) as error:
        reason = " ".join(str(error).split()).rstrip(".")
        raise UsageError(f"{file}: not a whole Parquet file, {reason} (fetch it again)") from None


def _column(opened: Any, file: Path, name: str, usual: str) -> str:
    known = opened.schema_arrow.names
    for each in (name, usual):
        if each in known:
            return each
    raise UsageError(f"{file}: has no column {name} or {usual} (has {', '.join(known)})")


def _labels(column: Any, names: tuple[str, ...], file: Path) -> Any:
    import pyarrow as pa

    if not pa.types.is_integer(column.type) or column.null_count:
        missing = f"{count(column.null_count, 'label')} {'is' if column.null_count == 1 else 'are'} missing"
        what = missing if column.null_count else f"labels are of type {column.type}"
        raise UsageError(f"{file}: {what}: each must be a whole number")
    labels = column.to_numpy(zero_copy_only=False)
    wrong = labels[(labels < 0) | (labels >= (len(names) or np.inf))]
    if len(wrong):
        named = f"as the file names {count(len(names), 'class')}"
        rule = f"must be within 0-{len(names) - 1}, {named}" if names else "must not be < 0"
        raise UsageError(f"{file}: label = {wrong[0]}: {rule}")
    return labels


def _blobs(column: Any, file: Path) -> list[Encoded]:
    import pyarrow as pa

    if pa.types.is_struct(column.type) and column.type.get_field_index("bytes") >= 0:
        column = column.field("bytes")
    if not (pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type)):
        raise UsageError(f"{file}: pictures are of type {column.type}: must be struct{{bytes, path}} or binary")
    return [data or b"" for data in column.to_pylist()]
