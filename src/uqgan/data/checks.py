"""Checks of data: hashes, counts, duplicates, contact sheets."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from uqgan.data.dataset import Decoded, Say, silent
from uqgan.data.duplicates import fingerprints
from uqgan.data.sets import load_split
from uqgan.data.sources import REPOSITORIES, files_of, folder_of
from uqgan.files import sha256
from uqgan.tiles import tile

SHEET_ROWS, SHEET_COLUMNS = 12, 20


@dataclass(frozen=True)
class Finding:
    """Result of a check of one split."""

    name: str
    split: str
    pictures: int
    counts: dict[str, int]
    """Number of pictures per class."""
    hashes: str
    """`ok`, `wrong: FILE`, or `not known`."""
    left_out: tuple[str, ...]
    duplicates: int | None
    """Number of pictures that are also in the training splits, pixel for pixel; None for training splits."""


def check_set(name: str, root: Path, say: Say = silent) -> list[Finding]:
    """Findings about all splits of a set on this machine; broken pictures are counted, not refused."""
    repository = REPOSITORIES[name]
    known = known_hashes(root) | hub_hashes(name, root)
    seen: set[int] = set()
    findings = []
    for split in (*repository.train, *repository.test):
        files = files_of(name, split, root)
        if not files:
            continue
        decoded = load_split(name, split, repository.size, repository.channels, root, True, say)
        tested = split in repository.test
        found = fingerprints(decoded.x).tolist()
        findings.append(
            Finding(
                name=name,
                split=split,
                pictures=len(decoded.y),
                counts=class_counts(decoded),
                hashes=compare_hashes(files, root, known),
                left_out=decoded.left_out,
                duplicates=sum(each in seen for each in found) if tested else None,
            )
        )
        if not tested:
            seen.update(found)
    return findings


def class_counts(decoded: Decoded) -> dict[str, int]:
    """Number of pictures per class."""
    counts = decoded.y.bincount(minlength=len(decoded.class_names)).tolist()
    return dict(zip(decoded.class_names, counts, strict=True))


def known_hashes(root: Path) -> dict[str, str]:
    """Expected sha256 by file, from README.md or SHA256SUMS beside the sets."""
    found: dict[str, str] = {}
    for file in (root / "README.md", root / "SHA256SUMS"):
        if file.is_file():
            for line in file.read_text(errors="replace").splitlines():
                digest, path = re.search(r"\b[0-9a-f]{64}\b", line), re.search(r"[\w./-]+\.parquet", line)
                if digest and path:
                    found[path[0]] = digest[0]
    return found


def hub_hashes(name: str, root: Path) -> dict[str, str]:
    """Expected sha256 by file, from the hub when the set was fetched."""
    folder = folder_of(name, root)
    records = folder / ".cache" / "huggingface" / "download"
    found = {}
    for record in records.rglob("*.parquet.metadata"):
        lines = record.read_text().splitlines()
        if len(lines) > 1 and re.fullmatch(r"[0-9a-f]{64}", lines[1]):
            path = folder / record.relative_to(records).with_suffix("")
            found[path.relative_to(root).as_posix()] = lines[1]
    return found


def compare_hashes(files: Sequence[Path], root: Path, known: dict[str, str]) -> str:
    """`ok`, `wrong: FILE`, or `not known` where a file has no expected hash."""
    paths = {file.relative_to(root).as_posix(): file for file in files}
    wrong = [path for path, file in paths.items() if path in known and sha256(file) != known[path]]
    if wrong:
        return f"wrong: {', '.join(wrong)}"
    return "ok" if set(paths) <= set(known) else "not known"


def contact_sheet(x: Tensor, y: Tensor | None = None, scale: int = 2) -> bytes:
    """PNG of some preprocessed pictures: a row per class where there are labels, otherwise a random selection."""
    if y is None:
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
        rows = list(order[: SHEET_ROWS * SHEET_COLUMNS // 2].split(SHEET_COLUMNS))  # type: ignore[no-untyped-call]
    else:
        present = y.bincount().nonzero()[:SHEET_ROWS, 0]
        rows = [(y == k).nonzero()[:SHEET_COLUMNS, 0] for k in present]
    return tile([x[row] for row in rows], scale, grey=128)
