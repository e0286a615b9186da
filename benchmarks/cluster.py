"""Two Ray nodes on this machine, of which a worker and one node are killed, beside the same work without Ray.

    python benchmarks/cluster.py cells [--json results/speed/cluster.json]
    python benchmarks/cluster.py predict [--n 100000] [--json results/speed/cluster.json]

`cells`: twelve cells of the digits, each of which trains for ten seconds or more on one thread. This machine runs them
by two workers, then two nodes of one core do; there a process on the first node is killed with SIGKILL when three are
done, and the second node when six are. Every cell must be done once, and weights, logs and raw scores must be the same
byte for byte. Cells that are done already do nothing, and show what it costs to hand one out.

`predict`: generated 32 × 32 PNG files by `uqgan predict`, by the same with --ray, and by Ray Data with the same
function for each chunk, if pandas is installed, which Ray Data needs. The outputs must be the same byte for byte.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

import torch

from grid import shown
from iteration import merge
from scoring import train, write_pictures
from uqgan.api import load
from uqgan.data.inputs import Sources, pixel_format_of
from uqgan.environment import COMMIT, describe, versions
from uqgan.files import CACHE_VARIABLE, cache_folder, sha256
from uqgan.grid.cells import Cell, plan_cells, result_digests
from uqgan.grid.cluster import Cluster
from uqgan.grid.connection import Needs, connected
from uqgan.grid.parcels import marks_of
from uqgan.grid.pool import Pool
from uqgan.grid.scatter import Chunk, Scoring, chunks_of, scattered, score_chunk, scoring_of
from uqgan.grid.schedule import Event, Schedule, Terms
from uqgan.scoring import chunk_size

SEEDS = range(6)
LONG = {"one_vs_all.epochs": 300, "cross_entropy.epochs": 300, "fresh": True}
LEAST_SECONDS = 10.0
DONE_CELLS = 100
STORE = 100 * 2**20
SAME = ("weights.safetensors", "log.jsonl", "raw_scores.npz")
KEY = ("what",)


@contextmanager
def two_nodes(cores: int = 1) -> Iterator[Any]:
    """A cluster of two nodes on this machine, which notices within seconds that one is dead."""
    from ray.cluster_utils import Cluster as Nodes

    checks = {"health_check_period_ms": 500, "health_check_failure_threshold": 4, "health_check_initial_delay_ms": 0}
    head = {"num_cpus": cores, "object_store_memory": STORE, "include_dashboard": False, "_system_config": checks}
    nodes: Any = Nodes(True, head_node_args=head)
    nodes.add_node(num_cpus=cores, object_store_memory=STORE)
    try:
        yield nodes
    finally:
        nodes.shutdown()


class Account:
    """What happened to each cell, and what its files were when it was done."""

    def __init__(self, root: Path, then: Callable[["Account", Event], None] = lambda *_: None) -> None:
        self.root, self.then = root, then
        self.done: Counter[Cell] = Counter()
        self.files: dict[Cell, Any] = {}
        self.lost: list[tuple[str, str, int]] = []
        self.steps: dict[Cell, int] = {}
        self.workers: Counter[str] = Counter()

    def __call__(self, event: Event) -> None:
        if event.state == "done":
            self.done[event.cell] += 1
            self.workers[event.worker] += 1
            self.files[event.cell] = marks_of(self.root / event.cell.name)
        elif event.state == "waiting":
            self.lost.append((event.cell.name, event.text, self.steps.get(event.cell, 0)))
        elif event.total > 1:
            self.steps[event.cell] = event.step
        if event.state != "running":
            print(f"{event.cell.name}: {event.state} {event.text} [{event.worker}]", flush=True)
        self.then(self, event)


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def killer(nodes: Any) -> Callable[[Account, Event], None]:
    """Kills a process on the first node, then the second node, each in the middle of a training."""
    (second,) = nodes.worker_nodes
    raylet = second.all_processes["raylet"][0].process.pid
    killed: list[int] = []

    def kill(account: Account, event: Event) -> None:
        if not 0.1 < event.step / max(1, event.total) < 0.7 or len(account.done) < (3, 6, 10**6)[len(killed)]:
            return
        pid = int(event.worker.rpartition(":")[2])
        if not killed and parent(pid) != raylet:
            os.kill(pid, signal.SIGKILL)
            killed.append(pid)
        elif killed and parent(pid) == raylet:
            nodes.remove_node(second, allow_graceful=False)
            killed.append(raylet)

    return kill


def run_cells(folder: Path) -> dict[str, Any]:
    cells = plan_cells(["digits"], ["one-vs-all", "max-softmax"], SEEDS, [LONG])
    ray_terms, alone_terms = Terms(folder / "ray", "cpu"), Terms(folder / "alone", "cpu")
    alone_terms.root.mkdir()
    start = time.perf_counter()
    Pool(2)(Schedule.of(cells), alone_terms, Account(alone_terms.root))
    alone_seconds = time.perf_counter() - start
    trained = [seconds_of(alone_terms.root / cell.name) for cell in cells]
    with two_nodes() as nodes:
        account, start = Account(ray_terms.root, killer(nodes)), time.perf_counter()
        Cluster(nodes.address)(Schedule.of(cells), ray_terms, account)
        ray_seconds = time.perf_counter() - start
    with two_nodes() as nodes:
        overhead, start_up = cost_of_a_cell(nodes.address, ray_terms, cells[0])
    checks = {
        "each_done_once": sorted(account.done.values()) == [1] * len(cells),
        "files_unchanged": all(account.files[cell] == marks_of(ray_terms.root / cell.name) for cell in cells),
        "same_bytes": all(
            sha256(ray_terms.root / cell.name / name) == sha256(alone_terms.root / cell.name / name)
            for cell in cells
            for name in SAME
        ),
        "killed_had_begun": len(account.lost) == 2 and all(steps > 0 for *_, steps in account.lost),
        "each_trained_10_s": min(trained) >= LEAST_SECONDS,
        "results": len(result_digests(cells, ray_terms.root)) == len(cells),
    }
    return {
        "what": "cells",
        "cells": len(cells),
        "least_seconds_of_training": round(min(trained), 1),
        "lost": [{"cell": name, "why": why, "at_step": steps} for name, why, steps in account.lost],
        "done_by_process": sorted(account.workers.values(), reverse=True),
        "checks": checks,
        "seconds_two_nodes_with_kills": round(ray_seconds, 1),
        "seconds_two_workers_without_ray": round(alone_seconds, 1),
        "overhead_ms_per_cell": round(overhead, 1),
        "seconds_until_first_cell": round(start_up, 1),
    }


def seconds_of(folder: Path) -> float:
    return float(json.loads((folder / "about.json").read_text())["seconds"])


def cost_of_a_cell(address: str, terms: Terms, cell: Cell) -> tuple[float, float]:
    """Milliseconds between the ends of two cells of one process that do nothing, and seconds until the first."""
    root = terms.root / "done"
    cells = []
    for seed in range(DONE_CELLS):
        cells.append(replace(cell, seed=seed))
        place = root / cells[-1].name
        place.mkdir(parents=True)
        (place / cell.result).write_bytes((terms.root / cell.name / cell.result).read_bytes())
    ends: list[float] = []

    def note(event: Event) -> None:
        if event.state == "done":
            ends.append(time.perf_counter())

    start = time.perf_counter()
    Cluster(address, most=1)(Schedule.of(cells), replace(terms, root=root), note)
    return 1e3 * (ends[-1] - ends[0]) / (len(ends) - 1), ends[0] - start


def predict(folder: Path, n: int) -> dict[str, Any]:
    run, pictures = folder / "run", folder / "pictures"
    train(run)
    write_pictures(pictures, n)
    few = folder / "few"
    write_pictures(few, 512)
    found: dict[str, Any] = {"what": "predict", "pictures": n}
    with two_nodes() as nodes:
        ways = {"here": [], "tasks": ["--ray", nodes.address]}
        for name, words in ways.items():
            found[f"{name}_seconds_for_512"] = command(run, few, folder / f"{name}-few.csv", words)
            found[f"{name}_seconds"] = command(run, pictures, folder / f"{name}.csv", words)
        found |= scoring_seconds(nodes.address, run, pictures)
    found["same_bytes"] = (folder / "here.csv").read_bytes() == (folder / "tasks.csv").read_bytes()
    found["lines"] = sum(1 for _ in (folder / "tasks.csv").open())
    return found


def command(run: Path, pictures: Path, output: Path, words: list[str]) -> float:
    """Seconds of a whole process that predicts."""
    start = time.perf_counter()
    own = ["-m", "uqgan", "predict", str(run), str(pictures), "-o", str(output), "--device", "cpu", "--quiet", *words]
    subprocess.run([sys.executable, *own], check=True, stdout=subprocess.DEVNULL)
    return round(time.perf_counter() - start, 1)


def scoring_seconds(address: str, run: Path, pictures: Path) -> dict[str, Any]:
    """Seconds that scoring takes in one process, without start-up of the command."""
    loaded = load(run, "cpu")
    scoring = scoring_of(
        run, pixel_format_of(loaded.record.plan.shape), "cpu", Needs(), 0, probabilities=False, decides=True
    )
    work = (address, scoring, list(Sources([str(pictures)])), chunk_size(loaded))
    found = timed("tasks", by_tasks, *work)
    if find_spec("pandas") is None:
        print("Ray Data is left out: it needs pandas, which is not installed")
        return found
    return found | timed("data", by_data, *work)


def timed(name: str, way: Callable[..., list[Any]], *work: Any) -> dict[str, Any]:
    """Seconds that a way to score takes, and the number of its rows."""
    start = time.perf_counter()
    rows = way(*work)
    return {f"{name}_seconds_scoring": round(time.perf_counter() - start, 1), f"{name}_rows": len(rows)}


def by_tasks(address: str, scoring: Scoring, files: list[str], size: int) -> list[Any]:
    with scattered(address, Needs(), scoring, iter(files), size, 0) as chunks:
        return [row for _, some in chunks for row in some]


def by_data(address: str, scoring: Scoring, files: list[str], size: int) -> list[Any]:
    with connected(address) as ray:
        import ray.data

        context = ray.data.DataContext.get_current()
        context.execution_options.preserve_order = True
        context.enable_progress_bars = False
        told = ray.put(scoring)

        def score(item: dict[str, Any]) -> dict[str, Any]:
            chunk = Chunk(int(item["number"]), list(item["files"]), tuple(item["sight"]))
            return {"rows": score_chunk(ray.get(told), chunk)}

        items = [
            {"number": chunk.number, "files": chunk.files, "sight": chunk.sight}
            for chunk in chunks_of(files, size, 0, scoring.place)
        ]
        data = ray.data.from_items(items, override_num_blocks=len(items)).map(score, num_cpus=1)
        return [row for item in data.iter_rows() for row in item["rows"]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["cells", "predict"])
    parser.add_argument("--n", type=int, default=100_000)
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    with TemporaryDirectory(prefix="uqgan-cluster-") as place:
        os.environ[CACHE_VARIABLE] = str(Path(place) / "cache")
        cache_folder().mkdir()
        row = run_cells(Path(place)) if chosen.command == "cells" else predict(Path(place), chosen.n)
    found = versions()
    row |= {
        "device": describe(torch.device("cpu")),
        "command": f"python benchmarks/cluster.py {shown(sys.argv[1:])}",
    }
    row |= {"commit": COMMIT, "load": round(os.getloadavg()[1], 1)}
    row |= {"versions": {key: found[key] for key in ("torch", "python")} | {"ray": __import__("ray").__version__}}
    for key, value in row.items():
        print(f"{key}: {value}")
    if chosen.json:
        merge(chosen.json, [row], KEY)


if __name__ == "__main__":
    main()
