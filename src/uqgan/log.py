"""What a run says while it trains: log.jsonl, TensorBoard where it is installed, a bar with the time left."""

import copy
import importlib.util
import json
import os
import shutil
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from uqgan.checkpoint import RESUME, saved_log_bytes
from uqgan.files import disk_failure

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

LOG = "log.jsonl"
PLACE = ("stage", "member", "step")
"""Keys of a row that say where it belongs."""
LONG_RUN_SECONDS = 30.0
"""Stages longer than this announce their duration."""
SETTLED = 5
"""Steps left out of the estimate of the time left: the first ones compile, and capture."""
JUDGED_SECONDS = 10.0
"""Seconds of steps that the estimate is based on: another program may slow a few of them down tenfold."""


class Log:
    """Log, progress and time limit of a run. Without a folder nothing is written, and nothing can be resumed."""

    def __init__(
        self,
        folder: Path | None = None,
        seed: int = 0,
        resume: bool = False,
        max_minutes: float | None = None,
        console: Console | None = None,
    ) -> None:
        self.folder, self.seed = folder, seed
        self.member: int | None = None
        self.stopped: str | None = None
        self.rows: list[dict[str, Any]] = []
        self.seconds: dict[str, float] = {}
        self.reused: list[str] = []
        self._console = console or Console(quiet=True)
        self._deadline = time.monotonic() + 60 * max_minutes if max_minutes else None
        self._progress: Progress | None = None
        self._board: SummaryWriter | None = None
        if folder:
            self._open(folder, resume)

    def _open(self, folder: Path, resume: bool) -> None:
        file = folder / LOG
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if not resume:
                shutil.rmtree(folder / RESUME, ignore_errors=True)
                shutil.rmtree(folder / "tensorboard", ignore_errors=True)
            file.touch()
            # Lines after the last saved state will be written again, exactly alike.
            os.truncate(file, min(saved_log_bytes(folder), file.stat().st_size))
            self.rows = [json.loads(line) for line in file.read_bytes().splitlines()]
        except OSError as error:
            raise disk_failure(file, error) from error
        if importlib.util.find_spec("tensorboard"):
            with warnings.catch_warnings(action="ignore"):
                from torch.utils.tensorboard import SummaryWriter

                self._board = SummaryWriter(str(folder / "tensorboard"))  # type: ignore[no-untyped-call]

    def of_member(self, member: int, seed: int) -> "Log":
        """The same log for a member of an ensemble: with a seed and stages of its own, and its rows labelled."""
        log = copy.copy(self)
        log.member, log.seed = member, seed
        return log

    def label(self, stage: str) -> str:
        """A stage's name that no other member has."""
        return stage if self.member is None else f"{stage}.member-{self.member}"

    @property
    def own_rows(self) -> list[dict[str, Any]]:
        """The rows of this member, without its label."""
        rows = [row for row in self.rows if row.get("member") == self.member]
        return [{key: value for key, value in row.items() if key != "member"} for row in rows]

    def state_file(self, stage: str) -> Path | None:
        """Where a stage saves the state to resume from."""
        return self.folder / RESUME / f"{self.label(stage)}.safetensors" if self.folder else None

    @property
    def resumes(self) -> bool:
        """Whether a stage of this member was begun before."""
        file = self.state_file("*")
        return file is not None and any(file.parent.glob(file.name))

    def write(self, row: Mapping[str, Any]) -> None:
        """One line of log.jsonl. It holds no clock, so that the same seed gives the same bytes."""
        if self.member is not None:
            row = {"stage": row["stage"], "member": self.member, **row}
        self.rows.append(dict(row))
        values = {key: value for key, value in row.items() if key not in PLACE}
        if self._progress:
            text = "  ".join(f"{key} {value:.3g}" for key, value in headline(row).items())
            self._progress.update(self._progress.task_ids[-1], values=text)
        if self._board:
            for key, value in values.items():
                self._board.add_scalar(f"{self.label(row['stage'])}/{key}", value, row["step"])  # type: ignore[no-untyped-call]
        if self.folder:
            file = self.folder / LOG
            try:
                with file.open("ab") as lines:
                    lines.write(json.dumps(row).encode() + b"\n")
            except OSError as error:
                raise disk_failure(file, error) from error

    def flush(self) -> int:
        """Flush the log to the disk; returns its size."""
        if not self.folder:
            return 0
        with (self.folder / LOG).open("ab") as file:
            os.fsync(file.fileno())
            return file.tell()

    def say(self, sentence: str) -> None:
        """One line; names in it are taken as they are."""
        self._console.print(sentence, highlight=False, markup=False, soft_wrap=True)

    @property
    def out_of_time(self) -> bool:
        return self._deadline is not None and time.monotonic() > self._deadline

    @property
    def minutes_left(self) -> float | None:
        """Minutes until the time limit, at least a moment; None without one."""
        return None if self._deadline is None else max(1e-9, (self._deadline - time.monotonic()) / 60)

    @contextmanager
    def bar(self, name: str, done: int, total: int) -> Iterator[Callable[[], None]]:
        """A progress bar; call what it gives after each step. `seconds` keeps how long this process took for all."""
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        start, steps, told = time.monotonic(), 0, False
        settled = start
        with Progress(
            *columns, TextColumn("{task.fields[values]}"), console=self._console, disable=self._console.quiet
        ) as progress:
            task = progress.add_task(name, total=total, completed=done, values="")
            self._progress = progress

            def advance() -> None:
                nonlocal steps, told, settled
                steps += 1
                progress.advance(task)
                if told:
                    return
                now = time.monotonic()
                if steps <= SETTLED:
                    settled = now
                elif now - settled > JUDGED_SECONDS:
                    told = True
                    each = (now - settled) / (steps - SETTLED)
                    self._announce(name, start, settled - start + each * (total - done - SETTLED))

            try:
                yield advance
            finally:
                self._progress = None
                self.seconds[name] = time.monotonic() - start

    def _announce(self, name: str, start: float, seconds: float) -> None:
        if seconds < LONG_RUN_SECONDS:
            return
        short = self._deadline is not None and start + seconds > self._deadline
        self.say(f"{name}: about {spell(seconds)}" + (", more than --max-minutes allows" if short else ""))

    def close(self) -> None:
        if self._board:
            self._board.close()  # type: ignore[no-untyped-call]


@contextmanager
def interrupts() -> Iterator[Callable[[], bool]]:
    """Ctrl-C becomes a question to ask between steps, so that a step is never cut in half; a second one cuts."""
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked.is_set
        return

    def note(*_: Any) -> None:
        if asked.is_set():
            raise KeyboardInterrupt
        asked.set()

    previous = signal.signal(signal.SIGINT, note)
    try:
        yield asked.is_set
    finally:
        signal.signal(signal.SIGINT, previous)


def headline(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row's losses and validation results; names with a dot are details, too many for a bar or one figure."""
    return {key: value for key, value in row.items() if key not in PLACE and "." not in key}


def spell(seconds: float) -> str:
    """Duration as text."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
