"""Looking at data: hashes, counts, duplicates, contact sheets."""

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from uqgan.data.cache import Decoded, Say, silent
from uqgan.data.sources import REPOSITORIES, files_of, folder_of, load_split
from uqgan.files import sha256

GAP = 1
SHEET_ROWS, SHEET_COLUMNS = 12, 20


@dataclass(frozen=True)
class Finding:
    """What a check found out about one split."""

    name: str
    split: str
    pictures: int
    counts: dict[str, int]
    """Of each class."""
    hashes: str
    """`ok`, `wrong: FILE`, or `not known`."""
    left_out: tuple[str, ...]
    doubles: int | None
    """Pictures that are also in the training splits, pixel for pixel; None for training splits."""


def check_set(name: str, root: Path, say: Say = silent) -> list[Finding]:
    """Read all splits of a set that are here; broken pictures are counted, not refused."""
    repository = REPOSITORIES[name]
    known = known_hashes(root) | hub_hashes(name, root)
    seen: set[bytes] = set()
    findings = []
    for split in (*repository.train, *repository.test):
        files = files_of(name, split, root)
        if not files:
            continue
        decoded = load_split(name, split, repository.size, repository.channels, root, True, say)
        tested = split in repository.test
        found = fingerprints(decoded.x)
        findings.append(
            Finding(
                name=name,
                split=split,
                pictures=len(decoded.y),
                counts=class_counts(decoded),
                hashes=compare_hashes(files, root, known),
                left_out=decoded.left_out,
                doubles=sum(each in seen for each in found) if tested else None,
            )
        )
        if not tested:
            seen.update(found)
    return findings


def class_counts(decoded: Decoded) -> dict[str, int]:
    counts = decoded.y.bincount(minlength=len(decoded.class_names)).tolist()
    return dict(zip(decoded.class_names, counts, strict=True))


def fingerprints(x: Tensor) -> list[bytes]:
    """A picture's pixels, short enough to be kept by the thousand."""
    import hashlib

    return [hashlib.blake2b(picture.numpy().data, digest_size=16).digest() for picture in x]


def known_hashes(root: Path) -> dict[str, str]:
    """sha256 by file, as README.md or SHA256SUMS beside the sets states them."""
    found: dict[str, str] = {}
    for file in (root / "README.md", root / "SHA256SUMS"):
        if file.is_file():
            for line in file.read_text(errors="replace").splitlines():
                digest, path = re.search(r"\b[0-9a-f]{64}\b", line), re.search(r"[\w./-]+\.parquet", line)
                if digest and path:
                    found[path[0]] = digest[0]
    return found


def hub_hashes(name: str, root: Path) -> dict[str, str]:
    """sha256 by file, as the hub gave them when the set was fetched."""
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
    paths = {file.relative_to(root).as_posix(): file for file in files}
    wrong = [path for path, file in paths.items() if path in known and sha256(file) != known[path]]
    if wrong:
        return f"wrong: {', '.join(wrong)}"
    return "ok" if set(paths) <= set(known) else "not known"


def contact_sheet(x: Tensor, y: Tensor | None = None, scale: int = 2) -> bytes:
    """A PNG of some pictures as a network sees them: a row for each class where there are labels, else at random."""
    if y is None:
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
        shown = order[: SHEET_ROWS * SHEET_COLUMNS // 2]
        rows = [shown[start : start + SHEET_COLUMNS] for start in range(0, len(shown), SHEET_COLUMNS)]
    else:
        present = y.bincount().nonzero()[:SHEET_ROWS, 0]
        rows = [(y == k).nonzero()[:SHEET_COLUMNS, 0] for k in present]
    return sheet(x, rows, scale)


def sheet(x: Tensor, rows: Sequence[Tensor], scale: int = 2) -> bytes:
    """A PNG of these pictures (uint8), given as indices row by row."""
    from PIL import Image

    channels, height, width = x.shape[1:]
    columns = max(len(row) for row in rows)
    canvas = torch.full((channels, len(rows) * (height + GAP), columns * (width + GAP)), 128, dtype=torch.uint8)
    for r, row in enumerate(rows):
        for c, index in enumerate(row.tolist()):
            top, left = r * (height + GAP), c * (width + GAP)
            canvas[:, top : top + height, left : left + width] = x[index]
    pixels = canvas[0].numpy() if channels == 1 else canvas.permute(1, 2, 0).numpy()
    picture = Image.fromarray(pixels)
    out = io.BytesIO()
    picture.resize((picture.width * scale, picture.height * scale), Image.Resampling.NEAREST).save(out, "PNG")
    return out.getvalue()
