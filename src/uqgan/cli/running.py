"""Parts common to all commands that run cells: options, execution, and results."""

import json
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Group, Parameter
from cyclopts.validators import Number
from rich.console import Console

from uqgan.cli.app import Voice, Whole, show_rows
from uqgan.cli.work import Pictures
from uqgan.errors import Interrupted, OutOfTime, RunFailed, UsageError, count
from uqgan.progress import spell

if TYPE_CHECKING:
    from uqgan.data.dataset import Say
    from uqgan.grid.cells import Cell
    from uqgan.grid.schedule import Executor, Terms
    from uqgan.grid.times import Times

ON_RAY = Group("Several machines")
COLUMNS = {"accuracy": "accuracy", "auroc": "AUROC all"}
"""Columns of the final table."""


@Parameter(name="*")
@dataclass(frozen=True)
class How:
    """Options for running cells."""

    workers: str = "auto"
    """Number of processes on this machine; auto: one per core, or several on a GPU that they can share."""
    device: str = "auto"
    """auto, cpu, cuda or mps."""
    max_minutes: Annotated[float | None, Parameter(validator=Number(gt=0))] = None
    """Time limit; the same command continues."""
    retry_failed: bool = False
    """Run failed cells again."""
    ray: Annotated[str | None, Parameter(group=ON_RAY)] = None
    """Run cells on a Ray cluster: auto for the one of this machine, or an address."""
    share: Annotated[str | None, Parameter(group=ON_RAY)] = None
    """URL (s3://…) for runs, if nodes have no access to the output folder; without it they send files."""
    cpus: Annotated[Whole, Parameter(group=ON_RAY, validator=Number(gte=1))] = 1
    """Cores, and threads, per cell."""
    gpus: Annotated[float | None, Parameter(group=ON_RAY, validator=Number(gte=0))] = None
    """GPUs per cell, or a share such as 0.25; one if there are any."""

    @property
    def size(self) -> int | None:
        """Number of processes; None for auto."""
        if self.workers == "auto":
            return None
        if not self.workers.isdecimal() or not int(self.workers):
            raise UsageError(f"--workers = {self.workers}: must be auto, or a number of at least 1")
        return int(self.workers)

    @property
    def kind(self) -> str:
        """Kind of device for cells: cpu, cuda or mps."""
        from uqgan.acceleration import choose_device

        if self.ray and self.device.startswith("cuda"):
            return "cuda"  # whether this machine has one or not
        return choose_device(self.device).type

    def check(self) -> None:
        """Refuse invalid options before data are loaded."""
        _ = self.size
        if self.ray:
            from uqgan.grid.connection import ray_module

            ray_module()
        for name, given in (("share", self.share), ("gpus", self.gpus)):
            if given is not None and not self.ray:
                raise UsageError(f"--{name} = {given}: is for a Ray cluster (--ray auto, or leave it out)")

    def executor(self, say: "Say") -> "Executor":
        """Executor for the cells."""
        if not self.ray:
            from uqgan.grid.pool import Pool

            return Pool(self.size, say)
        from uqgan.grid.cluster import Cluster
        from uqgan.grid.connection import Needs

        return Cluster(self.ray, self.share, Needs(self.cpus, self.gpus), self.size, say)


@Parameter(name="*")
@dataclass(frozen=True)
class Place(How):
    """Options for the place and the conditions of runs."""

    output: Annotated[Path, Parameter(("--output", "-o"))] = Path("runs")
    """Folder of all runs; finished ones are not run again."""


def run_cells(
    cells: Sequence["Cell"], place: Place, pictures: Pictures, voice: Voice, times: Sequence[Path] = ()
) -> None:
    """Run all cells that are not done, with progress; results are in their folders.

    The remaining time is estimated by finished runs in the folder, and in the folders `times`.
    """
    from uqgan.cli.watch import Watch
    from uqgan.grid.schedule import Schedule, Terms, survey
    from uqgan.grid.times import Times

    place.check()
    start, device = time.monotonic(), place.kind
    found = survey(cells, place.output, place.retry_failed)
    if not found.to_do:
        return
    own = (pictures.data_root, pictures.image_size, pictures.skip_broken)
    look_at_data([cell.task for cell in found.to_do], Terms(place.output, place.device, *own), voice)
    minutes = place.max_minutes and max(1e-9, place.max_minutes - (time.monotonic() - start) / 60)
    terms = Terms(place.output, place.device, *own, minutes)
    watch = Watch(found, terms, Times.recorded([place.output, *times]), device, voice)
    try:
        with watch:
            place.executor(watch.say)(Schedule.of(found.to_do), terms, watch)
    except KeyboardInterrupt as error:
        number = error.args[0] if error.args else 2
        done = sum(state == "done" for state in watch.states.values()) + len(found.done)
        by = "by hand" if number == 2 else "by SIGTERM"
        kept = f"{done} of {count(len(cells), 'cell')} done, the others are saved; the same command goes on"
        raise Interrupted(f"stopped {by}, {kept}", number) from None


def time_for(cells: Sequence["Cell"], known: "Times", device: str) -> str:
    """Text with the expected time of cells."""
    left = known.left(cells, device)
    if left is None:
        return f"no times of such runs on {device} are known"
    unknown = sum(known.expected(cell, device) is None for cell in cells)
    words = f"about {spell(left)} one after another on {device}"
    estimated = f", with {count(unknown, 'cell')} of unknown time estimated by the costs of the methods"
    return words + estimated if unknown else words


def look_at_data(tasks: Sequence[str], terms: "Terms", voice: Voice) -> None:
    """Load each task once, so that its data are decoded, and errors in them are found before any cell runs."""
    for name in dict.fromkeys(tasks):
        with voice.busy(f"loading {name}"):
            task = terms.load(name, voice.say)
        for note in (*task.notes, *(f"{key}: left out, {why}" for key, why in task.missing.items())):
            voice.say(f"{name}: {note}")


def outcome(cells: Sequence["Cell"], root: Path) -> list[dict[str, Any]]:
    """State of each cell by its files, with its main scores and its folder."""
    from uqgan.grid.schedule import survey

    found = survey(cells, root)
    return [row_of(cell, root, cell in found.done, cell in found.failed) for cell in cells]


def row_of(cell: "Cell", root: Path, done: bool, failed: bool) -> dict[str, Any]:
    """State of one cell."""
    from uqgan.grid.cells import FAILED

    folder = root / cell.name
    row: dict[str, Any] = {"cell": cell.name, "task": cell.task, "method": cell.method, "seed": cell.seed}
    row |= {"settings": dict(cell.settings), "state": "done" if done else "failed" if failed else "unfinished"}
    if failed and not done:
        lines = (folder / FAILED).read_text().strip().splitlines()
        return row | {"log": str(folder / FAILED), "why": lines[-1] if lines else ""}
    if not done:
        return row
    record = json.loads((folder / cell.result).read_bytes())
    scores, sets = record["scores"], record["scores"]["sets"]
    together: dict[str, Any] = sets.get("all") or next(iter(sets.values()), {})
    row |= {"samples": record["samples"], **{key: scores[key] for key in ("accuracy", "auroc_sf", "ece")}}
    row |= {"auroc": together.get("auroc"), "fpr95": together.get("fpr95_id_positive"), "seconds": record["seconds"]}
    return row | {"file": str(folder / cell.result), "raw_sha256": record["raw_sha256"]}


def show_outcome(rows: Sequence[dict[str, Any]]) -> None:
    """Table of the cells, means over several seeds, and logs of failed cells."""
    table = []
    for row in rows:
        took = f"{row['seconds'] / 60:.1f}" if row["state"] == "done" else row["state"]
        table.append({"cell": row["cell"], **{title: percent(row.get(key)) for key, title in COLUMNS.items()}})
        table[-1]["minutes"] = took
    show_rows(table, as_json=False, whole=True)
    out = Console(highlight=False)
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        if row["state"] == "done":
            groups.setdefault(row["cell"].rpartition("/")[0], []).append(row)
    for name, alike in groups.items():
        if len(alike) > 1:
            means = [f"{title} {spread([row[key] for row in alike])}" for key, title in COLUMNS.items()]
            out.print(f"{name}, {len(alike)} seeds: {', '.join(means)}", markup=False, soft_wrap=True)
    for sentence in failures(rows):
        out.print(sentence, markup=False, soft_wrap=True)


def failures(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Sentences about failed cells and their logs."""
    return [f"{row['cell']} failed, see {row['log']}: {row['why']}" for row in rows if row["state"] == "failed"]


def check_outcome(rows: Sequence[dict[str, Any]]) -> None:
    """End the command with status 1 if cells failed, 3 if the time limit left some unfinished."""
    failed = sum(row["state"] == "failed" for row in rows)
    unfinished = sum(row["state"] == "unfinished" for row in rows)
    rest = f", and {unfinished} unfinished" if unfinished else ""
    if failed:
        raise RunFailed(f"{failed} of {count(len(rows), 'cell')} failed{rest} (--retry-failed tries again)")
    if unfinished:
        raise OutOfTime(f"{unfinished} of {count(len(rows), 'cell')} unfinished (the same command goes on)")


def command_of(name: str, options: Mapping[str, Any]) -> str:
    """Command that makes the same results on any machine; empty options are left out."""
    given = [(f"--{option.replace('_', '-')}", str(value)) for option, value in options.items() if value != ""]
    return shlex.join(["uqgan", *name.split(), *(word for pair in given for word in pair)])


def percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.2f}"


def spread(values: Sequence[float | None]) -> str:
    """Mean and standard deviation in percent."""
    known = [100 * value for value in values if value is not None]
    return f"{mean(known):.2f} ± {stdev(known):.2f}" if len(known) > 1 else percent(None)
