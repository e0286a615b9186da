"""Runs that are stopped, killed, gone on with, or disturbed by another process."""

import errno
import fcntl
import io
import json
import os
import signal
import subprocess
import sys
import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console
from torch import nn

import uqgan
from uqgan.acceleration import adam
from uqgan.checkpoint import Best
from uqgan.cli import main
from uqgan.config import load_config
from uqgan.data.tasks import Task
from uqgan.demo import finish
from uqgan.errors import Interrupted, RunFailed, UsageError
from uqgan.files import alone_in
from uqgan.log import Log
from uqgan.training import Stage, accuracy_on

QUICK = load_config(
    "moons", overrides={"fresh": True, "uqgan": {"iterations": 6, "batch_size": 8, "validate_every": 2}}
)
SIGNALS = [(signal.SIGINT, "stopped by hand", 130), (signal.SIGTERM, "stopped by SIGTERM", 143)]


def stage(log: Log, total: int = 10, best: Best | None = None, name: str = "test") -> Stage:
    net = nn.Linear(1, 1)
    return Stage(log, name, total, {"net": net, "optimizer": adam(net), "best": best or Best(net)})


def heard(folder: Path, resume: bool = False) -> tuple[Log, io.StringIO]:
    words = io.StringIO()
    return Log(folder, resume=resume, console=Console(file=words, width=200)), words


@pytest.fixture(scope="module")
def task() -> Task:
    moons, few = uqgan.load_task("moons"), torch.arange(200)
    ood = {name: x[:50] for name, x in moons.ood.items()}
    return replace(moons, train=moons.train[few], validation=moons.validation[few], test=moons.test[few], ood=ood)


# One process per folder


@pytest.mark.parametrize("how", [{}, {"overwrite": True}, {"resume": True}])
def test_a_folder_that_another_process_trains_into_is_refused_by_its_name(
    task: Task, tmp_path: Path, how: dict[str, bool]
) -> None:
    run = tmp_path / "run"
    uqgan.fit("uqgan", task, config=QUICK, folder=run, quiet=True)
    before = {file: file.read_bytes() for file in run.rglob("*") if file.is_file()}
    sentence = rf"run: process {os.getpid()} \(.+\) is training into it \(wait for it, or choose another folder\)"
    with alone_in(run, "training into it"), pytest.raises(UsageError, match=sentence):
        uqgan.fit("uqgan", task, config=QUICK, folder=run, quiet=True, **how)
    assert {file: file.read_bytes() for file in run.rglob("*") if file.is_file()} == before


HOLD = """
import sys, time
from pathlib import Path
from uqgan.files import alone_in
with alone_in(Path(sys.argv[1]), "training into it"):
    print("in", flush=True)
    time.sleep(600)
"""


def test_a_killed_process_lets_go_of_its_folder(tmp_path: Path) -> None:
    holder = subprocess.Popen([sys.executable, "-c", HOLD, tmp_path / "run"], stdout=subprocess.PIPE, text=True)
    assert holder.stdout
    assert holder.stdout.readline() == "in\n"
    with pytest.raises(UsageError, match=f"process {holder.pid} "), alone_in(tmp_path / "run", "training into it"):
        pass
    holder.kill()
    holder.communicate(timeout=60)
    with alone_in(tmp_path / "run", "training into it"):
        pass
    assert not (tmp_path / "run").exists(), "neither the lock nor an empty folder may stay"


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_where_the_disk_has_no_locks_training_goes_on(
    tmp_path: Path, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(code, "no locks")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with alone_in(tmp_path / "run", "training into it"), alone_in(tmp_path / "run", "training into it"):
        (tmp_path / "run" / "file").touch()
    assert [file.name for file in (tmp_path / "run").iterdir()] == ["file"]


# Stopped, and gone on with


def interrupted_at_validation(monkeypatch: pytest.MonkeyPatch, n: int, number: int = signal.SIGINT) -> None:
    """The n-th validation is disturbed by a signal."""
    seen: list[int] = []

    def disturbed(*arguments: object) -> float:
        seen.append(1)
        if len(seen) == n:
            os.kill(os.getpid(), number)
        return accuracy_on(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr("uqgan.methods.uqgan.accuracy_on", disturbed)


@pytest.mark.parametrize(("number", "words", "status"), SIGNALS)
def test_a_signal_after_a_validation_keeps_the_best_classifier_and_the_run_goes_on_to_the_same_weights(
    number: int, words: str, status: int, task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = uqgan.fit("uqgan", task, config=QUICK, quiet=True)
    with monkeypatch.context() as patch:
        interrupted_at_validation(patch, 2, number)
        where = f"{words} at step 4 of 6 of uqgan, the best classifier so far is kept in .*; --resume goes on"
        with pytest.raises(Interrupted, match=where) as error:
            uqgan.fit("uqgan", task, config=QUICK, folder=tmp_path, quiet=True)
    assert error.value.status == status
    stopped = uqgan.load(tmp_path)
    assert stopped.record.about["finished"] is False
    assert stopped.evaluate(resamples=0)["scores"]["accuracy"] >= 0
    rest = uqgan.fit("uqgan", task, config=QUICK, folder=tmp_path, resume=True, quiet=True)
    assert rest.record.about["finished"] is True
    assert rest.record.log == whole.record.log
    state, wanted = rest.record.predictor.state_dict(), whole.record.predictor.state_dict()
    assert all(torch.equal(state[key], wanted[key]) for key in wanted)


def test_an_ensemble_stopped_in_its_first_member_trains_no_second_one(
    task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def disturbed(*arguments: object) -> float:
        os.kill(os.getpid(), signal.SIGINT)
        return accuracy_on(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr("uqgan.training.accuracy_on", disturbed)
    sentence = r"stopped by hand at step 1 of 2 of cross_entropy.member-0, before all members are trained \(--resume"
    with pytest.raises(Interrupted, match=sentence):
        uqgan.fit("ensemble", task, folder=tmp_path, epochs=2, batch_size=200, fresh=True, quiet=True)
    assert [file.name for file in (tmp_path / "resume").iterdir()] == ["cross_entropy.member-0.safetensors"]


def test_work_between_validations_is_saved_every_twenty_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    monkeypatch.setattr("uqgan.training.time.monotonic", lambda: clock[0])
    begun, saved = Log(tmp_path), []
    for step in stage(begun, 30):
        saved.append(stage(Log(tmp_path, resume=True), 30).done)
        clock[0] += 7.0
        assert clock[0] - 7.0 * saved[step] < 20 + 2 * 7
    assert saved[-1] == 27
    assert begun.rows == [], "no validation took place"


def test_resuming_says_from_which_step_it_goes_on_or_that_it_starts_anew(tmp_path: Path) -> None:
    stage(Log(tmp_path)).save()
    log, words = heard(tmp_path, resume=True)
    leg = stage(log)
    leg.done = 4
    leg.save()
    log, words = heard(tmp_path, resume=True)
    stage(log)
    assert words.getvalue() == "going on at step 4 of 10 of test\n"
    _, words = heard(tmp_path / "new", resume=True)
    assert words.getvalue() == f"{tmp_path / 'new'}: nothing was saved to go on with: starting anew\n"


@pytest.mark.parametrize(
    ("done", "sentence"),
    [(10, "nothing was saved of second: starting at step 0 of 5"), (4, "going on at step 4 of 10 of first")],
)
def test_resuming_in_a_later_stage_says_so_unless_an_earlier_one_goes_on(
    done: int, sentence: str, tmp_path: Path
) -> None:
    leg = stage(Log(tmp_path), name="first")
    leg.done = done
    leg.save()
    log, words = heard(tmp_path, resume=True)
    for _ in stage(log, name="first"):
        pass
    for name in ("second", "third"):
        for _ in stage(log, 5, name=name):
            pass
    told = [line for line in words.getvalue().splitlines() if ", after " not in line]
    assert told == [sentence]


def test_resuming_a_finished_run_says_that_nothing_is_left(task: Task, tmp_path: Path) -> None:
    words = io.StringIO()
    for resume in (False, True):
        uqgan.fit("uqgan", task, config=QUICK, folder=tmp_path, resume=resume, console=Console(file=words, width=200))
    assert words.getvalue().endswith(f"{tmp_path}: its training has finished, nothing is left to resume\n")


def test_a_damaged_log_cannot_be_gone_on_with_and_is_named(tmp_path: Path) -> None:
    log = Log(tmp_path)
    log.write({"stage": "test", "step": 1, "loss": 1.0})
    stage(log).save()
    file = tmp_path / "log.jsonl"
    file.write_bytes(b"{" + file.read_bytes()[1:-3] + b"}}\n")
    with pytest.raises(RunFailed, match=r"log\.jsonl: damaged, cannot be gone on with \(--overwrite starts"):
        Log(tmp_path, resume=True)


def test_a_member_in_a_process_of_its_own_stops_when_its_parent_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = Log(tmp_path, child=True)
    steps = []
    for step in stage(log):
        steps.append(step)
        if step == 2:
            monkeypatch.setattr(os, "getppid", lambda: 1)
    assert steps == [0, 1, 2]
    assert stage(Log(tmp_path, resume=True)).steps == range(3, 10)


# The commands


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stopping") / "run"
    uqgan.fit("uqgan", "moons", config=QUICK, folder=folder, quiet=True)
    return folder


def disturb(number: int) -> Callable[..., None]:
    return lambda *_, **__: os.kill(os.getpid(), number)


@pytest.mark.parametrize(("number", "words", "status"), SIGNALS)
@pytest.mark.parametrize(
    ("command", "place"),
    [
        (["evaluate", "RUN"], "uqgan.evaluation.intervals"),
        (["report", "RUN", "-o", "NEW/page.html"], "uqgan.report.page.write_report"),
        (["data", "show", "digits", "-o", "NEW"], "uqgan.data.tasks.load_task"),
        (["train", "moons", "-o", "NEW"], "uqgan.methods.method.keep_freed_memory"),
        (["demo", "-o", "NEW"], "uqgan.methods.method.keep_freed_memory"),
    ],
)
def test_a_signal_ends_every_command_with_one_line_and_nothing_half_written(
    command: list[str],
    place: str,
    number: int,
    words: str,
    status: int,
    trained: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    before = {file: file.read_bytes() for file in trained.rglob("*") if file.is_file()}
    monkeypatch.setattr(place, disturb(number))
    names = {"RUN": str(trained)}
    line = [names.get(word, word.replace("NEW", str(tmp_path / "new"))) for word in command]
    monkeypatch.setattr(sys, "argv", ["uqgan", *line, "-q"])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == status
    assert capfd.readouterr() == ("", f"uqgan: {words}\n")
    assert not [file for file in tmp_path.rglob("*") if file.is_file()]
    assert {file: file.read_bytes() for file in trained.rglob("*") if file.is_file()} == before


EARLY = """
import os, signal, sys
class Disturbed:
    def find_spec(self, name, *_):
        if name == "uqgan.cli.app":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Disturbed())
from uqgan.__main__ import main
main()
"""


def test_ctrl_c_while_the_command_line_is_imported_ends_it_with_one_line() -> None:
    project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())["project"]
    assert project["scripts"] == {"uqgan": "uqgan.__main__:main"}
    done = subprocess.run([sys.executable, "-c", EARLY], capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"uqgan: stopped by hand\n")


def test_ctrl_c_in_training_exits_with_130_and_the_run_can_be_evaluated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    interrupted_at_validation(monkeypatch, 2)
    settings = ["--uqgan.iterations", "6", "--uqgan.batch-size", "8", "--uqgan.validate-every", "2", "-q"]
    monkeypatch.setattr(sys, "argv", ["uqgan", "train", "moons", "-o", str(tmp_path), *settings])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 130
    out, err = capfd.readouterr()
    where = f"stopped by hand at step 4 of 6 of uqgan, the best classifier so far is kept in {tmp_path}"
    assert (out, err) == ("", f"uqgan: {where}; --resume goes on\n")
    monkeypatch.setattr(sys, "argv", ["uqgan", "evaluate", str(tmp_path), "-q"])
    main()
    assert json.loads((tmp_path / "scores.json").read_text())["task"] == "moons"


def test_a_demo_stopped_in_a_run_goes_on_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few, silent = {"iterations": 6, "batch_size": 8, "validate_every": 2}, Console(quiet=True)
    with monkeypatch.context() as patch:
        interrupted_at_validation(patch, 2)
        with pytest.raises(Interrupted, match=f"is kept in {tmp_path}; the same command goes on$"):
            finish(tmp_path, "uqgan", "moons", few, silent)
    assert finish(tmp_path, "uqgan", "moons", few, silent).record.about["finished"] is True
