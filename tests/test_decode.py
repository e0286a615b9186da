"""Pictures that several processes decode are those that one process decodes, whatever happens to the processes."""

import io
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import joblib
import numpy as np
import pytest
from PIL import Image

from uqgan.data import decode as decoding
from uqgan.data.decode import Encoded, Outcome, decode, decode_all
from uqgan.data.preprocessing import PixelFormat
from uqgan.errors import UsageError

PIXEL_FORMAT = PixelFormat(size=8, channels=3)


def png(number: int) -> bytes:
    pixels = np.random.default_rng(number).integers(0, 256, (10, 10, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


BATCHES: list[list[Encoded]] = [[png(10 * k + i) for i in range(k + 1)] for k in range(7)]
BATCHES[2][1] = b"no picture"
TOTAL = sum(map(len, BATCHES))


@pytest.fixture(autouse=True)
def _two_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "PARALLEL_FROM", 1)
    monkeypatch.setattr(joblib, "cpu_count", lambda: 2)


def same(found: Outcome) -> bool:
    x, broken = decode([picture for batch in BATCHES for picture in batch], PIXEL_FORMAT)
    readable = [row for row in range(TOTAL) if row not in broken]
    return found[1] == broken and np.array_equal(found[0][readable], x[readable])


def test_pictures_keep_their_rows_and_broken_ones_are_said() -> None:
    found = decode_all(lambda: BATCHES, PIXEL_FORMAT, TOTAL, 0)
    assert same(found)
    assert found[1] == {4: "not a png, jpg, webp or bmp picture"}


@pytest.mark.parametrize(("n_bytes", "pays"), [(0, False), (100 * decoding.BYTES_PER_COST, True)])
def test_work_goes_to_other_processes_where_it_pays(n_bytes: int, pays: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> None:
        raise AssertionError("decoded here")

    monkeypatch.setattr(decoding, "PARALLEL_FROM", 100)
    monkeypatch.setattr(decoding, "pixels", never)
    if pays:
        assert decode_all(lambda: BATCHES, PIXEL_FORMAT, TOTAL, n_bytes)[1] == {
            4: "not a png, jpg, webp or bmp picture"
        }
    else:
        with pytest.raises(AssertionError, match="decoded here"):
            decode_all(lambda: BATCHES, PIXEL_FORMAT, TOTAL, n_bytes)


def test_if_a_worker_is_killed_this_process_decodes(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds: list[int] = []

    def read() -> Iterator[list[Encoded]]:
        rounds.append(len(rounds))
        if rounds[-1]:
            monkeypatch.undo()
        yield from BATCHES

    monkeypatch.setattr(joblib, "delayed", lambda _: lambda *_: (os._exit, (1,), {}))
    assert same(decode_all(read, PIXEL_FORMAT, TOTAL, 0))
    assert rounds == [0, 1]


def test_an_error_while_reading_is_the_callers() -> None:
    def read() -> Iterator[list[Encoded]]:
        yield BATCHES[0]
        raise UsageError("damaged")

    with pytest.raises(UsageError, match="damaged"):
        decode_all(read, PIXEL_FORMAT, TOTAL, 0)


SCRIPT = """
    import time
    from uqgan.data import decode as decoding

    print("run", flush=True)
    decoding.PARALLEL_FROM = 1
    decoding.joblib.cpu_count = lambda: 2

    def read():
        for k in range({batches}):
            yield [b"no picture"] * 500
            if k == 20:
                print("reading", flush=True)

    x, broken = decoding.decode_all(read, decoding.PixelFormat(8, 1), 500 * {batches}, 0)
    print(len(broken), flush=True)
"""


def start(batches: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-W", "error", "-c", textwrap.dedent(SCRIPT).format(batches=batches)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)


def members(session: int) -> list[int]:
    """Processes of a session that are still running."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, ProcessLookupError):
            if os.getsid(int(folder.name)) == session and " Z " not in (folder / "stat").read_text():
                found.append(int(folder.name))
    return found


def assert_alone(process: subprocess.Popen[str]) -> None:
    """No process of a script's session is left, soon after it has ended."""
    deadline = time.monotonic() + 10
    while members(process.pid):
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_a_script_runs_once_and_leaves_no_process_behind() -> None:
    process = start(30)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out.split(), err) == (0, ["run", "reading", "15000"], "")
    assert_alone(process)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
@pytest.mark.parametrize("all_get_it", [True, False])
def test_ctrl_c_ends_decoding_promptly(all_get_it: bool) -> None:
    process = start(100_000)
    assert process.stdout
    while process.stdout.readline() != "reading\n":
        assert process.poll() is None
    begun = time.monotonic()
    if all_get_it:  # as from a terminal
        os.killpg(process.pid, signal.SIGINT)
    else:
        process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert time.monotonic() - begun < 5
    assert "KeyboardInterrupt" in err
    assert_alone(process)
