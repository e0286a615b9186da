"""The daemon is a stand-in here: a script of its name that is found first."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from uqgan.files import cache_folder
from uqgan.grid import mps, pool
from uqgan.grid.mps import LOGS, PIPES
from uqgan.grid.schedule import Schedule, Terms

STAND_IN = """#!/bin/sh
pipes="${CUDA_MPS_PIPE_DIRECTORY:-$STAND_IN/system}"
if [ "$1" = -d ]; then
    [ -z "$NO_START" ] || { echo "An instance of this daemon is already running" >&2; exit 1; }
    [ -d "$pipes" ] && [ -d "$CUDA_MPS_LOG_DIRECTORY" ] || exit 3
    touch "$pipes/control"; echo "start $pipes" >> "$STAND_IN/log"; exit 0
fi
read -r command
[ -e "$pipes/control" ] || { echo "Cannot find MPS control daemon process" >&2; exit 1; }
echo "$command $pipes" >> "$STAND_IN/log"
case "$command" in quit*) [ -z "$BUSY" ] || exit 1; rm "$pipes/control";; esac
"""


@pytest.fixture
def daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder of the stand-in, with a log of what it was told."""
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / mps.CONTROL).write_text(STAND_IN)
    (tools / mps.CONTROL).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("STAND_IN", str(tools))
    monkeypatch.setenv("UQGAN_CACHE", str(tmp_path / "cache"))
    for name in (PIPES, LOGS):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(mps, "PROBE", "")
    return tools


def told(daemon: Path) -> list[str]:
    """Commands that the stand-in took, without those that only ask."""
    log = daemon / "log"
    lines = log.read_text().splitlines() if log.exists() else []
    return [line.partition(" ")[0] for line in lines if not line.startswith("get_server_list")]


def test_without_mps_workers_take_turns_and_that_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    said: list[str] = []
    with mps.shared(said.append) as environment:
        assert environment is None
    assert said == ["nvidia-cuda-mps-control is not installed: workers compute on the GPU in turns"]


def test_a_daemon_of_its_own_is_started_and_ended_by_its_own_command(daemon: Path) -> None:
    said: list[str] = []
    with mps.shared(said.append) as environment:
        assert environment
        assert Path(environment[PIPES], "control").exists()
        assert Path(environment[LOGS]).is_dir()
        assert len(environment[PIPES]) < 80, "sockets have short names"
        assert PIPES not in os.environ
        assert told(daemon) == ["start"]
    assert told(daemon) == ["start", "quit"]
    assert not Path(environment[PIPES]).parent.exists()
    assert not list((cache_folder() / "mps").iterdir())
    assert said == ["workers share the GPU, by an MPS daemon of their own"]


def test_two_grids_have_a_daemon_each(daemon: Path) -> None:
    with mps.shared(lambda _: None) as first:
        words = f"from uqgan.grid import mps\nmps.PROBE = ''\nwith mps.shared(print) as found: print(found[{PIPES!r}])"
        second = subprocess.run([sys.executable, "-c", words], capture_output=True, text=True, check=True).stdout
        assert first
        assert Path(first[PIPES], "control").exists(), "the other grid lives"
        assert first[PIPES] not in second
    assert told(daemon) == ["start", "start", "quit", "quit"]


def test_a_daemon_that_runs_is_used_and_left_alone(daemon: Path) -> None:
    (daemon / "system").mkdir()
    (daemon / "system" / "control").touch()
    said: list[str] = []
    with mps.shared(said.append) as environment:
        assert environment == {}
    assert told(daemon) == []
    assert said == ["workers share the GPU, by the MPS daemon that runs here"]


def test_a_daemon_that_does_not_start_is_done_without(daemon: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_START", "1")
    said: list[str] = []
    with mps.shared(said.append) as environment:
        assert environment is None
    why = "An instance of this daemon is already running"
    assert said == [f"MPS could not be started, {why}: workers compute on the GPU in turns"]
    assert not list((cache_folder() / "mps").iterdir())


def test_a_daemon_under_which_the_gpu_fails_is_ended(daemon: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mps, "PROBE", "raise SystemExit(3)")
    said: list[str] = []
    with mps.shared(said.append) as environment:
        assert environment is None
    assert told(daemon) == ["start", "quit"]
    assert said == ["MPS could not be started, the GPU cannot be used under it: workers compute on the GPU in turns"]


def test_an_error_in_the_block_ends_the_daemon_too(daemon: Path) -> None:
    with pytest.raises(KeyboardInterrupt), mps.shared(lambda _: None):
        raise KeyboardInterrupt
    assert told(daemon) == ["start", "quit"]


def killed_grid() -> None:
    """A process that has a daemon, killed by SIGKILL."""
    imports = "import time\nfrom uqgan.grid import mps\nmps.PROBE = ''"
    words = f"{imports}\nwith mps.shared(print): print(flush=True); time.sleep(60)"
    child = subprocess.Popen([sys.executable, "-c", words], stdout=subprocess.PIPE, text=True)
    assert child.stdout
    child.stdout.readline()
    child.stdout.readline()
    child.kill()
    assert child.wait() == -signal.SIGKILL
    child.stdout.close()


def test_the_daemon_of_a_killed_grid_is_found_and_ended(daemon: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    killed_grid()
    (note,) = (cache_folder() / "mps").glob("*.json")
    place = Path(json.loads(note.read_text())["folder"])
    assert (place / "pipes" / "control").exists()
    said: list[str] = []
    monkeypatch.setenv("BUSY", "1")
    mps.end_orphans(said.append)
    assert (place / "pipes" / "control").exists()
    assert note.exists(), "one that would not end is not forgotten"
    monkeypatch.delenv("BUSY")
    mps.end_orphans(said.append)
    assert said == ["ended the MPS daemon of a grid that was killed"]
    assert not place.exists()
    assert not note.exists()
    mps.end_orphans(said.append)
    assert len(said) == 1


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"folder": 3}', '{"folder": "/none/there"}'])
def test_a_damaged_note_is_no_obstacle(text: str, daemon: Path) -> None:
    note = cache_folder() / "mps" / "1.json"
    note.parent.mkdir(parents=True)
    note.write_text(text)
    with mps.shared(lambda _: None) as environment:
        assert environment


@pytest.mark.parametrize(
    ("path", "workers", "devices", "size"),
    [
        ("with", None, ["cuda"], 8),
        ("with", 3, ["cuda"], 3),
        ("with", None, ["cuda:0", "cuda:1"], 16),
        ("without", None, ["cuda"], 1),
        ("without", None, ["cuda:0", "cuda:1"], 2),
        ("without", 3, ["cuda"], 3),
        ("with", None, ["mps"], 1),
    ],
)
def test_a_gpu_has_several_workers_where_they_can_share_it(
    path: str, workers: int | None, devices: list[str], size: int, daemon: Path, monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:  # fmt: skip
    if path == "without":
        (daemon / mps.CONTROL).unlink()
    crews: list[pool.Crew] = []
    monkeypatch.setattr(pool, "devices_of", lambda _: devices)
    monkeypatch.setattr(pool.Crew, "run", lambda crew: crews.append(crew))  # noqa: PLW0108  # bound, as a method is
    pool.Pool(workers)(Schedule([]), Terms(tmp_path / "runs"), lambda _: None)
    (crew,) = crews
    assert crew.size == size
    assert bool(crew.environment) == (path == "with" and devices[0].startswith("cuda"))
    assert told(daemon) == (["start", "quit"] if crew.environment else [])


def test_one_worker_on_one_gpu_needs_no_daemon(daemon: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(pool, "devices_of", lambda _: ["cuda"])
    monkeypatch.setattr(pool.Crew, "run", lambda _: None)
    pool.Pool(1)(Schedule([]), Terms(tmp_path / "runs"), lambda _: None)
    assert told(daemon) == []


def test_a_daemon_that_does_not_answer_is_waited_for_in_vain_only_so_long(
    daemon: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (daemon / mps.CONTROL).write_text("#!/bin/sh\nexec sleep 30\n")
    monkeypatch.setattr(mps, "PATIENCE_SECONDS", 0.2)
    start, said = time.monotonic(), list[str]()
    with mps.shared(said.append) as environment:
        assert environment is None
    assert time.monotonic() - start < 10
    assert said[0].startswith("MPS could not be started, ")
