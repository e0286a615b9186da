"""Log of a run in training: log.jsonl, TensorBoard where it is installed, progress, signals."""

import copy
import importlib.util
import json
import math
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

from uqgan.checkpoint import RESUME, Stopped, saved_log_bytes
from uqgan.errors import Interrupted, RunFailed
from uqgan.files import disk_failure
from uqgan.progress import Pace, shown, spell

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

LOG = "log.jsonl"
PLACE = ("stage", "member", "step")
"""Keys that identify a row."""
LONG_RUN_SECONDS = 30.0
"""Least expected duration of a stage for which it is announced."""
JUDGED_SECONDS = 10.0
"""Least duration of the steps behind an estimate; other programs may slow a few of them down tenfold."""


class Log:
    """Log, progress and time limit of a run. Without a folder nothing is written, and nothing can be resumed.

    A log of a `child` process is out of time as soon as the parent process is gone.
    """

    def __init__(
        self,
        folder: Path | None = None,
        seed: int = 0,
        resume: bool = False,
        max_minutes: float | None = None,
        console: Console | None = None,
        child: bool = False,
    ) -> None:
        self.folder, self.seed = folder, seed
        self.member: int | None = None
        self.stopped: str | None = None
        self.signal = 0
        """Number of the signal that stopped training; 0 for none."""
        self.rows: list[dict[str, Any]] = []
        self.seconds: dict[str, float] = {}
        self.reused: list[str] = []
        self.resumed = False
        """Whether the run goes on from saved states."""
        self._console = console or Console(quiet=True)
        self._deadline = time.monotonic() + 60 * max_minutes if max_minutes else None
        self._pace: Pace | None = None
        self._parent = os.getppid() if child else 0
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
            # Rows after the last saved state will be written again, identically.
            os.truncate(file, min(saved_log_bytes(folder), file.stat().st_size))
            self.rows = [json.loads(line) for line in file.read_bytes().splitlines()]
        except OSError as error:
            raise disk_failure(file, error) from error
        except ValueError:
            raise RunFailed(f"{file}: damaged, cannot be gone on with (--overwrite starts the run anew)") from None
        self.resumed = resume and any((folder / RESUME).glob("*.safetensors"))
        if resume and not self.resumed:
            self.say(f"{folder}: nothing was saved to go on with: starting anew")
        if importlib.util.find_spec("tensorboard"):
            with warnings.catch_warnings(action="ignore"):
                from torch.utils.tensorboard import SummaryWriter

                self._board = SummaryWriter(str(folder / "tensorboard"))  # type: ignore[no-untyped-call]

    def of_member(self, member: int, seed: int) -> "Log":
        """Log of a member of an ensemble, with its seed, its stages, and its number in every row."""
        log = copy.copy(self)
        log.member, log.seed = member, seed
        return log

    def label(self, stage: str) -> str:
        """Name of a stage that is unique among members."""
        return stage if self.member is None else f"{stage}.member-{self.member}"

    @property
    def member_rows(self) -> list[dict[str, Any]]:
        """Rows of this member, without its number."""
        rows = [row for row in self.rows if row.get("member") == self.member]
        return [{key: value for key, value in row.items() if key != "member"} for row in rows]

    def state_file(self, stage: str) -> Path | None:
        """File of the saved state of a stage; None without a folder."""
        return self.folder / RESUME / f"{self.label(stage)}.safetensors" if self.folder else None

    @property
    def resumes(self) -> bool:
        """Whether a saved state of this member exists."""
        file = self.state_file("*")
        return file is not None and any(file.parent.glob(file.name))

    @property
    def has_trained(self) -> bool:
        """Whether a stage has been trained by this process, at least in part."""
        return bool(self.seconds.keys() - set(self.reused))

    def write(self, row: Mapping[str, Any]) -> None:
        """Write a row of log.jsonl, without times, so that the same seed gives the same bytes."""
        if self.member is not None:
            row = {"stage": row["stage"], "member": self.member, **row}
        self.rows.append(dict(row))
        values = {key: value for key, value in row.items() if key not in PLACE}
        if self._pace:
            self._pace.values = headline(row)
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
        """Flush the log to the disk, and return its size."""
        if not self.folder:
            return 0
        with (self.folder / LOG).open("ab") as file:
            os.fsync(file.fileno())
            return file.tell()

    def say(self, sentence: str) -> None:
        """Print one line, without markup."""
        self._console.print(sentence, highlight=False, markup=False, soft_wrap=True)

    @property
    def out_of_time(self) -> bool:
        late = self._deadline is not None and time.monotonic() > self._deadline
        return late or (self._parent > 0 and os.getppid() != self._parent)

    def ended(self, rest: str) -> RunFailed:
        """Error for training that stopped without a result; `rest` ends the sentence on where it stopped."""
        sentence = f"{self.stopped}, {rest}"
        return Interrupted(sentence, self.signal) if self.signal else Stopped(sentence)

    @property
    def minutes_left(self) -> float | None:
        """Minutes until the time limit, always positive; None without a limit."""
        return None if self._deadline is None else max(1e-9, (self._deadline - time.monotonic()) / 60)

    @contextmanager
    def bar(self, name: str, done: int, total: int) -> Iterator[Callable[[], None]]:
        """Show progress and record the duration in `seconds`; yields a function to call after each step."""
        pace, announced = Pace(name, done, total), False
        self._pace = pace

        def advance() -> None:
            nonlocal announced
            pace.advance()
            redraw()
            if not announced and pace.judged > JUDGED_SECONDS:
                announced = True
                self._announce(pace)

        try:
            with shown(pace, self._console) as redraw:
                yield advance
        finally:
            self._pace = None
            self.seconds[name] = time.monotonic() - pace.start

    def _announce(self, pace: Pace) -> None:
        now = time.monotonic()
        seconds = now - pace.start + pace.left
        if seconds < LONG_RUN_SECONDS:
            return
        short = self._deadline is not None and now + pace.left > self._deadline
        self.say(f"{pace.name}: about {spell(seconds)}" + (", more than --max-minutes allows" if short else ""))

    def close(self) -> None:
        if self._board:
            self._board.close()  # type: ignore[no-untyped-call]


@contextmanager
def interrupts() -> Iterator[Callable[[], int]]:
    """Defer Ctrl-C and SIGTERM to the end of a step; a second one interrupts it.

    Yields a function to call between steps, which returns the number of the signal, 0 for none.
    """
    got = 0
    if threading.current_thread() is not threading.main_thread():
        yield lambda: got
        return

    def note(number: int, _: Any) -> None:
        nonlocal got
        if got:
            raise KeyboardInterrupt(number)
        got = number

    previous = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: got
    finally:
        for number, before in previous.items():
            signal.signal(number, signal.SIG_DFL if before is None else before)


def read_log(file: Path) -> tuple[list[dict[str, Any]], tuple[str, ...]]:
    """Rows of a run's log; if it cannot be read none, with a message, as only the curves need them."""
    try:
        rows = [dict(json.loads(line)) for line in file.read_bytes().splitlines()]
        if not all(map(is_row, rows)):
            raise ValueError("rows without a place, or values that are no numbers")
        return rows, ()
    except (OSError, ValueError, TypeError) as error:
        why = (error.strerror or str(error)).lower() if isinstance(error, OSError) else "damaged"
        return [], (f"{file}: {why}; the run is read without its log, so it has no curves",)


def is_row(row: Mapping[str, Any]) -> bool:
    """Whether a row has its stage and step, and finite numbers beside them."""
    numbers = [value for key, value in row.items() if key != "stage"]
    in_place = isinstance(row.get("stage"), str) and isinstance(row.get("step"), int)
    return in_place and all(type(value) in (int, float) and abs(value) < math.inf for value in numbers)


def headline(row: Mapping[str, Any]) -> dict[str, Any]:
    """Losses and validation results of a row, without details, which have a dot in their name."""
    return {key: value for key, value in row.items() if key not in PLACE and "." not in key}
