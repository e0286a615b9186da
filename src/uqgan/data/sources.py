"""Sets of pictures as Parquet files, in a local folder or fetched from the hub: one table, one way to read them.

A file holds a column of encoded pictures, struct{bytes, path}, and one of labels; the names of the classes stand in its
schema. Files of a split are called SPLIT-*.parquet and lie in ROOT/NAME or ROOT/NAME/CONFIGURATION.
"""

import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import torch

from uqgan.data.cache import Decoded, Say, cached, content_of, silent
from uqgan.data.decode import Broken, Look, decode_batches, pixels
from uqgan.errors import UsageError
from uqgan.files import cache_folder

BATCH = 1024
"""Rows that are read at once, so that little more than the decoded pictures is held in memory."""


@dataclass(frozen=True)
class Repository:
    """A set of pictures: where it is on the hub, what its columns are called there, how its pictures are stored."""

    hub: str | None
    """Repository id; None where no faithful copy is known."""
    config: str
    """Configuration, which is the folder of its files."""
    image: str = "image"
    label: str = "label"
    train: tuple[str, ...] = ("train", "train_ood", "train_subset")
    """Splits to train with; the second and third are parts of a set, for classes that those before lack."""
    test: tuple[str, ...] = ("test",)
    """Splits to test with, the first that is there."""
    revision: str = "main"
    verified: bool = False
    """Whether files fetched from the hub were read with this row; the others follow the hub's own pages."""
    transposed: bool = False
    inverted: bool = False
    size: int = 32
    """At which the set alone is looked at; a task may want another."""
    channels: int = 3

    def look(self, size: int, channels: int) -> Look:
        return Look(size, channels, self.transposed, self.inverted)


REPOSITORIES: dict[str, Repository] = {
    "mnist": Repository("ylecun/mnist", "mnist", channels=1),
    "fashion-mnist": Repository("zalando-datasets/fashion_mnist", "fashion_mnist", channels=1),
    "cifar10": Repository("uoft-cs/cifar10", "plain_text", image="img"),
    "cifar100": Repository("uoft-cs/cifar100", "cifar100", image="img", label="fine_label"),
    "svhn": Repository("ufldl-stanford/svhn", "cropped_digits"),
    "omniglot": Repository("dpdl-benchmark/omniglot", "data", inverted=True, channels=1),
    "emnist-letters": Repository(
        "tanganke/emnist_letters",
        "emnist-letters",
        revision="4236c26fe034bc5b23851adc00067fa87b8ac16b",
        transposed=True,
        channels=1,
    ),
    "tiny-imagenet": Repository("zh-plus/tiny-imagenet", "data", test=("val", "valid"), size=64),
    # The hub has LSUN's test pictures only shrunk to 32 pixels without the paper's centre crop: another set.
    "lsun": Repository(None, "data"),
}


def data_root(root: str | Path | None = None) -> Path:
    """Where the sets are: as told, or UQGAN_DATA, or the place that `uqgan data fetch` fills."""
    place = told_root(root)
    if place != cache_folder() / "data" and not os.path.isdir(place):  # noqa: PTH112
        raise UsageError(f"{'--data-root' if root else 'UQGAN_DATA'} = {place}: no such folder")
    return place


def told_root(root: str | Path | None = None) -> Path:
    """The same, whether it's there or not."""
    return Path(root or os.environ.get("UQGAN_DATA") or cache_folder() / "data")


def folder_of(name: str, root: Path) -> Path:
    return root / name.replace("-", "_")


def files_of(name: str, split: str, root: Path) -> list[Path]:
    """A split's files, in order; none if it isn't there."""
    folder = folder_of(name, root)
    for place in (folder, folder / REPOSITORIES[name].config):
        files = sorted(place.glob(f"{split}-*.parquet"))
        if files:
            parts = re.search(r"-of-(\d+)", files[0].name)
            if parts and int(parts[1]) != len(files):
                raise UsageError(f"{place}: has {len(files)} of the {int(parts[1])} files of {split} (fetch it again)")
            return files
    return []


def splits_of(name: str, part: str, root: Path) -> list[str]:
    """The splits on this machine that make up `train` or `test`."""
    repository = REPOSITORIES[name]
    there = [split for split in getattr(repository, part) if files_of(name, split, root)]
    return there if part == "train" else there[:1]


def rows_of(name: str, split: str, root: Path) -> int:
    """How many pictures a split has, without reading them."""
    return sum(_open(file).metadata.num_rows for file in files_of(name, split, root))


def how_to_get(name: str, root: Path) -> str:
    """Both ways, as a sentence."""
    repository = REPOSITORIES[name]
    files = f"{repository.train[0]}-*.parquet and {repository.test[0]}-*.parquet"
    by_hand = f"place {files} with columns {repository.image} and {repository.label} in {folder_of(name, root)}"
    return f"uqgan data fetch {name}, or {by_hand}" if repository.hub else by_hand


def load_part(
    name: str,
    part: str,
    size: int,
    channels: int,
    root: Path,
    skip_broken: bool = False,
    say: Say = silent,
) -> Decoded | None:
    """A set's `train` or `test` pictures as a network of that size sees them; None if they aren't here."""
    splits = splits_of(name, part, root)
    decoded = [load_split(name, split, size, channels, root, skip_broken, say) for split in splits]
    if not decoded:
        return None
    whole = decoded[0]
    for split, more in zip(splits[1:], decoded[1:], strict=True):
        whole = with_new_classes(whole, more, f"{name}, {split}")
    return whole


def with_new_classes(whole: Decoded, more: Decoded, called: str) -> Decoded:
    """Both splits, the second only with classes that the first lacks: of others it may hold the same pictures again."""
    new = ~torch.isin(more.y, whole.y)
    n = int((~new).sum())
    said = (f"{n:,} pictures of {called} left out: their classes are in another training split",) if n else ()
    if n == len(new):
        return replace(whole, notes=(*whole.notes, *said))
    return Decoded(
        torch.cat([whole.x, more.x[new] if n else more.x]),
        torch.cat([whole.y, more.y[new]]),
        whole.class_names,
        (*whole.left_out, *more.left_out),
        (*whole.notes, *said),
    )


def load_split(
    name: str, split: str, size: int, channels: int, root: Path, skip_broken: bool = False, say: Say = silent
) -> Decoded:
    repository, files = REPOSITORIES[name], files_of(name, split, root)
    look = repository.look(size, channels)

    def build() -> Decoded:
        say(f"decoding {name}, {split}: {rows_of(name, split, root):,} pictures, once")
        return read_parquet(files, look, (repository.image, repository.label))

    extra = [repository.image, repository.label]
    decoded = cached(f"{name}-{split}", content_of(files, root), look, extra, build, say)
    refuse_broken(decoded.left_out, files[0].parent, skip_broken)
    return in_official_order(decoded) if name == "tiny-imagenet" else decoded


def read_parquet(files: Sequence[Path], look: Look, columns: tuple[str, str]) -> Decoded:
    """Pictures and labels of Parquet files; columns may also be called image and label."""
    opened = [_open(file) for file in files]
    rows = sum(each.metadata.num_rows for each in opened)
    if not rows:
        raise UsageError(f"{files[0]}: holds no pictures")
    x = np.empty((rows, look.channels, look.size, look.size), np.uint8)
    y = np.empty(rows, np.int64)
    kept = np.ones(rows, bool)
    left_out: list[str] = []
    names = class_names_in(opened[0].schema_arrow, columns[1])
    places: list[tuple[Path, slice]] = []

    def batches() -> Iterator[list[bytes]]:
        start = 0
        for file, each in zip(files, opened, strict=True):
            image, label = _column(each, file, columns[0], "image"), _column(each, file, columns[1], "label")
            for batch in each.iter_batches(BATCH, columns=[image, label]):
                places.append((file, slice(start, start + batch.num_rows)))
                y[places[-1][1]] = _labels(batch.column(label), names, file)
                start += batch.num_rows
                yield _blobs(batch.column(image), file)

    for number, (pictures, broken) in enumerate(decode_batches(batches(), look, rows)):
        file, place = places[number]
        x[place] = pictures
        left_out += [f"{file.name}, row {place.start + row}: {why}" for row, why in broken.items()]
        kept[[place.start + row for row in broken]] = False
    if left_out:
        x, y = x[kept], y[kept]
    names = names or tuple(str(k) for k in range(int(y.max()) + 1))
    return Decoded(torch.from_numpy(x), torch.from_numpy(y), names, tuple(left_out))


def check_layout(name: str, split: str, root: Path) -> None:
    """Whether the columns of a split's first file are what its row says, and its first picture is one."""
    repository, file = REPOSITORIES[name], files_of(name, split, root)[0]
    opened = _open(file)
    image, label = _column(opened, file, repository.image, "image"), _column(opened, file, repository.label, "label")
    batch = next(opened.iter_batches(1, columns=[image, label]))
    _labels(batch.column(label), class_names_in(opened.schema_arrow, label), file)
    try:
        pixels(_blobs(batch.column(image), file)[0], repository.look(8, 1))
    except Broken as broken:
        raise UsageError(f"{file}: its first picture cannot be read, {broken}") from None


def refuse_broken(left_out: Sequence[str], place: Path, skip_broken: bool) -> None:
    """Pictures that cannot be read end the work, unless they may be left out."""
    if left_out and not skip_broken:
        more = f" (and {len(left_out) - 1} more)" if len(left_out) > 1 else ""
        raise UsageError(f"{place}: {left_out[0]}{more}: cannot be read (--skip-broken leaves such pictures out)")


def in_official_order(decoded: Decoded) -> Decoded:
    """Tiny ImageNet's classes by their number in wnids.txt, which is what the paper's 0-99 means."""
    official = official_classes()
    if decoded.class_names == official or set(decoded.class_names) != set(official):
        return decoded
    number = torch.tensor([official.index(name) for name in decoded.class_names])
    return Decoded(decoded.x, number[decoded.y], official, decoded.left_out)


def official_classes() -> tuple[str, ...]:
    """Tiny ImageNet's wnids.txt."""
    return tuple((resources.files("uqgan") / "data" / "tiny_imagenet_classes.txt").read_text().split())


def class_names_in(schema: Any, label: str) -> tuple[str, ...]:
    """What the schema calls the classes; empty if it says nothing."""
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
        what = f"{column.null_count} labels are missing" if column.null_count else f"labels are of type {column.type}"
        raise UsageError(f"{file}: {what}: each must be a whole number")
    labels = column.to_numpy(zero_copy_only=False)
    wrong = labels[(labels < 0) | (labels >= (len(names) or np.inf))]
    if len(wrong):
        rule = (
            f"must be within 0-{len(names) - 1}, as the file names {len(names)} classes" if names else "must not be < 0"
        )
        raise UsageError(f"{file}: label = {wrong[0]}: {rule}")
    return labels


def _blobs(column: Any, file: Path) -> list[bytes]:
    import pyarrow as pa

    if pa.types.is_struct(column.type) and column.type.get_field_index("bytes") >= 0:
        column = column.field("bytes")
    if not (pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type)):
        raise UsageError(f"{file}: pictures are of type {column.type}: must be struct{{bytes, path}} or binary")
    return [data or b"" for data in column.to_pylist()]
