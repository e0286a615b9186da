"""A grid on a Ray cluster: what machines send each other, and two real nodes of which one dies."""

from pathlib import Path

import pytest

from uqgan import cluster
from uqgan.cells import Cell
from uqgan.errors import UsageError
from uqgan.files import sha256, write_json
from uqgan.parcels import Share, marks_of, packed, unpack

STORE = 100 * 2**20
"""Bytes of each node's object store."""


def files(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in marks_of(folder)}


def facts(root: Path, cell: Cell) -> dict[str, str]:
    """Digests of what a run made, without its times."""
    return {name: sha256(root / cell.name / name) for name in ("weights.safetensors", "log.jsonl", "raw_scores.npz")}


# What machines send each other


def test_a_parcel_makes_the_same_folder_and_leaves_nothing_else(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    for name in ("scores.json", "log.jsonl", "inner/a.npz"):
        write_json(here / name, name)
    write_json(there / "resume" / "old.safetensors", "gone")
    unpack(packed(here), there, "scores.json", whole=True)
    assert files(there) == files(here)
    assert not (there / "resume").exists()
    known = marks_of(here)
    write_json(here / "log.jsonl", "longer than it was")
    assert packed(here, known).keys() == {"log.jsonl"}


@pytest.mark.parametrize("kind", ["file", "memory"])
def test_a_share_keeps_runs_whole_and_a_result_as_it_is(kind: str, tmp_path: Path) -> None:
    share = Share(f"file://{tmp_path}/share" if kind == "file" else f"memory://{tmp_path.name}")
    share.check()
    assert share.fetch("a/b") == {}
    share.keep("a/b", {"resume/x.safetensors": b"state", "log.jsonl": b"row"}, "scores.json", whole=False)
    assert share.fetch("a/b").keys() == {"resume/x.safetensors", "log.jsonl"}
    run = {"scores.json": b"{}", "log.jsonl": b"rows", "weights.safetensors": b"w"}
    share.keep("a/b", run, "scores.json", whole=True)
    assert share.fetch("a/b") == run
    share.keep("a/b", {"scores.json": b"other"}, "scores.json", whole=True)
    assert share.fetch("a/b") == run


def test_what_is_no_share_or_no_cluster_is_refused_in_one_sentence() -> None:
    with pytest.raises(UsageError, match="--share = nowhere-known://x: "):
        Share("nowhere-known://x").check()
    with pytest.raises(UsageError, match=r"--ray = 127.0.0.1:1: no Ray cluster is there \(start one"):
        cluster.connected("127.0.0.1:1").__enter__()
    with pytest.raises(UsageError, match="--ray = somewhere: must be auto, or HOST:PORT"):
        cluster.connected("somewhere").__enter__()


def test_without_ray_one_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(UsageError, match=r"--ray: Ray is not installed \(pip install \"uqgan\[cluster\]\"\)"):
        cluster.ray_module()
