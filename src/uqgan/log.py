"""What a run says while it trains: log.jsonl, TensorBoard where it is installed, a bar with the time left."""

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
from safetensors import safe_open

from uqgan.errors import RunFailed
from uqgan.files import disk_failure

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

LONG_RUN_SECONDS = 30.0
"""From here on a run says beforehand how long it will take."""
SETTLED = 5
"""Steps after which their time says something: the first ones compile, and capture."""
JUDGED_SECONDS = 10.0
"""Of steps by which the time left is judged: another program may slow a few of them down tenfold."""


class Stopped(RunFailed):
    """Training ended before its last step; what was reached is saved."""


class Log:
    """A run's voice and clock. Without a folder nothing is written, and nothing can be resumed."""

    def __init__(
        self,
        folder: Path | None = None,
        seed: int = 0,
        resume: bool = False,
        max_minutes: float | None = None,
        console: Console | None = None,
    ) -> None:
        self.folder, self.seed = folder, seed
        self.stopped: str | None = None
        self.rows: list[dict[str, Any]] = []
        self.seconds: dict[str, float] = {}
        self._console = console or Console(quiet=True)
        self._deadline = time.monotonic() + 60 * max_minutes if max_minutes else None
        self._progress: Progress | None = None
        self._board: SummaryWriter | None = None
        if folder:
            self._open(folder, resume)

    def _open(self, folder: Path, resume: bool) -> None:
        file = folder / "log.jsonl"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if not resume:
                shutil.rmtree(folder / "resume", ignore_errors=True)
                shutil.rmtree(folder / "tensorboard", ignore_errors=True)
            file.touch()
            # Lines after the last saved state will be written again, exactly alike.
            os.truncate(file, min(_saved_bytes(folder), file.stat().st_size))
            self.rows = [json.loads(line) for line in file.read_bytes().splitlines()]
        except OSError as error:
            raise disk_failure(file, error) from error
        if importlib.util.find_spec("tensorboard"):
            with warnings.catch_warnings(action="ignore"):
                from torch.utils.tensorboard import SummaryWriter

                self._board = SummaryWriter(str(folder / "tensorboard"))  # type: ignore[no-untyped-call]

    def write(self, row: Mapping[str, Any]) -> None:
        """One line of log.jsonl. It holds no clock, so that the same seed gives the same bytes."""
        self.rows.append(dict(row))
        values = {key: value for key, value in row.items() if key not in ("stage", "step")}
        if self._progress:
            text = "  ".join(f"{key} {value:.3g}" for key, value in headline(row).items())
            self._progress.update(self._progress.task_ids[-1], values=text)
        if self._board:
            for key, value in values.items():
                self._board.add_scalar(f"{row['stage']}/{key}", value, row["step"])  # type: ignore[no-untyped-call]
        if self.folder:
            file = self.folder / "log.jsonl"
            try:
                with file.open("ab") as lines:
                    lines.write(json.dumps(row).encode() + b"\n")
            except OSError as error:
                raise disk_failure(file, error) from error

    def flush(self) -> int:
        """Bring the log to the disk; gives its size."""
        if not self.folder:
            return 0
        with (self.folder / "log.jsonl").open("ab") as file:
            os.fsync(file.fileno())
            return file.tell()

    def say(self, sentence: str) -> None:
        """One line; names in it are taken as they are."""
        self._console.print(sentence, highlight=False, markup=False, soft_wrap=True)

    @property
    def out_of_time(self) -> bool:
        return self._deadline is not None and time.monotonic() > self._deadline

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
    return {key: value for key, value in row.items() if key not in ("stage", "step") and "." not in key}


def spell(seconds: float) -> str:
    """A duration as one says it."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def _saved_bytes(folder: Path) -> int:
    """How much of the log belongs to the last saved state."""
    sizes = [0]
    for file in (folder / "resume").glob("*.safetensors"):
        try:
            with safe_open(file, "pt") as saved:
                sizes.append(json.loads(saved.metadata()["facts"])["log_bytes"])
        except Exception as error:
            raise RunFailed(f"{file}: cannot be resumed from ({error}); delete it to start this stage anew") from error
    return max(sizes)
