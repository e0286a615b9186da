"""`uqgan grid` as a person uses it: in one process, and killed."""

import io
import json
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from grids import QUICK, contents, tiny
from uqgan.cli import main
from uqgan.cli.app import Voice
from uqgan.cli.chosen import chosen_seeds, chosen_tasks
from uqgan.cli.watch import Watch
from uqgan.data.tasks import load_task
from uqgan.errors import UsageError
from uqgan.grid.cells import FAILED, Cell, plan_cells, run_cell
from uqgan.grid.schedule import Event, Survey, Terms
from uqgan.grid.times import Times

FEW = ["--one-vs-all.epochs", "1", "--cross-entropy.epochs", "1"]


def uqgan(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    """Run a command in this process; gives its exit status."""
    monkeypatch.setattr(sys, "argv", ["uqgan", *words])
    try:
        main()
    except SystemExit as end:
        return int(end.code or 0)
    return 0


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def finished(task: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str]:
    """A grid of two cells that end and one that fails: its folder, its output and its messages."""
    root = tmp_path_factory.mktemp("grid") / "runs"
    words = [sys.executable, "-m", "uqgan", *command(task, root, "one-vs-all,ova-oracle", "0,1"), "--workers", "1"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    return root, done.stdout, done.stderr


def command(task: str, root: Path, methods: str, seeds: str = "0", *more: str) -> list[str]:
    words = ["grid", "--tasks", task, "--methods", methods, "--seeds", seeds, "-o", str(root), "--device", "cpu"]
    return [*words, "--one-vs-all.epochs", "1", *more]


def test_a_grid_says_what_became_of_each_cell(finished: tuple[Path, str, str]) -> None:
    root, out, err = finished
    for seed in (0, 1):
        good, bad = (f"tiny.npz/{name}/seed-{seed}" for name in ("one-vs-all/one_vs_all.epochs=1", "ova-oracle"))
        assert f"{good}: begins\n" in err
        assert re.search(rf"^{good}: done after \d+ s$", err, re.M)
        assert re.search(rf"^{bad}: failed after \d+ s: .*has no outliers.* \(see {root / bad / FAILED}\)$", err, re.M)
        assert f"{bad} failed, see {root / bad / FAILED}: " in out
        assert (root / good / "scores.json").exists()
        assert re.search(rf"^{good} +\d+\.\d\d +– +\d+\.\d *$", out, re.M), "a line per cell in a pipe"
    assert re.search(r"^tiny.npz/one-vs-all/one_vs_all.epochs=1, 2 seeds: accuracy \d+\.\d\d ± \d+\.\d\d", out, re.M)
    assert err.rstrip().endswith("uqgan: 2 of 4 cells failed (--retry-failed tries again)")


def test_the_same_command_leaves_alone_what_is_done_and_what_failed(
    finished: tuple[Path, str, str], task: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    root, _, _ = finished
    before = contents(root)
    monkeypatch.setattr("uqgan.grid.pool.Pool", lambda *_: pytest.fail("something ran"))
    assert uqgan(monkeypatch, *command(task, root, "one-vs-all,ova-oracle", "0,1", "--json")) == 1
    rows = json.loads(capfd.readouterr().out)
    assert [row["state"] for row in rows] == ["done", "done", "failed", "failed"]
    assert contents(root) == before
    assert {"cell", "task", "method", "seed", "settings", "accuracy", "auroc", "file", "raw_sha256"} <= set(rows[0])
    assert rows[2]["log"] == str(root / rows[2]["cell"] / FAILED)
    assert "has no outliers" in rows[2]["why"]


def test_what_failed_is_tried_again_when_asked(
    finished: tuple[Path, str, str], task: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    root, _, _ = finished
    words = [*command(task, root, "one-vs-all,ova-oracle", "0"), "--workers", "1", "--retry-failed"]
    log = root / "tiny.npz" / "ova-oracle" / "seed-0" / FAILED
    before, result = log.stat().st_mtime_ns, root / "tiny.npz/one-vs-all/one_vs_all.epochs=1/seed-0/scores.json"
    untouched = result.stat().st_mtime_ns
    assert uqgan(monkeypatch, *words) == 1
    err = capfd.readouterr().err
    assert "ova-oracle/seed-0: begins" in err
    assert "one-vs-all/one_vs_all.epochs=1/seed-0: begins" not in err
    assert log.stat().st_mtime_ns > before
    assert result.stat().st_mtime_ns == untouched


def test_a_dry_run_prints_cells_and_expected_minutes_and_does_nothing(
    finished: tuple[Path, str, str], task: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    root, _, _ = finished
    before = contents(root)
    words = command(task, root, "one-vs-all,ova-oracle,entropy", "0-2", "--dry-run")
    assert uqgan(monkeypatch, *words, "--json") == 0
    rows = json.loads(capfd.readouterr().out)
    assert [row["state"] for row in rows] == ["done", "done", "to do", "failed", "failed", "to do", *["to do"] * 3]
    assert [row["minutes"] is None for row in rows] == [False] * 3 + [True] * 6
    assert uqgan(monkeypatch, *words) == 0
    out = capfd.readouterr().out
    assert re.search(r"5 cells to do, about \d+ (s|min) one after another on cpu, with 4 cells of unknown time", out)
    assert ", 2 failed before (--retry-failed)" in " ".join(out.split())
    assert uqgan(monkeypatch, *command(task, root, "one-vs-all,ova-oracle", "0", "--dry-run")) == 0
    assert "0 cells to do, 1 failed before (--retry-failed)\n" in capfd.readouterr().out
    assert uqgan(monkeypatch, *words, "--retry-failed") == 0
    out = capfd.readouterr().out
    assert "7 cells to do" in out
    assert "failed before" not in out
    assert contents(root) == before
    away = root.parent / "away"
    assert uqgan(monkeypatch, *command(task, away, "uqgan", "0", "--dry-run")) == 2, "it reads no such setting"
    assert uqgan(monkeypatch, "grid", "--tasks", task, "--methods", "uqgan", "--dry-run", "-o", str(away)) == 0
    assert "1 cell to do, no times of such runs on cpu are known" in capfd.readouterr().out
    assert not away.exists()


def test_the_time_limit_leaves_the_rest_for_the_same_command(
    task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    words = command(task, tmp_path / "runs", "one-vs-all", "0,1", "--workers", "1")
    assert uqgan(monkeypatch, *words, "--max-minutes", "1e-6") == 3
    assert "2 of 2 cells unfinished (the same command goes on)" in capfd.readouterr().err
    assert uqgan(monkeypatch, *words, "--quiet") == 0
    out, err = capfd.readouterr()
    assert err == ""
    assert out.count("seed-") == 2


def test_named_methods_are_those_of_the_paper_unless_chosen(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = ["grid", "--tasks", "digits,moons", "--dry-run", "--json", "-o", str(tmp_path / "runs")]
    assert uqgan(monkeypatch, *words) == 0
    names = [row["cell"] for row in json.loads(capfd.readouterr().out)]
    assert len(names) == 24
    assert names[0] == "digits/uqgan/seed-0"


def test_values_joined_by_commas_are_combined(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = ["grid", "--tasks", "moons", "--methods", "uqgan", "--dry-run", "--json", "-o", str(tmp_path / "runs")]
    assert uqgan(monkeypatch, *words, "--uqgan.lambda-real", "0.1,0.5", "--uqgan.lambda-reg", "1, 2") == 0
    names = {row["cell"].split("/")[2] for row in json.loads(capfd.readouterr().out)}
    assert names == {f"uqgan.lambda_real={real},uqgan.lambda_reg={reg}" for real in (0.1, 0.5) for reg in (1.0, 2.0)}


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--tasks", "moonz"], "task = moonz: no such task, folder or .npz file (did you mean moons?)"),
        (["--tasks", ","], "--tasks: names none"),
        ([], "--tasks"),
        (["--tasks", "moons", "--methods", "uqgam"], "--methods = uqgam: no such method; did you mean uqgan?"),
        (["--tasks", "moons", "--seeds", "3-1"], "--seeds = 3-1: the smaller number comes first"),
        (["--tasks", "moons", "--seeds", "x"], "--seeds = x: must look like 0-4 or 0,2"),
        (["--tasks", "moons", "--workers", "0"], "--workers = 0: must be auto, or a number of at least 1"),
        (["--tasks", "moons", "--workers", "all"], "--workers = all: must be auto, or a number of at least 1"),
        (["--tasks", "moons", "--device", "tpu"], "device = tpu: must be auto, cpu, cuda or mps"),
        (["--tasks", "moons", "--max-minutes", "0"], "max-minutes"),
        (["--tasks", "moons", "--uqgan.lambda-real", "0.1,1.4"], "uqgan.lambda_real = '1.4': must be at most 1.0"),
        (["--tasks", "moons", "--methods", "entropy", "--uqgan.lr", "1"], "uqgan.lr: has no effect"),
        (["--tasks", "digits+7-3"], "classes = 7-3: must be within 0-9, the smaller number first"),
    ],
)
def test_a_mistake_is_one_sentence_and_nothing_is_left_behind(
    words: Sequence[str],
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert uqgan(monkeypatch, "grid", *words) == 2
    err = capfd.readouterr().err
    assert sentence in err
    assert err.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_lists_of_tasks_keep_the_classes_of_each_together() -> None:
    assert chosen_tasks("digits+0,2-4, moons,/a/b.npz") == ["digits+0,2-4", "moons", "/a/b.npz"]
    assert chosen_seeds("0-2,7,1") == [0, 1, 2, 7]
    with pytest.raises(UsageError, match="at most 1000"):
        chosen_seeds("0-1000")


# How it is shown.

CELLS = [Cell("gaussians", "uqgan", seed) for seed in range(3)]


class Ears(Voice):
    """A voice into a text."""

    text: io.StringIO

    def console(self) -> Console:
        return Console(file=self.text, force_terminal=self.terminal, width=100, highlight=False, quiet=self.quiet)


def ears(terminal: bool, **how: bool) -> Ears:
    voice = Ears(**how)
    for name, value in {"text": io.StringIO(), "terminal": terminal}.items():
        object.__setattr__(voice, name, value)
    return voice


def watch(voice: Voice, done: int = 0) -> Watch:
    return Watch(Survey(CELLS[:done], [], CELLS[done:]), Terms(Path("runs")), Times(), "cpu", voice)


def test_a_terminal_shows_a_live_table_with_a_row_per_running_cell() -> None:
    voice = ears(terminal=True)
    shown = watch(voice)
    with shown:
        shown(Event(CELLS[0], "running", worker="71"))
        shown(Event(CELLS[0], "running", "uqgan", 1200, 10_000, 95.0, "71"))
        shown(Event(CELLS[1], "running", worker="72"))
        shown(Event(CELLS[1], "running", "a note", worker="72"))
        paper = Console(file=io.StringIO(), width=100, record=True)
        paper.print(shown.table())
        text = paper.export_text()
    for words in ("worker", "cell", "stage", "step", "left", "1,200 of 10,000", "2 min", "2 running, 1 waiting"):
        assert words in text
    assert re.search(r"71 +gaussians/uqgan/seed-0 +uqgan +1,200 of 10,000 +2 min", text)
    assert "a note" not in voice.text.getvalue()


def test_without_a_terminal_there_is_a_line_per_beginning_and_end(monkeypatch: pytest.MonkeyPatch) -> None:
    voice = ears(terminal=False)
    shown = watch(voice, done=1)
    with shown:
        shown(Event(CELLS[1], "running", worker="71"))
        shown(Event(CELLS[1], "running", "uqgan", 5, 10, 3.0, "71"))
        shown(Event(CELLS[1], "waiting", "its process was ended by SIGKILL; it is tried again", worker="71"))
        shown(Event(CELLS[1], "running", worker="72"))
        shown(Event(CELLS[1], "done", worker="72"))
        shown(Event(CELLS[2], "running", worker="72"))
        shown(Event(CELLS[2], "failed", "ValueError: so", worker="72"))
    assert voice.text.getvalue().splitlines() == [
        "gaussians/uqgan/seed-1: begins",
        "gaussians/uqgan/seed-1: lost after 0 s: its process was ended by SIGKILL; it is tried again",
        "gaussians/uqgan/seed-1: begins",
        "gaussians/uqgan/seed-1: done after 0 s",
        "gaussians/uqgan/seed-2: begins",
        "gaussians/uqgan/seed-2: failed after 0 s: ValueError: so (see runs/gaussians/uqgan/seed-2/failed.log)",
    ]
    assert shown.summary == "2 done, 1 failed"


def test_every_half_minute_a_line_says_how_far_all_are(monkeypatch: pytest.MonkeyPatch) -> None:
    voice = ears(terminal=False)
    shown = watch(voice)
    shown(Event(CELLS[0], "running", worker="71"))
    shown._said -= 31
    shown(Event(CELLS[0], "running", "uqgan", 5, 10, 3.0, "71"))
    shown(Event(CELLS[0], "running", "uqgan", 6, 10, 3.0, "71"))
    assert voice.text.getvalue().splitlines()[1:] == ["gaussians/uqgan/seed-0: uqgan 5 of 10; 1 running, 2 waiting"]


def test_the_time_left_is_that_of_cells_alike_shared_out_among_those_that_run() -> None:
    shown = watch(ears(terminal=False))
    assert shown.seconds_left is None
    shown.times.add(CELLS[0], "cpu", 100)
    assert shown.seconds_left == 300
    for cell in CELLS[:2]:
        shown(Event(cell, "running"))
    assert shown.seconds_left == pytest.approx(150, abs=1)


def test_notes_of_cells_are_for_those_who_ask() -> None:
    for verbose in (False, True):
        voice = ears(terminal=False, verbose=verbose)
        shown = watch(voice)
        shown(Event(CELLS[0], "running"))
        shown(Event(CELLS[0], "running", "going on at step 7"))
        assert ("gaussians/uqgan/seed-0: going on at step 7" in voice.text.getvalue()) == verbose
    quiet = ears(terminal=True, quiet=True)
    with watch(quiet) as shown:
        shown(Event(CELLS[0], "running"))
    assert quiet.text.getvalue() == ""


# Killed.


def begin(words: Sequence[str]) -> "subprocess.Popen[str]":
    return subprocess.Popen([sys.executable, "-m", "uqgan", *words], stderr=subprocess.PIPE, text=True)


def results(root: Path) -> dict[str, tuple[int, bytes]]:
    """Files of finished cells, with when they were written; what a kill left half-written has a dot."""
    done = [file.parent for file in root.rglob("scores.json")]
    found = {str(place.relative_to(root)): contents(place) for place in done}
    files = {f"{place}/{name}": each for place, files in found.items() for name, each in files.items()}
    return {name: each for name, each in files.items() if not Path(name).name.startswith(".")}


def finished_cells(root: Path) -> int:
    return len(list(root.rglob("scores.json")))


def table(root: Path) -> dict[str, Any]:
    """What does not depend on when and how long it took."""
    records = {str(file.parent.relative_to(root)): json.loads(file.read_text()) for file in root.rglob("scores.json")}
    keys = ("scores", "intervals", "raw_sha256", "settings", "command")
    return {name: {key: record[key] for key in keys} for name, record in records.items()}


def children(process: int) -> list[int]:
    file = Path(f"/proc/{process}/task/{process}/children")
    return [int(word) for word in file.read_text().split()] if file.exists() else []


def gone(process: int) -> bool:
    """Whether a process has ended, or is a shell of itself."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def wait_for(condition: Any, seconds: float = 90) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.02)
    return False


def test_ctrl_c_ends_in_a_sentence_and_the_same_command_goes_on(task: str, tmp_path: Path) -> None:
    root = tmp_path / "runs"
    words = ["grid", "--tasks", task, "--methods", "one-vs-all", "--seeds", "0,1", "-o", str(root), "--device", "cpu"]
    words += ["--one-vs-all.epochs", "100000", "--workers", "1"]
    child = begin(words)
    logs = lambda: [file for file in root.rglob("log.jsonl") if file.stat().st_size > 100]  # noqa: E731
    assert wait_for(logs)
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=60)
    assert child.returncode == 130
    assert err.splitlines()[-1] == (
        "uqgan: stopped by hand, 0 of 2 cells done, the others are saved; the same command goes on"
    )
    assert "Traceback" not in err
    assert len(list(root.rglob("resume/*.safetensors"))) == 1
    again = begin([*words, "-v", "--max-minutes", "0.05"])
    _, err = again.communicate(timeout=120)
    assert again.returncode == 3, err


def test_three_kills_change_nothing_of_the_final_table(task: str, tmp_path: Path) -> None:
    """SIGKILL of the command at random moments; its workers end by themselves."""
    methods, seed = ["one-vs-all", "entropy", "max-softmax", "ensemble", "uqgan"], random.randrange(10**6)
    chance, root = random.Random(seed), tmp_path / "killed"
    changed = QUICK | {"one_vs_all.epochs": 40}
    settings = [word for name, value in changed.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    words = [
        "grid",
        "--tasks",
        task,
        "--methods",
        ",".join(methods),
        "--seeds",
        "0,1",
        "--workers",
        "2",
        "-o",
        str(root),
    ]
    words += ["--device", "cpu", *settings]
    kept: dict[str, tuple[int, bytes]] = {}
    for least in (0, 2, 5):
        child = begin(words)
        assert wait_for(lambda least=least, child=child: finished_cells(root) >= least and children(child.pid))
        time.sleep(chance.random())
        workers = children(child.pid)
        child.kill()
        child.communicate()
        assert wait_for(lambda workers=workers: all(map(gone, workers))), f"{seed}: workers stay"
        now = results(root)
        assert {name: now[name] for name in kept} == kept, seed
        kept = now
    assert finished_cells(root) < 10, "the last kill came in time"
    assert subprocess.run([sys.executable, "-m", "uqgan", *words, "-q"], check=False).returncode == 0
    assert {name: results(root)[name] for name in kept} == kept, seed
    loaded = load_task(task)
    with pytest.MonkeyPatch.context() as patch:  # nothing of the killed ones helps those that are not
        patch.setenv("UQGAN_CACHE", str(tmp_path / "cache"))
        for cell in plan_cells([task], methods, [0, 1], [changed]):
            run_cell(cell, tmp_path / "whole", loaded, torch.device("cpu"))
    assert len(table(root)) == 10
    assert table(root) == table(tmp_path / "whole"), seed
