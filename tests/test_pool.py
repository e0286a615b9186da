"""Workers of one machine: real ones where it matters that they are processes, else threads that play them."""

import json
import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import joblib
import pytest
import torch

from grids import LONG, cells_of, contents, tiny
from uqgan.data.tasks import load_task
from uqgan.errors import RunFailed, UsageError
from uqgan.grid import pool
from uqgan.grid.cells import FAILED, Cell, has_failed, is_done, plan_cells, run_cell
from uqgan.grid.pool import Crew, Pool, Worker
from uqgan.grid.schedule import MOST_LOSSES, Event, Schedule, Terms
from uqgan.grid.worker import OUTPUT, Ended, Post, Ready, run

CPU = torch.device("cpu")
GB = 2**30


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny(tmp_path_factory.mktemp("data"))


@dataclass
class Heard:
    """Events of a grid, in the order in which they came."""

    events: list[Event] = field(default_factory=list)
    then: Callable[[Event], None] = lambda _: None

    def __call__(self, event: Event) -> None:
        self.events.append(event)
        self.then(event)

    def states(self, cell: Cell) -> list[str]:
        """What became of a cell, without repetitions."""
        found: list[str] = []
        for event in self.events:
            if event.cell == cell and event.state not in found[-1:]:
                found.append(event.state)
        return found


def at_work(event: Event) -> bool:
    """Whether a cell is in the midst of its training."""
    return event.state == "running" and event.step > 1


def record_of(cell: Cell, root: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((root / cell.name / cell.result).read_bytes())
    return found


def test_workers_give_the_results_of_runs_alone_and_one_that_fails_stops_no_other(task: str, tmp_path: Path) -> None:
    """The oracle has no outliers to train on."""
    cells = cells_of(task, ["one-vs-all", "max-softmax", "entropy"], (0, 1)) + cells_of(task, ["ova-oracle"])
    *good, bad = cells
    heard, root = Heard(), tmp_path / "runs"
    Pool(2)(Schedule.of(cells), Terms(root, "cpu"), heard)
    assert all(heard.states(cell) == ["running", "done"] for cell in good)
    assert heard.states(bad) == ["running", "failed"]
    assert has_failed(bad, root)
    assert "has no outliers to train One-vs-All Oracle on" in (root / bad.name / FAILED).read_text()
    assert heard.events[-1].worker
    assert not (root / OUTPUT).exists(), "nothing was printed"
    for cell in good:
        run_cell(cell, tmp_path / "alone", load_task(task), CPU)
        ours, alone = record_of(cell, root), record_of(cell, tmp_path / "alone")
        assert (ours["scores"], ours["raw_sha256"]) == (alone["scores"], alone["raw_sha256"])
        about = json.loads((root / cell.name / "about.json").read_text())
        assert about["threads"] == 1
        assert about["command"] == cell.command("cpu")
    twins = {cell.method: record_of(cell, root)["reused"] for cell in good if cell.seed == 0}
    assert sorted(map(bool, (twins["max-softmax"], twins["entropy"]))) == [False, True], "one trained, one took it"


def test_a_killed_worker_loses_nothing_but_time(task: str, tmp_path: Path) -> None:
    """SIGKILL in the midst of a training; a cell that is done before stays as it is."""
    (first,) = cells_of(task, ["max-softmax"])
    (second,) = plan_cells([task], ["one-vs-all"], [0], [{"one_vs_all.epochs": 100, "fresh": True}])
    killed: list[int] = []
    before: dict[str, tuple[int, bytes]] = {}

    def then(event: Event) -> None:
        if event.cell == second and at_work(event) and not killed:
            before.update(contents(tmp_path / first.name))
            killed.append(int(event.worker))
            os.kill(killed[0], signal.SIGKILL)

    heard = Heard(then=then)
    Pool(1)(Schedule([first, second]), Terms(tmp_path, "cpu"), heard)
    assert killed
    assert heard.states(first) == ["running", "done"]
    assert heard.states(second) == ["running", "waiting", "running", "done"]
    (lost,) = (event for event in heard.events if event.state == "waiting")
    assert lost.text == "its process was ended by SIGKILL; it is tried again"
    assert before
    assert contents(tmp_path / first.name) == before
    run_cell(second, tmp_path / "alone", load_task(task), CPU)
    assert record_of(second, tmp_path)["raw_sha256"] == record_of(second, tmp_path / "alone")["raw_sha256"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_saves_what_runs_and_the_same_grid_goes_on(number: int, task: str, tmp_path: Path) -> None:
    (cell,) = plan_cells([task], ["one-vs-all"], [0], [LONG])
    (other,) = cells_of(task, ["max-softmax"])
    sent: list[bool] = []

    def then(event: Event) -> None:
        if at_work(event) and not sent:
            sent.append(True)
            os.kill(os.getpid(), number)

    heard = Heard(then=then)
    with pytest.raises(KeyboardInterrupt) as error:
        Pool(1)(Schedule([cell, other]), Terms(tmp_path, "cpu"), heard)
    assert error.value.args == (number,)
    assert heard.states(cell) == ["running", "stopped"]
    assert heard.states(other) == []
    saved = list((tmp_path / cell.name / "resume").glob("*.safetensors"))
    assert saved
    assert not (tmp_path / cell.name / ".lock").exists()
    assert not has_failed(cell, tmp_path)


def test_cells_that_outlast_the_time_limit_are_told_to_stop(
    task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The parent's clock leaps ahead, that of the worker does not."""
    (cell,) = plan_cells([task], ["one-vs-all"], [0], [LONG])
    (other,) = cells_of(task, ["max-softmax"])
    leap: list[float] = [0.0]

    class Clock:
        @staticmethod
        def monotonic() -> float:
            return time.monotonic() + leap[0]

    def then(event: Event) -> None:
        if at_work(event):
            leap[0] = 3600.0

    monkeypatch.setattr(pool, "time", Clock)
    heard = Heard(then=then)
    Pool(1)(Schedule([cell, other]), Terms(tmp_path, "cpu", max_minutes=30), heard)
    assert heard.states(cell) == ["running", "stopped"]
    assert "stopped by SIGTERM at step" in heard.events[-1].text
    assert heard.states(other) == [], "none begins after the limit"
    assert list((tmp_path / cell.name / "resume").glob("*.safetensors"))


def test_the_cores_are_shared_out_among_the_processes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    started: list[Post] = []
    seen: list[dict[str, str]] = []

    class Context:
        Pipe = staticmethod(Pipe)

        @staticmethod
        def Process(target: object, args: tuple[Connection, Post]) -> Any:  # noqa: N802
            started.append(args[1])
            seen_by = lambda: seen.append(dict(os.environ))  # noqa: E731
            return type("Process", (), {"start": staticmethod(seen_by), "pid": 1})

    monkeypatch.setattr(pool, "get_context", lambda _: Context)
    monkeypatch.setattr(joblib, "cpu_count", lambda: 8)
    monkeypatch.delenv("OMP_NUM_THREADS")
    for size, threads in ((1, 8), (3, 2), (8, 1), (20, 1)):
        worker = pool.start("cpu", Terms(tmp_path), size, {"EXTRA": "1"})
        worker.pipe.close()
        assert started[-1].threads == threads
        assert seen[-1]["OMP_NUM_THREADS"] == seen[-1]["LOKY_MAX_CPU_COUNT"] == str(threads)
        assert seen[-1]["TORCHINDUCTOR_COMPILE_THREADS"] == str(threads)
        assert seen[-1]["EXTRA"] == "1"
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    pool.start("cpu", Terms(tmp_path), 8, {}).pipe.close()
    assert started[-1].threads == 3, "who sets it is obeyed"
    assert "LOKY_MAX_CPU_COUNT" not in os.environ or "EXTRA" not in os.environ


# Threads in the place of processes.


class Player:
    """A thread with the face of a process."""

    def __init__(self, body: Callable[[Connection], int | None], pipe: Connection) -> None:
        self.pid, self.exitcode = None, 0
        self.sentinel, self._end = os.pipe()
        self._thread = threading.Thread(target=self._run, args=(body, pipe))
        self._thread.start()

    def _run(self, body: Callable[[Connection], int | None], pipe: Connection) -> None:
        try:
            self.exitcode = body(pipe) or 0
        except (EOFError, OSError):
            pass
        finally:
            pipe.close()
            os.close(self._end)

    def join(self, _: float) -> None:
        self._thread.join()
        if self.sentinel >= 0:
            os.close(self.sentinel)
            self.sentinel = -1

    def kill(self) -> None:
        pass


Answer = Callable[[Cell], Ended | int]


def play(
    monkeypatch: pytest.MonkeyPatch,
    cells: list[Cell],
    answer: Answer,
    root: Path,
    size: int = 1,
    memory: int = 0,
    terms: Terms | None = None,
    devices: list[str] | None = None,
    peaks: dict[tuple[str, str], int] | None = None,
) -> Heard:
    """Run cells by players: `answer` says how each ends, by a number that its process dies with that status."""
    names = iter(range(1000))

    def start(device: str, *_: object) -> Worker:
        here, there = Pipe()

        def body(pipe: Connection) -> int | None:
            pipe.send(Ready(memory))
            while True:
                cell, _ = pipe.recv()
                ended = answer(cell)
                if isinstance(ended, int):
                    return ended
                pipe.send(ended)

        return Worker(str(next(names)), device, Player(body, there), here)  # type: ignore[arg-type]

    monkeypatch.setattr(pool, "start", start)
    heard = Heard()
    Crew(Schedule.of(cells), terms or Terms(root), heard, size, devices or ["cpu"], {}, peaks=peaks or {}).run()
    return heard


def gaussians(n: int, method: str = "uqgan") -> list[Cell]:
    return [Cell("gaussians", method, seed) for seed in range(n)]


def test_a_cell_whose_process_dies_again_and_again_failed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    bad, *others = gaussians(4)
    heard = play(monkeypatch, [bad, *others], lambda cell: -9 if cell == bad else Ended("done"), tmp_path, 2)
    assert heard.states(bad) == ["running", "waiting"] * (MOST_LOSSES - 1) + ["running", "failed"]
    assert all(heard.states(cell) == ["running", "done"] for cell in others)
    assert "its process was ended by SIGKILL" in (tmp_path / bad.name / FAILED).read_text()


def test_a_cell_that_another_brought_down_is_tried_again_and_ends(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cells, times = gaussians(4), dict[Cell, int]()

    def answer(cell: Cell) -> Ended:
        times[cell] = times.get(cell, 0) + 1
        return Ended("lost", "CUDA error: unspecified launch failure") if times[cell] == 1 else Ended("done")

    heard = play(monkeypatch, cells, answer, tmp_path, 4)
    assert all(heard.states(cell) == ["running", "waiting", "running", "done"] for cell in cells)
    assert not any(has_failed(cell, tmp_path) for cell in cells)


def test_a_cell_without_memory_is_tried_beside_fewer_then_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cells, running, beside = gaussians(40), set[Cell](), list[int]()
    greedy, lock, together = cells[0], threading.Lock(), threading.Barrier(8)
    met: list[bool] = []

    def answer(cell: Cell) -> Ended:
        with lock:
            running.add(cell)
        if not met:
            together.wait(10)
            met.append(True)
        time.sleep(0.02)
        with lock:
            others = len(running) - 1
            running.discard(cell)
            if cell == greedy:
                beside.append(others)
        return Ended("no memory", "CUDA out of memory") if cell == greedy and others else Ended("done")

    heard = play(monkeypatch, cells, answer, tmp_path, 8)
    assert heard.states(greedy)[-1] == "done"
    assert beside[1] <= 3
    assert beside[-1] == 0
    assert all(heard.states(cell) == ["running", "done"] for cell in cells[1:])


def test_a_cell_that_has_no_memory_alone_failed_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (cell,) = gaussians(1)
    heard = play(monkeypatch, [cell], lambda _: Ended("no memory", "uqgan.batch_size = 256: out of memory"), tmp_path)
    assert heard.states(cell) == ["running", "failed"]
    assert "out of memory" in (tmp_path / cell.name / FAILED).read_text()


@pytest.mark.parametrize(("gigabytes", "most"), [(10, 8), (20, 6), (70, 1), (200, 1), (0, 8)])
def test_cells_on_a_gpu_take_no_more_than_its_memory(
    gigabytes: int, most: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """On 140 GB, 90 % of which are for cells. Of none is known what it takes: each counts as a worker's share."""
    cells, running, seen, lock = gaussians(16), set[Cell](), list[int](), threading.Lock()

    def answer(cell: Cell) -> Ended:
        with lock:
            running.add(cell)
            seen.append(len(running))
        time.sleep(0.05)
        with lock:
            running.discard(cell)
        return Ended("done", peak=gigabytes * GB)

    known = {("gaussians", "uqgan"): gigabytes * GB} if gigabytes else {}
    heard = play(monkeypatch, cells, answer, tmp_path, 8, 140 * GB, devices=["cuda"], peaks=known)
    assert all(heard.states(cell) == ["running", "done"] for cell in cells)
    assert max(seen) <= most
    assert max(seen) >= min(2, most)


def test_gpus_are_shared_out_evenly(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    began: list[str] = []
    original = Worker.__init__

    def noted(self: Worker, name: str, device: str, *rest: Any) -> None:
        began.append(device)
        original(self, name, device, *rest)

    monkeypatch.setattr(Worker, "__init__", noted)
    play(monkeypatch, gaussians(8), lambda _: Ended("done"), tmp_path, 4, devices=["cuda:0", "cuda:1"])
    assert sorted(began) == ["cuda:0", "cuda:0", "cuda:1", "cuda:1"]


def test_no_more_processes_start_than_there_are_cells(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    heard = play(monkeypatch, gaussians(2), lambda _: Ended("done"), tmp_path, 50)
    assert len({event.worker for event in heard.events}) <= 2


def test_a_worker_that_dies_before_it_can_begin_ends_the_grid_with_a_sentence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def start(device: str, *_: object) -> Worker:
        here, there = Pipe()
        return Worker("0", device, Player(lambda _: 1, there), here)  # type: ignore[arg-type]

    monkeypatch.setattr(pool, "start", start)
    with pytest.raises(RunFailed, match="workers end before they can begin, ended with status 1"):
        Crew(Schedule.of(gaussians(1)), Terms(tmp_path), Heard(), 1, ["cpu"], {}).run()


def test_a_worker_stays_with_what_it_has_loaded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    cells = [Cell(task, method, seed) for seed in range(3) for task in ("gaussians", "moons") for method in METHODS]
    heard = play(monkeypatch, cells, lambda _: Ended("done"), tmp_path)
    tasks = [event.cell.task for event in heard.events if event.state == "running"]
    assert sum(one != other for one, other in pairwise(tasks)) == 1


METHODS = ("uqgan", "one-vs-all", "entropy")


# What a worker makes of errors.


def ended_by(error: Exception, root: Path) -> Ended:
    def load(_: str) -> Any:
        raise error

    return run(Cell("gaussians", "uqgan"), None, Post(Terms(root), "cpu", 1, os.getppid()), CPU, load, Heard())


@pytest.mark.parametrize(
    "text",
    [
        "CUDA error: an illegal memory access was encountered",
        "CUDA error: the remote procedural call between the MPS server and the MPS client failed",
        "CUBLAS_STATUS_EXECUTION_FAILED when calling cublasGemmEx",
        "cuDNN error: CUDNN_STATUS_MAPPING_ERROR",
        "Triton Error [CUDA]: unspecified launch failure",
    ],
)
def test_an_error_after_which_a_gpu_cannot_be_used_is_no_fault_of_the_cell(
    text: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    ended = ended_by(RuntimeError(text), tmp_path)
    assert (ended.state, ended.text) == ("lost", text)
    assert text in capfd.readouterr().err, "its traceback is kept in the workers' output"
    assert not has_failed(Cell("gaussians", "uqgan"), tmp_path)


def chained(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        MemoryError(),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"),
        chained(RunFailed("uqgan.batch_size = 256: out of memory (try 128)"), torch.OutOfMemoryError("CUDA")),
        RuntimeError("CUDA error: out of memory"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_running_out_of_memory_may_be_the_neighbours_fault(error: Exception, tmp_path: Path) -> None:
    assert ended_by(error, tmp_path).state == "no memory"


@pytest.mark.parametrize(
    ("error", "sentence", "log"),
    [
        (UsageError("classes = 7-3: must be so"), "classes = 7-3: must be so", "classes = 7-3: must be so\n"),
        (RunFailed("uqgan: loss = nan: training diverged"), "uqgan: loss = nan", "uqgan: loss = nan: training"),
        (ValueError("two\nlines"), "ValueError: two", "Traceback (most recent call last)"),
    ],
)
def test_other_errors_are_the_cells_own_and_kept_in_its_folder(
    error: Exception, sentence: str, log: str, tmp_path: Path
) -> None:
    ended = ended_by(error, tmp_path)
    assert ended.state == "failed"
    assert ended.text.startswith(sentence)
    assert (tmp_path / "gaussians/uqgan/seed-0" / FAILED).read_text().startswith(log)


def test_a_worker_whose_parent_is_gone_does_not_begin(tmp_path: Path) -> None:
    post = Post(Terms(tmp_path), "cpu", 1, parent=1 if os.getppid() != 1 else 2)
    ended = run(Cell("gaussians", "uqgan"), None, post, CPU, load_task, Heard())
    assert ended.state == "stopped"
    assert not is_done(Cell("gaussians", "uqgan"), tmp_path)
