"""A data set of the paper as tensors: found, decoded, and cached."""

from bisect import bisect
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from uqgan.data.cache import cached, content_of
from uqgan.data.dataset import Decoded, Say, refuse_broken, silent, without_rows
from uqgan.data.decode import decode_all
from uqgan.data.parquet import count_rows, read_labels, read_pictures
from uqgan.data.preprocessing import PixelFormat
from uqgan.data.sources import REPOSITORIES, files_of, splits_of
from uqgan.errors import count


def load_split(
    name: str, split: str, size: int, channels: int, root: Path, skip_broken: bool = False, say: Say = silent
) -> Decoded:
    """Pictures of a split on this machine, decoded once and cached."""
    repository = REPOSITORIES[name]
    files, columns = files_of(name, split, root), repository.columns
    pixel_format = repository.pixel_format(size, channels)

    def decode() -> Decoded:
        say(f"decoding {name}, {split}: {count(sum(count_rows(files)), 'picture')}, once")
        return decode_files(files, columns, pixel_format)

    decoded = cached(f"{name}-{split}", content_of(files, root), pixel_format, columns, decode, say)
    refuse_broken(decoded.left_out, files[0].parent, skip_broken)
    return in_order(decoded, repository.official_classes())


def load_part(
    name: str, part: str, size: int, channels: int, root: Path, skip_broken: bool = False, say: Say = silent
) -> Decoded | None:
    """Pictures of all splits that form `train` or `test`; None if there are none on this machine."""
    whole = None
    for split in splits_of(name, part, root):
        decoded = load_split(name, split, size, channels, root, skip_broken, say)
        whole = with_new_classes(whole, decoded, f"{name}, {split}") if whole else decoded
    return whole


def decode_files(files: Sequence[Path], columns: Sequence[str], pixel_format: PixelFormat) -> Decoded:
    """Pictures and labels of Parquet files."""
    image, label = columns
    y, names = read_labels(files, label)
    n_bytes = sum(file.stat().st_size for file in files)
    x, broken = decode_all(lambda: read_pictures(files, image), pixel_format, len(y), n_bytes)
    ends = np.cumsum(count_rows(files))
    left_out = {row: f"{files[bisect(ends, row)].name}, row {row}: {why}" for row, why in broken.items()}
    return without_rows(x, y, names, left_out)


def in_order(decoded: Decoded, official: tuple[str, ...]) -> Decoded:
    """Pictures with classes renumbered in the order of `official`, if these are their classes."""
    if decoded.class_names == official or set(decoded.class_names) != set(official):
        return decoded
    number = torch.tensor([official.index(name) for name in decoded.class_names])
    return replace(decoded, y=number[decoded.y], class_names=official)


def with_new_classes(whole: Decoded, more: Decoded, title: str) -> Decoded:
    """Union of two splits, the second only with classes absent from the first: of others it may repeat pictures."""
    new = ~torch.isin(more.y, whole.y)
    n = int((~new).sum())
    why = "its class is" if n == 1 else "their classes are"
    said = (f"{count(n, 'picture')} of {title} left out: {why} in another training split",) if n else ()
    if n == len(new):
        return replace(whole, notes=(*whole.notes, *said))
    return Decoded(
        torch.cat([whole.x, more.x[new] if n else more.x]),
        torch.cat([whole.y, more.y[new]]),
        whole.class_names,
        (*whole.left_out, *more.left_out),
        (*whole.notes, *said),
    )
