"""What several processes make is what one makes, whatever happens to them: pictures, and sets loaded together."""

import io
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from PIL import Image

from uqgan import workers
from uqgan.data import decode as decoding
from uqgan.data.decode import Look, Outcome, decode, decode_batches
from uqgan.errors import UsageError
from uqgan.workers import Pool, kept_workers, two_at_a_time

LOOK = Look(size=8, channels=3)


def png(number: int) -> bytes:
    pixels = np.random.default_rng(number).integers(0, 256, (10, 10, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


BATCHES = [[png(10 * k + i) for i in range(k + 1)] for k in range(7)]
BATCHES[2][1] = b"no picture"


@pytest.fixture(autouse=True)
def _several_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "PAYS_FROM", 1)
    monkeypatch.setattr(decoding, "processors", lambda: 2)


def same(found: list[Outcome]) -> bool:
    expected = [decode(batch, LOOK) for batch in BATCHES]
    pairs = zip(found, expected, strict=True)
    return all(a[1] == b[1] and all(np.array_equal(x, y) for x, y in readable(a, b)) for a, b in pairs)


def readable(a: Outcome, b: Outcome) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    return ((a[0][row], b[0][row]) for row in range(len(b[0])) if row not in b[1])


def test_all_batches_come_back_in_order_with_what_could_not_be_read() -> None:
    found = list(decode_batches(BATCHES, LOOK, total=28))
    assert same(found)
    assert found[2][1] == {1: "not a png, jpg, webp or bmp picture"}


def test_work_goes_to_other_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> None:
        raise AssertionError("decoded here")

    expected = [decode(batch, LOOK) for batch in BATCHES]
    monkeypatch.setattr(decoding, "pixels", never)
    found = list(decode_batches(BATCHES, LOOK, total=28))
    assert [broken for _, broken in found] == [broken for _, broken in expected]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[subprocess.Popen[bytes]]:
    """The processes, as they are started."""
    noted: list[subprocess.Popen[bytes]] = []
    plain = subprocess.Popen

    def note(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
        noted.append(plain(*arguments, **options))
        return noted[-1]

    monkeypatch.setattr(workers.subprocess, "Popen", note)
    return noted


def test_workers_that_die_are_stood_in_for(started: list[subprocess.Popen[bytes]]) -> None:
    def deadly() -> Iterator[list[bytes]]:
        for number, batch in enumerate(BATCHES):
            if number == 3:
                for worker in started:
                    worker.kill()
            yield batch

    assert same(list(decode_batches(deadly(), LOOK, total=28)))
    assert len(started) == 2


def test_where_none_can_be_started_this_process_does_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    assert same(list(decode_batches(BATCHES, LOOK, total=28)))


def test_few_pictures_start_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "PAYS_FROM", 100)
    monkeypatch.setattr(workers.subprocess, "Popen", None)
    assert same(list(decode_batches(BATCHES, LOOK, total=28)))


def test_no_process_outlives_an_error_in_the_middle(started: list[subprocess.Popen[bytes]]) -> None:
    def broken_off() -> Iterator[list[bytes]]:
        yield BATCHES[0]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(decode_batches(broken_off(), LOOK, total=28))
    assert len(started) == 2
    assert all(worker.poll() is not None for worker in started)


def test_a_worker_whose_parent_is_gone_ends_by_itself() -> None:
    command = [sys.executable, "-m", "uqgan.workers"]
    worker = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert worker.stdin
    worker.stdin.close()
    assert worker.wait(timeout=60) == 0
    worker.stdout.close()  # type: ignore[union-attr]


def test_sets_that_are_decoded_together_share_their_workers(started: list[subprocess.Popen[bytes]]) -> None:
    with kept_workers():
        assert same(list(decode_batches(BATCHES, LOOK, total=28)))
        assert same(list(decode_batches(BATCHES, LOOK, total=1)))  # they are there, so they help
        assert len(started) == 2
        assert all(worker.poll() is None for worker in started)
    assert all(worker.poll() is not None for worker in started)
    assert same(list(decode_batches(BATCHES, LOOK, total=28)))
    assert len(started) == 4


def test_sets_are_loaded_two_at_a_time_and_given_in_order() -> None:
    both = threading.Barrier(2, timeout=60)

    def load(name: str, part: str) -> str:
        both.wait()
        return name + part

    wanted = [("a", "1"), ("a", "2"), ("b", "1"), ("b", "2")]
    assert list(two_at_a_time(load, wanted, Pool()).items()) == [(each, "".join(each)) for each in wanted]


def test_an_error_in_one_set_stops_the_others(started: list[subprocess.Popen[bytes]]) -> None:
    loaded: list[str] = []
    begun, ended = threading.Event(), threading.Event()

    def load(name: str, part: str) -> list[Outcome]:
        loaded.append(name)
        if name == "broken":
            assert begun.wait(timeout=60)
            raise UsageError("broken")
        try:
            return list(decode_batches(for_long(), LOOK, total=28))
        finally:
            ended.set()

    def for_long() -> Iterator[list[bytes]]:
        for _ in range(20_000):
            yield BATCHES[0]
            begun.set()

    with kept_workers() as pool, pytest.raises(UsageError, match="broken"):
        two_at_a_time(load, [("long", ""), ("broken", ""), ("never", "")], pool)
    assert ended.wait(timeout=2)
    assert "never" not in loaded
    assert all(worker.poll() is not None for worker in started)


def test_what_does_not_ask_for_workers_is_not_waited_for() -> None:
    waits, ended = threading.Event(), threading.Event()

    def load(name: str, part: str) -> None:
        if name == "broken":
            raise UsageError("broken")
        waits.wait(timeout=30)
        ended.set()

    with kept_workers() as pool, pytest.raises(UsageError, match="broken"):
        two_at_a_time(load, [("waits", ""), ("broken", "")], pool)
    assert not ended.is_set()
    waits.set()


def test_a_pool_that_was_stopped_starts_no_more_and_one_that_was_closed_lets_this_process_work() -> None:
    stopped, closed = Pool(), Pool()
    for pool in (stopped, closed):
        pool.at_least(2)
    stopped.stop()
    stopped.at_least(4)
    assert len(stopped.started) == 2
    with pytest.raises(RuntimeError, match="stopped"):
        stopped.ask(len, "abc")
    closed.close()
    assert closed.ask(len, "abc") == 3
    stopped.close()
