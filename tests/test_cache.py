"""Decoded pictures are kept on disk: whole or absent, whoever builds them and whatever happens meanwhile."""

import os
import resource
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
import torch

from pictures import write_random_set
from uqgan.data import sets, sources
from uqgan.data.cache import clean, content_of, pictures_folder
from uqgan.data.dataset import Decoded
from uqgan.data.sets import load_split
from uqgan.files import cache_folder


@pytest.fixture(autouse=True)
def _fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UQGAN_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_random_set(tmp_path / "data", "mnist", "test", 50, 10, 0)
    return tmp_path / "data"


def decodings(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Counts how often Parquet files are decoded from here on."""
    counted: list[int] = []
    decode = sets.decode_files

    def counting(*args: object) -> Decoded:
        counted.append(1)
        return decode(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(sets, "decode_files", counting)
    return counted


def test_pictures_are_decoded_once(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counted = decodings(monkeypatch)
    first = load_split("mnist", "test", 32, 1, root)
    second = load_split("mnist", "test", 32, 1, root)
    assert len(counted) == 1
    assert torch.equal(first.x, second.x)
    assert torch.equal(first.y, second.y)
    assert first.class_names == second.class_names


def test_another_look_or_other_content_is_decoded_anew(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counted = decodings(monkeypatch)
    before = load_split("mnist", "test", 32, 1, root)
    load_split("mnist", "test", 32, 3, root)
    load_split("mnist", "test", 64, 1, root)
    write_random_set(root, "mnist", "test", 50, 10, 1000)
    after = load_split("mnist", "test", 32, 1, root)
    assert len(counted) == 4
    assert not torch.equal(before.x, after.x)


def test_a_copied_or_touched_file_is_the_same_content(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = decodings(monkeypatch)
    load_split("mnist", "test", 32, 1, root)
    (file,) = sources.files_of("mnist", "test", root)
    os.utime(file, (0, 0))
    load_split("mnist", "test", 32, 1, root)
    root.rename(tmp_path / "elsewhere")
    load_split("mnist", "test", 32, 1, tmp_path / "elsewhere")
    assert len(counted) == 1


def test_a_changed_byte_of_the_same_size_and_time_is_other_content(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_bytes(b"one")
    os.utime(file, (1, 1))
    before = content_of([file], tmp_path)
    file.write_bytes(b"two")
    os.utime(file, (1, 1))
    assert content_of([file], tmp_path) != before


@pytest.mark.parametrize("damage", ["cut", "flipped", "emptied", "text"])
def test_a_damaged_file_is_made_anew(root: Path, monkeypatch: pytest.MonkeyPatch, damage: str) -> None:
    whole = load_split("mnist", "test", 32, 1, root).x.clone()
    (file,) = pictures_folder().glob("*.safetensors")
    data = bytearray(file.read_bytes())
    data[-5000] ^= 255
    kinds = {"cut": bytes(data[:-300]), "flipped": bytes(data), "emptied": b"", "text": b"not tensors at all"}
    file.unlink()
    file.write_bytes(kinds[damage])
    counted = decodings(monkeypatch)
    assert torch.equal(load_split("mnist", "test", 32, 1, root).x, whole)
    assert len(counted) == 1
    load_split("mnist", "test", 32, 1, root)
    assert len(counted) == 1


LOAD = """
    import sys
    from pathlib import Path
    from uqgan.data import sets
    {extra}
    decode = sets.decode_files
    def slowly(*args):
        print("decoding", flush=True)
        {slow}
        return decode(*args)
    sets.decode_files = slowly
    found = sets.load_split("mnist", "test", 32, 1, Path(sys.argv[1]))
    print(int(found.x.long().sum()), flush=True)
"""


def start(root: Path, slow: str = "pass", extra: str = "") -> subprocess.Popen[str]:
    code = textwrap.dedent(LOAD).format(slow=slow, extra=extra)
    return subprocess.Popen([sys.executable, "-c", code, str(root)], stdout=subprocess.PIPE, text=True)


def test_of_two_processes_that_want_the_same_one_decodes_and_both_get_it(root: Path) -> None:
    both = [start(root, slow="__import__('time').sleep(1)") for _ in range(2)]
    outputs = [process.communicate(timeout=60)[0].split() for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert outputs[0][-1] == outputs[1][-1]
    assert sum("decoding" in output for output in outputs) == 1
    assert len(list(pictures_folder().glob("*.safetensors"))) == 1


def test_a_process_killed_while_writing_leaves_a_cache_that_the_next_one_repairs(root: Path) -> None:
    stuck = "time.sleep(600) if list(Path(os.environ['UQGAN_CACHE']).glob('pictures/.*')) else None"
    process = start(root, extra=f"import os, time; os.fsync = lambda _: {stuck}")
    deadline = time.monotonic() + 60
    while not [f for f in pictures_folder().glob(".*.safetensors.*") if f.stat().st_size > 50_000]:
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=30)
    assert not list(pictures_folder().glob("mnist*.safetensors"))
    assert len(load_split("mnist", "test", 32, 1, root).y) == 50
    assert len(list(pictures_folder().glob("mnist*.safetensors"))) == 1
    assert not list(pictures_folder().glob(".*"))


def test_without_a_place_to_write_pictures_are_decoded_each_time(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("UQGAN_CACHE", str(tmp_path / "file"))
    said: list[str] = []
    assert len(load_split("mnist", "test", 32, 1, root, say=said.append).y) == 50
    assert any("without a cache" in sentence for sentence in said)


def test_on_a_full_disk_the_work_goes_on_without_a_cache(root: Path) -> None:
    said: list[str] = []
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))
    try:
        found = load_split("mnist", "test", 32, 1, root, say=said.append)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert len(found.y) == 50
    assert any("could not be written" in sentence and "without a cache" in sentence for sentence in said)
    assert not list(pictures_folder().glob("*.safetensors"))


def test_cleaning_frees_what_was_decoded_and_keeps_what_was_fetched(root: Path) -> None:
    load_split("mnist", "test", 32, 1, root)
    fetched = cache_folder() / "data" / "mnist" / "test-00000-of-00001.parquet"
    fetched.parent.mkdir(parents=True)
    fetched.write_bytes(b"kept")
    assert clean() > 50 * 32 * 32
    assert not list(pictures_folder().iterdir())
    assert fetched.read_bytes() == b"kept"
    assert clean() == 0
