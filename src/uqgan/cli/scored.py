"""Where pictures are scored: on this machine, decoded beside the prediction, or on the nodes of a Ray cluster."""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from cyclopts.validators import Number

from uqgan.cli.app import Whole
from uqgan.cli.running import ON_RAY
from uqgan.errors import UsageError

if TYPE_CHECKING:
    from uqgan.data.decode import Piece
    from uqgan.data.inputs import Sources
    from uqgan.data.preprocessing import PixelFormat
    from uqgan.run import Run
    from uqgan.tables import Row

    Scored = tuple[Sequence[str], Sequence[Row]]


@Parameter(name="*", group=ON_RAY)
@dataclass(frozen=True)
class Nodes:
    """Several machines that score."""

    ray: str | None = None
    """Score on a Ray cluster: auto for the one that this machine is part of, or its address."""
    cpus: Annotated[Whole | None, Parameter(validator=Number(gte=1))] = None
    """Cores of a node that a process takes, and its threads; 1 if not given."""
    gpus: Annotated[float | None, Parameter(validator=Number(gte=0))] = None
    """GPUs of a node that a process takes, or a share such as 0.25; one where this machine scores on a GPU too."""

    def check(self) -> None:
        """Refuse what cannot be, before anything is read."""
        for name, given in (("cpus", self.cpus), ("gpus", self.gpus)):
            if given is not None and not self.ray:
                raise UsageError(f"--{name} = {given}: is for a Ray cluster (--ray auto, or leave it out)")
        if self.ray:
            from uqgan.grid.connection import ray_module

            ray_module()


@dataclass(frozen=True)
class Job:
    """Pictures to predict, and the run that predicts them."""

    run: "Run"
    sources: "Sources"
    total: int
    pixel_format: "PixelFormat"
    seed: int
    decides: bool
    probabilities: bool
    pool: Any = None
    """Processes to decode with."""

    @property
    def device(self) -> str:
        return self.run.record.predictor.prior.device.type


@contextmanager
def scored_here(job: Job, files: Iterator[str], first: int) -> Iterator[Iterator["Scored"]]:
    """Files and their rows, chunk by chunk, by this machine; `first` is the number of the first chunk."""
    import joblib
    import torch

    from uqgan.data.decode import decoding
    from uqgan.data.inputs import batches_of
    from uqgan.scoring import piece_size, score, threads_beside

    names: deque[str] = deque()
    with ExitStack() as stack:
        pieces = named(
            stack.enter_context(decoding(batches_of(files, piece_size(job.run)), job.pixel_format, job.pool)), names
        )
        if job.pool and job.device == "cpu":
            stack.callback(torch.set_num_threads, torch.get_num_threads())
            torch.set_num_threads(threads_beside(job.run, joblib.cpu_count()))
        chunks = score(job.run, pieces, job.seed, job.probabilities, job.decides, first)
        yield (([names.popleft() for _ in rows], rows) for rows in chunks)


@contextmanager
def scored_there(nodes: Nodes, job: Job, files: Iterator[str], first: int) -> Iterator[Iterator["Scored"]]:
    """The same by the nodes of a cluster."""
    from uqgan.grid.connection import Needs
    from uqgan.grid.scatter import scattered, scoring_of
    from uqgan.scoring import chunk_size

    folder, needs = job.run.record.folder, Needs(nodes.cpus or 1, nodes.gpus)
    assert nodes.ray
    assert folder
    what = {"probabilities": job.probabilities, "decides": job.decides}
    scoring = scoring_of(folder, job.pixel_format, job.device, needs, job.seed, **what)
    with scattered(nodes.ray, needs, scoring, files, chunk_size(job.run), first) as chunks:
        yield chunks


def named(pieces: Iterable["Piece"], names: deque[str]) -> Iterator["Piece"]:
    """Pass on pieces, and append their files to `names`: rows only have the printable form of a path."""
    for files, outcome in pieces:
        names.extend(files)
        yield files, outcome
