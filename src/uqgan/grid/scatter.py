"""Prediction on several machines: pictures scored by the nodes of a Ray cluster, chunk by chunk, in order."""

import os
import tempfile
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path
from typing import Any

import torch

from uqgan import api
from uqgan.data.decode import Piece, decode
from uqgan.data.inputs import batches_of
from uqgan.data.preprocessing import Broken, PixelFormat, bytes_of
from uqgan.errors import RunFailed
from uqgan.grid.cluster import mismatch, why
from uqgan.grid.connection import Needs, connected
from uqgan.grid.host import versions
from uqgan.grid.parcels import Parcel, unpack
from uqgan.run import Run
from uqgan.runs import ABOUT, CALIBRATION, CONFIG, DECISIONS, WEIGHTS
from uqgan.scoring import piece_size, score
from uqgan.tables import Row

AHEAD = 3
"""Number of pending chunks per process."""
RETRIES = 5
"""Number of retries of a chunk whose process or node died."""
_LOADED: dict[str, Run] = {}
"""Loaded run of a process on a node, by the name of the scoring."""
NEEDED = (CONFIG, WEIGHTS, ABOUT, CALIBRATION, DECISIONS)
"""Files of a run needed for predictions."""


@dataclass(frozen=True)
class Scoring:
    """A run to be sent to the nodes, and the options of scoring."""

    name: str
    """Unique name."""
    parcel: Parcel
    device: str
    threads: int
    pixel_format: PixelFormat
    place: str
    """Folder of relative paths."""
    versions: dict[str, str]
    seed: int
    probabilities: bool
    decides: bool


@dataclass(frozen=True)
class Chunk:
    """Files scored in one batch."""

    number: int
    files: list[str]
    sight: tuple[str, int, int] | None = None
    """One of them with its size and time, by which a node recognises that it has access to the same files."""
    contents: list[bytes | str] | None = None
    """Their contents, or reasons why one cannot be read, for nodes without access."""


@contextmanager
def scattered(
    address: str, needs: Needs, scoring: Scoring, files: Iterable[str], chunk: int, first: int
) -> Iterator[Iterator[tuple[list[str], list[Row]]]]:
    """Files and rows of chunk after chunk, from the nodes of a cluster; `first` is the number of the first chunk.

    Nodes that see the files read them; where one does not, all are sent what is in them. A chunk whose process or node
    dies is scored again.
    """
    with connected(address) as ray:
        needs = needs.of(ray, scoring.device)
        task = ray.remote(max_retries=RETRIES, **needs.options)(score_chunk)
        told = ray.put(scoring)

        def begin(chunk: Chunk) -> Any:
            return task.remote(told, chunk)

        yield in_order(ray, begin, chunks_of(files, chunk, first, scoring.place), lambda: AHEAD * needs.room(ray))


def chunks_of(files: Iterable[str], size: int, first: int, place: str) -> Iterator[Chunk]:
    """Numbered chunks of files."""
    for number, batch in zip(count(first), batches_of(files, size), strict=False):
        yield Chunk(number, batch, next(filter(None, (_sight(place, file) for file in batch)), None))


def in_order(
    ray: Any, begin: Callable[[Chunk], Any], chunks: Iterator[Chunk], ahead: Callable[[], int]
) -> Iterator[tuple[list[str], list[Row]]]:
    """Files and rows of each chunk in order, while others are pending."""
    waiting: deque[tuple[Chunk, Any]] = deque()
    sent = False
    while True:
        for chunk in islice(chunks, max(0, max(1, ahead()) - len(waiting))):
            filled = _filled(chunk) if sent else chunk
            waiting.append((chunk, begin(filled)))
        if not waiting:
            return
        chunk, reference = waiting.popleft()
        rows = _answer(ray, reference)
        if rows is None:
            sent = True
            rows = _answer(ray, begin(_filled(chunk)))
        assert rows is not None
        yield chunk.files, rows


def _answer(ray: Any, reference: Any) -> list[Row] | None:
    """Result of a node for a chunk; None if it has no access to the files."""
    try:
        rows: list[Row] | None = ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, RunFailed):
            raise error.cause from None
        raise RunFailed(f"--ray: a chunk could not be scored, {why(error.cause or error)}") from error
    except ray.exceptions.RayError as error:
        raise RunFailed(f"--ray: a chunk was lost {RETRIES + 1} times, {why(error)}") from error
    return rows


def _filled(chunk: Chunk) -> Chunk:
    """Chunk with the contents of its files."""
    contents: list[bytes | str] = []
    for file in chunk.files:
        try:
            contents.append(bytes_of(file))
        except Broken as error:
            contents.append(str(error))
    return Chunk(chunk.number, chunk.files, None, contents)


def scoring_of(folder: Path, pixel_format: PixelFormat, device: str, needs: Needs, seed: int, **what: bool) -> Scoring:
    """Scoring on nodes with the run in a folder; `what` are options for probabilities and decisions."""
    parcel = {name: (folder / name).read_bytes() for name in NEEDED if (folder / name).exists()}
    place = os.getcwd()  # noqa: PTH109
    return Scoring(uuid.uuid4().hex, parcel, device, needs.cpus, pixel_format, place, versions(), seed, **what)


# What runs on the nodes


def score_chunk(scoring: Scoring, chunk: Chunk) -> list[Row] | None:
    """Rows of a chunk; None if the files are not accessible here."""
    if chunk.contents is None and chunk.sight and _sight(scoring.place, chunk.sight[0]) != chunk.sight:
        return None
    torch.set_num_threads(scoring.threads)
    if scoring.name not in _LOADED:
        _LOADED.clear()
        _LOADED[scoring.name] = _loaded(scoring)
    run = _LOADED[scoring.name]
    pieces = _pieces(scoring, chunk, piece_size(run))
    (rows,) = score(run, pieces, scoring.seed, scoring.probabilities, scoring.decides, chunk.number)
    return rows


def _loaded(scoring: Scoring) -> Run:
    if wrong := mismatch(scoring.versions):
        raise RunFailed(wrong)
    with tempfile.TemporaryDirectory(prefix="uqgan-") as place:
        unpack(scoring.parcel, Path(place), ABOUT, whole=False)
        run = api.load(place, scoring.device)
        _ = run.rule, scoring.decides and run.calibration  # read before the folder is deleted
    return run


def _pieces(scoring: Scoring, chunk: Chunk, size: int) -> Iterator[Piece]:
    for start in range(0, len(chunk.files), size):
        files = chunk.files[start : start + size]
        if chunk.contents is None:
            yield files, decode([os.path.join(scoring.place, file) for file in files], scoring.pixel_format)  # noqa: PTH118
            continue
        contents = chunk.contents[start : start + size]
        pixels, broken = decode([each if isinstance(each, bytes) else b"" for each in contents], scoring.pixel_format)
        yield files, (pixels, broken | {row: each for row, each in enumerate(contents) if isinstance(each, str)})


def _sight(place: str, file: str) -> tuple[str, int, int] | None:
    try:
        found = os.stat(os.path.join(place, file))  # noqa: PTH116, PTH118
    except (OSError, ValueError):
        return None
    return file, found.st_size, found.st_mtime_ns
