"""Pictures that several processes decode are those that one process decodes, whatever happens to the processes."""

import io
import os
from typing import Any

import joblib
import numpy as np
import pytest
from PIL import Image

from uqgan.data import decode as decoding
from uqgan.data.decode import Encoded, Look, Outcome, decode, decode_all

LOOK = Look(size=8, channels=3)


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
    monkeypatch.setattr(decoding, "PAYS_FROM", 1)
    monkeypatch.setattr(joblib, "cpu_count", lambda: 2)


def same(found: Outcome) -> bool:
    x, broken = decode([picture for batch in BATCHES for picture in batch], LOOK)
    readable = [row for row in range(TOTAL) if row not in broken]
    return found[1] == broken and np.array_equal(found[0][readable], x[readable])


def test_pictures_keep_their_rows_and_broken_ones_are_said() -> None:
    found = decode_all(lambda: BATCHES, LOOK, TOTAL, 0)
    assert same(found)
    assert found[1] == {4: "not a png, jpg, webp or bmp picture"}


def test_work_goes_to_other_processes_where_it_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    here = (os.getpid, (), {})
    pids: list[int] = []

    def with_pid(batch: Any, look: Look) -> Any:
        return here

    monkeypatch.setattr(joblib, "delayed", lambda _: with_pid)
    monkeypatch.setattr(decoding, "PAYS_FROM", 100)
    for n, n_bytes in ((99, 0), (100, 0), (1, 100 * decoding.COSTLY)):
        with pytest.raises(TypeError) as caught:  # a number is no outcome
            decode_all(lambda: BATCHES, LOOK, n, n_bytes)
        pids.append(n)
    assert caught
