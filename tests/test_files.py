"""Locks: one process at a time, no lock outlives its process, and a disk without locks stops nothing."""

import errno
import fcntl
import subprocess
import sys
from pathlib import Path

import pytest

from uqgan.errors import RunFailed
from uqgan.files import locked

HOLD = """
import sys, time
from pathlib import Path
from uqgan.files import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


def test_a_lock_is_waited_for_until_its_process_is_killed(tmp_path: Path) -> None:
    holder = subprocess.Popen([sys.executable, "-c", HOLD, tmp_path / "file"], stdout=subprocess.PIPE, text=True)
    assert holder.stdout
    assert holder.stdout.readline() == "held\n"
    waited: list[int | None] = []

    def on_wait() -> None:
        waited.append(holder.poll())
        holder.kill()
        holder.communicate(timeout=60)

    with locked(tmp_path / "file", on_wait):
        assert waited == [None]
    with locked(tmp_path / "file", on_wait):
        assert len(waited) == 1


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_where_the_disk_has_no_locks_work_goes_on(tmp_path: Path, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(code, "no locks")

    monkeypatch.setattr(fcntl, "flock", refuse)
    entered: list[str] = []
    with locked(tmp_path / "file", lambda: entered.append("waited")), locked(tmp_path / "file"):
        entered.append("inside")
    assert entered == ["inside"]


def test_a_place_that_cannot_be_written_is_said_and_an_error_inside_lets_go(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(RunFailed, match="a file stands where a folder is needed"), locked(tmp_path / "file" / "new"):
        pass
    with pytest.raises(KeyError), locked(tmp_path / "other"):
        raise KeyError
    with locked(tmp_path / "other", lambda: pytest.fail("still held")):
        pass
