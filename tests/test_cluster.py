"""A grid on a Ray cluster: what machines send each other, and two real nodes of which one dies."""

import json
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from uqgan import fit, load
from uqgan.cli import main
from uqgan.data.decode import decode
from uqgan.data.inputs import batches_of, pixel_format_of
from uqgan.data.tasks import load_task
from uqgan.errors import UsageError
from uqgan.files import sha256, write_json
from uqgan.grid import cluster, connection
from uqgan.grid.cells import Cell, plan_cells, run_cell
from uqgan.grid.cluster import Cluster
from uqgan.grid.connection import Needs
from uqgan.grid.host import Host, Order, Station
from uqgan.grid.parcels import Share, marks_of, packed, unpack
from uqgan.grid.scatter import Chunk, chunks_of, in_order, score_chunk, scoring_of
from uqgan.grid.schedule import Event, Schedule, Terms, survey
from uqgan.scoring import score

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
        connection.connected("127.0.0.1:1").__enter__()
    with pytest.raises(UsageError, match="--ray = somewhere: must be auto, or HOST:PORT"):
        connection.connected("somewhere").__enter__()


def test_without_ray_one_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(UsageError, match=r"--ray: Ray is not installed \(pip install \"uqgan\[cluster\]\"\)"):
        connection.ray_module()


# A process on a node, without the cluster


def order_of(cell: Cell, begun: dict[str, bytes]) -> Order:
    return Order(cell, None, [None], begun, {})


def one_cell(epochs: int) -> Cell:
    (cell,) = plan_cells(["digits"], ["one-vs-all"], [0], [{"one_vs_all.epochs": epochs, "fresh": True}])
    return cell


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What a run makes that nothing stops."""
    cell, root = one_cell(epochs=40), tmp_path_factory.mktemp("alone")
    run_cell(cell, root, load_task(cell.task), torch.device("cpu"))
    return facts(root, cell)


def host_of(root: Path, cell: Cell, share: str | None) -> Host:
    """A process that does not see the grid's folder, with the data that it would have been sent."""
    host = Host(Station(Terms(root, "cpu"), "cpu", 1, "nothing-of-this-name", share))
    host.tasks[cell.task] = load_task(cell.task)
    return host


@pytest.mark.parametrize("share", ["", "file", "memory"])
def test_a_run_that_was_stopped_on_one_node_goes_on_on_another(
    share: str, alone: dict[str, str], tmp_path: Path
) -> None:
    cell = one_cell(epochs=40)
    url = {"": None, "file": f"file://{tmp_path}/share", "memory": f"memory://{tmp_path.name}"}[share]
    first, back = host_of(tmp_path / "grid", cell, url), []
    thread = threading.Thread(target=lambda: back.append(first.run(order_of(cell, {}))))
    thread.start()
    while not any(event.step > 5 for event in first.news()[0]):
        pass
    first.stop()
    thread.join()
    assert back[0].ended.state == "stopped"
    assert any(name.startswith("resume/") for name in back[0].parcel)
    second = host_of(tmp_path / "grid", cell, url)
    done = second.run(order_of(cell, {} if url else back[0].parcel))
    assert done.ended.state == "done"
    assert any("going on at step" in event.text for event in second.news()[0])
    unpack(done.parcel or {}, tmp_path / "grid" / cell.name, cell.result, whole=True)
    assert facts(tmp_path / "grid", cell) == alone
    assert not url or cell.result in Share(url).names(cell.name)
    for host in (first, second):
        host.leave()
        assert not host.terms.root.exists()


def test_a_cell_on_a_node_that_is_gone_is_lost(tmp_path: Path) -> None:
    cell = one_cell(epochs=1)
    host = host_of(tmp_path / "grid", cell, None)
    host.parent = -1
    assert host.run(order_of(cell, {})).ended.state == "lost"


def test_saved_states_are_sent_while_a_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("uqgan.training.SAVE_SECONDS", 0.05)
    cell = one_cell(epochs=40)
    host = host_of(tmp_path / "grid", cell, None)
    thread = threading.Thread(target=lambda: host.run(order_of(cell, {})))
    thread.start()
    while not (saved := host.news()[1]):
        pass
    host.stop()
    thread.join()
    assert {"resume/one_vs_all.safetensors", "log.jsonl", "config.yaml"} <= saved.keys()
    other = host_of(tmp_path / "grid", cell, None)
    assert other.run(order_of(cell, saved)).ended.state == "done"
    assert any("going on at step" in event.text for event in other.news()[0])


def test_what_one_node_trained_others_need_not_train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ray.get", lambda reference: reference)
    cells = plan_cells(["digits"], ["max-softmax", "entropy"], [0], [{"cross_entropy.epochs": 1}])
    shelf: dict[str, bytes] = {}
    for number, cell in enumerate(cells):
        monkeypatch.setenv("UQGAN_CACHE", str(tmp_path / f"cache-{number}"))
        host = host_of(tmp_path / "grid", cell, None)
        back = host.run(replace(order_of(cell, {}), shelf=dict(shelf)))
        assert bool(back.made) == (number == 0)
        shelf |= back.made
        assert back.parcel
        assert bool(json.loads(back.parcel["about.json"])["reused"]) == (number == 1)
        host.leave()


# Two real nodes


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A Ray cluster of two nodes with a core and a cache each, which notices soon that one of them is dead."""
    import ray.cluster_utils

    patch = pytest.MonkeyPatch()
    patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    caches = [str(tmp_path_factory.mktemp("cache")) for _ in range(2)]
    patch.setenv("UQGAN_CACHE", caches[0])
    checks = {"health_check_period_ms": 500, "health_check_failure_threshold": 4, "health_check_initial_delay_ms": 0}
    head = {"num_cpus": 1, "object_store_memory": STORE, "include_dashboard": False, "_system_config": checks}
    made = ray.cluster_utils.Cluster(initialize_head=True, head_node_args=head)
    patch.setenv("UQGAN_CACHE", caches[1])
    made.add_node(num_cpus=1, object_store_memory=STORE)
    patch.undo()
    yield made
    made.shutdown()


def raylet_of(node: Any) -> int:
    return int(node.all_processes["raylet"][0].process.pid)


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


class Account:
    """What happened to each cell: how it began and ended, where, and what its files were when it was done."""

    def __init__(self, root: Path, then: Callable[["Account", Event], None] = lambda *_: None) -> None:
        self.root, self.then = root, then
        self.events: list[Event] = []
        self.done: dict[Cell, dict[str, tuple[int, int]]] = {}

    def __call__(self, event: Event) -> None:
        self.events.append(event)
        if event.state == "done":
            assert event.cell not in self.done
            self.done[event.cell] = marks_of(self.root / event.cell.name)
        self.then(self, event)


@pytest.mark.parametrize("kind", ["", "file"])
def test_nodes_that_share_no_disk_send_runs_back_or_leave_them_at_a_url(
    kind: str, nodes: Any, alone: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "tokens", lambda *_: nullcontext("nothing-of-this-name"))
    share = f"file://{tmp_path}/share" if kind else None
    cell = one_cell(epochs=40)
    cells = [cell, replace(cell, seed=1)]
    for root in (tmp_path / "grid", tmp_path / "again"):
        account = Account(root)
        Cluster(nodes.address, share)(Schedule.of(cells), Terms(root, "cpu"), account)
        assert account.done.keys() == set(survey(cells, root).done) == set(cells)
        assert facts(root, cell) == alone
        taken = root == tmp_path / "again"
        assert all((event.text == "taken from the share") == taken for event in account.events if event.state == "done")
        if not share:
            break


# Pictures


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    fit("mc-dropout", "digits", folder=folder, quiet=True, epochs=1)
    return folder


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Some chunks of pictures, of which one is broken, one is a folder, and one has a strange name."""
    folder = tmp_path_factory.mktemp("pictures")
    x = np.random.default_rng(0).integers(0, 256, (300, 32, 32), np.uint8)
    for k, each in enumerate(x):
        Image.fromarray(each).save(folder / f"{k:04d}.png")
    (folder / "0100.png").write_bytes(b"no picture")
    (folder / "0200.png").unlink()
    (folder / "0200.png").symlink_to("nowhere")
    Image.fromarray(x[0]).save(folder / "äöü ✓.png")
    return folder


def predict(*words: str | Path) -> int:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["uqgan", "predict", *map(str, words), "--quiet", "--device", "cpu"])
        with pytest.raises(SystemExit) as error:
            main()
    return int(error.value.code or 0)


def test_pictures_are_scored_by_two_nodes_as_by_one_machine(
    nodes: Any, trained: Path, pictures: Path, tmp_path: Path
) -> None:
    here, there = tmp_path / "here.csv", tmp_path / "there.csv"
    assert predict(trained, pictures, "-o", here, "--probabilities") == 1  # two cannot be read
    assert predict(trained, pictures, "-o", there, "--probabilities", "--ray", nodes.address) == 1
    assert there.read_bytes() == here.read_bytes()
    assert len(here.read_text().splitlines()) == 302


def test_nodes_that_do_not_see_the_pictures_are_sent_them(trained: Path, pictures: Path) -> None:
    run, files = load(trained, "cpu"), sorted(map(str, pictures.iterdir()))
    scoring = scoring_of(trained, pixel_format_of((1, 32, 32)), "cpu", Needs(), 0, probabilities=True, decides=True)
    seen: list[bool] = []

    def begin(chunk: Chunk) -> Any:
        seen.append(chunk.contents is None)
        away = chunk if chunk.contents else replace(chunk, sight=(files[0], 0, 0))
        return lambda: score_chunk(scoring, away)

    node = SimpleNamespace(get=lambda answer: answer(), exceptions=import_module("ray").exceptions)
    found = list(in_order(node, begin, chunks_of(files, 128, 0, ""), lambda: 2))
    assert seen == [True, True, False, False, False]
    assert [file for batch, _ in found for file in batch] == files
    pieces = ((batch, decode(batch, scoring.pixel_format)) for batch in batches_of(files, 128))
    assert [rows for _, rows in found] == list(score(run, pieces, 0, True))


def test_cells_are_done_once_though_a_worker_and_a_node_are_killed(
    nodes: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    variants = [{"cross_entropy.epochs": 60, "one_vs_all.epochs": 60, "fresh": True}]  # long beside the news of it
    cells = plan_cells(["digits"], ["max-softmax", "one-vs-all"], range(6), variants)
    assert len(cells) == 12
    (second,) = nodes.worker_nodes
    killed: list[tuple[Cell, str, str]] = []

    def kill(account: Account, event: Event) -> None:
        """Once 3 cells are done a worker of the first node is killed, and once 6 are, the second node."""
        if not 2 <= event.step <= event.total / 2 or len(account.done) < (3, 6, 99)[len(killed)]:
            return
        pid = int(event.worker.rpartition(":")[2])
        if not killed and parent(pid) != raylet_of(second):
            os.kill(pid, signal.SIGKILL)
            killed.append((event.cell, event.worker, "worker"))
        elif killed and parent(pid) == raylet_of(second):
            nodes.remove_node(second, allow_graceful=False)
            killed.append((event.cell, event.worker, "node"))

    account, terms = Account(tmp_path / "grid", kill), Terms(tmp_path / "grid", "cpu")
    Cluster(nodes.address)(Schedule.of(cells), terms, account)
    out, err = capfd.readouterr()
    assert not out, "what Ray says of the dead stands among the results"
    assert "died or was killed" in err
    assert [kind for *_, kind in killed] == ["worker", "node"]
    lost = [(event.cell, event.worker) for event in account.events if event.state == "waiting"]
    assert lost == [(cell, worker) for cell, worker, _ in killed]
    assert account.done.keys() == set(cells)
    assert account.done == {cell: marks_of(terms.root / cell.name) for cell in cells}
    assert len(survey(cells, terms.root).done) == 12
    ends = Counter(event.worker for event in account.events if event.state == "done")
    assert len(ends) == 3, "two processes of the first node, one of the second"
    for cell in cells:
        run_cell(cell, tmp_path / "alone", load_task(cell.task), torch.device("cpu"))
        assert facts(terms.root, cell) == facts(tmp_path / "alone", cell)
