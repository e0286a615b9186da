"""Runs per hour: cells by `uqgan grid` beside the same cells one after another, and what a grid itself costs.

    python benchmarks/grid.py workers [--json results/speed/grid.json]
    python benchmarks/grid.py sides mnist --seeds 0-3 --device cuda [--side grid] [--max-minutes 9] [--json …]
    python benchmarks/grid.py sides cifar10 --seeds 0-1 --device cuda [--side alone]

`workers`: eight equal cells on one thread each, by one worker and by two, in turns; and the time between the end of a
cell and the beginning of the next, from cells that are done already and so do nothing.

`sides`: the cells of `uqgan` and `uqgan-mc`. Side `grid` is one command, whose workers share the GPU under MPS; side
`alone` a fresh `uqgan train` per cell, one after another. Both begin with decoded data and with caches of their own for
autoencoders and compiled code, which are empty. A side that --max-minutes stops is gone on with by the same command,
and its seconds add up; what was begun is in --folder. Settings can be given as for `uqgan train`.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

from iteration import merge
from uqgan.cli.chosen import chosen_seeds
from uqgan.data.tasks import load_task
from uqgan.environment import COMMIT, describe, versions
from uqgan.files import CACHE_VARIABLE, cache_folder, write_json
from uqgan.grid.cells import Cell, is_done, plan_cells
from uqgan.grid.mps import CONTROL
from uqgan.grid.pool import Pool
from uqgan.grid.schedule import Event, Schedule, Terms
from uqgan.runs import finished, holds_run

SEEDS = range(8)
EQUAL = {"one_vs_all.epochs": 60, "fresh": True}
"""Settings of the eight equal cells, on the digits."""
REPEATS = 3
DONE_CELLS = 100
KEY = ("what", "side", "workers", "device")
PLACES = ("--json", "--folder", "--data-root")
DECODED = ("pictures", "digests")
"""Folders of the cache that hold nothing that was trained."""


def measured(words: str, device: torch.device) -> dict[str, Any]:
    """Conditions of a measurement."""
    found = versions()
    facts = {"device": describe(device), "command": f"python benchmarks/grid.py {words}", "commit": COMMIT}
    return facts | {"versions": {key: found[key] for key in ("torch", "python")}}


def shown(words: Sequence[str]) -> str:
    """Words of the command line without those that say where files go."""
    kept = [
        word for before, word in zip(["", *words], words, strict=False) if before not in PLACES and word not in PLACES
    ]
    return " ".join(kept)


class Clock:
    """When cells began and ended."""

    def __init__(self) -> None:
        self.began: list[float] = []
        self.ended: list[float] = []

    def __call__(self, event: Event) -> None:
        now = time.perf_counter()
        if event.state == "running" and not event.text:
            self.began.append(now)
        elif event.state != "running":
            self.ended.append(now)
            if event.state != "done":
                raise SystemExit(f"{event.cell.name}: {event.state}, {event.text}")

    @property
    def seconds(self) -> float:
        """From the first beginning to the last end: workers are long-lived, their start is not of interest."""
        return max(self.ended) - min(self.began)


def run_pool(cells: Sequence[Cell], root: Path, workers: int) -> Clock:
    clock = Clock()
    Pool(workers)(Schedule(list(cells)), Terms(root, "cpu"), clock)
    return clock


def compare_workers(words: str, cells: Sequence[Cell], done_cells: int, repeats: int) -> list[dict[str, Any]]:
    """Rows of one worker, of two, and of the time between cells."""
    seconds: dict[int, list[float]] = {1: [], 2: []}
    with TemporaryDirectory() as place:
        for k in range(repeats):
            for workers, took in seconds.items():
                clock = run_pool(cells, Path(place) / f"{workers}-{k}", workers)
                took.append(clock.seconds)
                print(f"{workers} worker(s): {clock.seconds:.1f} s", flush=True)
        root = Path(place) / "1-0"
        idle = run_pool([cells[k % len(cells)] for k in range(done_cells)], root, 1)
        gap = idle.seconds / done_cells
    speedups = [one / two for one, two in zip(*seconds.values(), strict=True)]
    facts = measured(words, torch.device("cpu")) | {"what": f"{len(cells)} equal cells", "side": "grid"}
    rows = [
        facts | {"workers": workers, "cells": len(cells), "seconds": [round(each, 1) for each in took]}
        for workers, took in seconds.items()
    ]
    rows[1]["speedup"] = round(median(speedups), 2)
    print(f"two workers: {rows[1]['speedup']:.2f} times one worker; between cells: {1000 * gap:.1f} ms")
    between = {"what": "between cells", "workers": 1, "cells": done_cells, "ms_per_cell": round(1000 * gap, 1)}
    return [*rows, facts | between]


@dataclass(frozen=True)
class Side:
    """One of the two ways to run the same cells, in a folder that outlives the process."""

    name: str
    task: str
    cells: Sequence[Cell]
    folder: Path
    device: str
    workers: str
    settings: Sequence[str]
    """Words of the command line, for a grid."""
    options: Sequence[str]
    """Further words for both."""

    @property
    def runs(self) -> Path:
        return self.folder / self.name / "runs"

    @property
    def environment(self) -> dict[str, str]:
        """Caches of its own, but with the data decoded."""
        cache = self.folder / self.name / "cache"
        if not cache.exists():
            for name in DECODED:
                if (cache_folder() / name).exists():
                    shutil.copytree(cache_folder() / name, cache / name)
            cache.mkdir(parents=True, exist_ok=True)
        own = {CACHE_VARIABLE: str(cache), "TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor")}
        return dict(os.environ) | own | {"TRITON_CACHE_DIR": str(cache / "triton")}

    @property
    def missing(self) -> list[Cell]:
        """Cells without scores, or with those of a training that was stopped."""
        return [cell for cell in self.cells if not (is_done(cell, self.runs) and finished(self.runs / cell.name))]

    def run(self, minutes: float) -> None:
        """Go on for so long; the seconds are added to those of earlier times."""
        note, end, environment = (
            self.folder / self.name / "seconds.json",
            time.monotonic() + 60 * minutes,
            self.environment,
        )
        before: float = json.loads(note.read_text()) if note.exists() else 0.0
        start = time.perf_counter()
        for words in self.commands():
            left = (end - time.monotonic()) / 60
            if left <= 0:
                break
            words += [*self.options, "--max-minutes", f"{left:.2f}", "-q"]
            whole = [sys.executable, "-m", "uqgan", *words]
            done = subprocess.run(whole, env=environment, stdout=subprocess.DEVNULL, check=False)
            write_json(note, before + time.perf_counter() - start)
            if done.returncode not in (0, 1, 3):
                raise SystemExit(f"uqgan {' '.join(words)}: status {done.returncode}")

    def commands(self) -> list[list[str]]:
        if self.name == "grid" and self.missing:
            methods, seeds = (dict.fromkeys(getattr(cell, key) for cell in self.cells) for key in ("method", "seed"))
            words = ["grid", "--tasks", self.task, "--methods", ",".join(methods), "--seeds", ",".join(map(str, seeds))]
            return [[*words, *self.settings, "--workers", self.workers, "--device", self.device, "-o", str(self.runs)]]
        return [
            [*cell.command(self.device).split()[1:], "-o", str(self.runs / cell.name)]
            + ["--resume"] * holds_run(self.runs / cell.name)
            for cell in self.missing
        ]

    def row(self, words: str) -> dict[str, Any]:
        """What came out, once all cells are done."""
        records = [json.loads((self.runs / cell.name / cell.result).read_text()) for cell in self.cells]
        seconds = json.loads((self.folder / self.name / "seconds.json").read_text())
        facts = measured(words, torch.device(self.device)) | {"what": self.task, "side": self.name}
        scores = {
            cell.name: {"accuracy": record["scores"]["accuracy"], "auroc": auroc(record), "seconds": record["seconds"]}
            for cell, record in zip(self.cells, records, strict=True)
        }
        rate = {"cells": len(self.cells), "seconds": round(seconds, 1)}
        rate["runs_per_hour"] = round(3600 * len(self.cells) / seconds, 2)
        grid = self.name == "grid"
        under_mps = grid and self.device.startswith("cuda") and bool(shutil.which(CONTROL))
        shares = {"workers": self.workers if grid else "1", "mps": under_mps}
        return facts | rate | shares | {"scores": scores}


def auroc(record: dict[str, Any]) -> float | None:
    sets: dict[str, Any] = record["scores"]["sets"]
    together: dict[str, Any] = sets.get("all") or next(iter(sets.values()), {})
    return together.get("auroc")


def compare_sides(chosen: argparse.Namespace, settings: Sequence[str], words: str) -> list[dict[str, Any]]:
    """Rows of the sides that are complete; the others go on with the same command."""
    end = time.monotonic() + 60 * chosen.max_minutes
    load_task(chosen.task, root=chosen.data_root)  # decoded once, before any clock runs
    given = dict(
        zip((word.removeprefix("--").replace("-", "_") for word in settings[::2]), settings[1::2], strict=True)
    )
    rows = []
    for name in (chosen.side,) if chosen.side else ("grid", "alone"):
        cells = plan_cells([chosen.task], chosen.methods, chosen_seeds(chosen.seeds), [given])
        folder = chosen.folder / Path(chosen.task).name
        data = ["--data-root", str(chosen.data_root)] if chosen.data_root else []
        side = Side(name, chosen.task, cells, folder, chosen.device, chosen.workers, settings, data)
        side.run((end - time.monotonic()) / 60)
        if side.missing:
            left = f"{len(side.missing)} of {len(cells)} cells are unfinished"
            print(f"{chosen.task}, {name}: {left}; the same command goes on")
            continue
        rows.append(side.row(words))
        print(f"{chosen.task}, {name}: {rows[-1]['runs_per_hour']:.1f} runs an hour ({rows[-1]['seconds']:.0f} s)")
    if len(rows) == 2:
        print(f"{chosen.task}: {rows[0]['runs_per_hour'] / rows[1]['runs_per_hour']:.2f} times as many an hour")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    workers, sides = commands.add_parser("workers"), commands.add_parser("sides")
    sides.add_argument("task")
    sides.add_argument("--methods", nargs="+", default=["uqgan", "uqgan-mc"])
    sides.add_argument("--seeds", default="0-3")
    sides.add_argument("--device", default="cuda")
    sides.add_argument("--workers", default="auto")
    sides.add_argument("--side", choices=["grid", "alone"])
    sides.add_argument("--max-minutes", type=float, default=9.0)
    sides.add_argument("--folder", type=Path, default=Path(".cache/grid"))
    sides.add_argument("--data-root", type=Path)
    for each in (workers, sides):
        each.add_argument("--json", type=Path)
    chosen, settings = parser.parse_known_args()
    words = shown(sys.argv[1:])
    if chosen.command == "workers":
        cells = plan_cells(["digits"], ["one-vs-all"], SEEDS, [EQUAL])
        rows = compare_workers(words, cells, DONE_CELLS, REPEATS)
    else:
        rows = compare_sides(chosen, settings, words)
    if chosen.json and rows:
        merge(chosen.json, rows, KEY)


if __name__ == "__main__":
    main()
