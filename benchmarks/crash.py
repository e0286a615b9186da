"""A grid that is killed at random moments against the same grid undisturbed.

    python benchmarks/crash.py [digits] [--methods uqgan entropy …] [--seeds 0-1] [--kills 3] [--workers 2]
                               [--json results/speed/crash.json]

The command is killed by SIGKILL, each time at a random moment, and started again until it ends. Then: do the scores of
all cells equal those of the undisturbed grid, which has a cache of its own? Is any file of a cell that was finished at
a kill other than it was, or written again? Settings can be given as for `uqgan train`; they go to the methods that
read them. Ends with status 1 if something differs.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

from grid import shown
from iteration import merge
from uqgan import paper
from uqgan.environment import COMMIT, describe, versions
from uqgan.files import CACHE_VARIABLE
from uqgan.runs import CONFIG, SCORES

COMPARED = ("scores", "intervals", "raw_sha256", "settings", "command")
"""Part of a record that depends neither on the clock nor on the folder."""
State = dict[str, tuple[int, bytes]]
Moment = tuple[int, float]
"""Number of finished cells, and seconds after that."""


def finished(root: Path) -> State:
    """Files of finished cells, with when they were written; what a kill left half-written has a dot."""
    places = [file.parent for file in root.rglob(SCORES)]
    files = [file for place in places for file in place.rglob("*") if file.is_file() and file.name[0] != "."]
    return {str(file.relative_to(root)): (file.stat().st_mtime_ns, file.read_bytes()) for file in files}


def table(root: Path) -> dict[str, Any]:
    records = {str(file.parent.relative_to(root)): json.loads(file.read_text()) for file in root.rglob(SCORES)}
    return {name: {key: record[key] for key in COMPARED} for name, record in records.items()}


def begin(words: Sequence[str], cache: Path) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "uqgan", "grid", *words]
    return subprocess.Popen(command, env=os.environ | {CACHE_VARIABLE: str(cache)}, stdout=subprocess.DEVNULL)


def undisturbed(words: Sequence[str], place: Path) -> float:
    """Seconds of the grid without a kill."""
    start = time.perf_counter()
    if status := begin([*words, "-q", "-o", str(place / "whole")], place / "cache-whole").wait():
        raise SystemExit(f"the undisturbed grid ended with status {status}")
    return time.perf_counter() - start


def killed(words: Sequence[str], place: Path, kills: Sequence[Moment]) -> tuple[list[dict[str, Any]], bool]:
    """Kill at each of these moments; tells of each, and whether finished cells stayed as they were."""
    root, told, same, before = place / "killed", list[dict[str, Any]](), True, State()
    for moment in [*kills, None]:
        child, start = begin([*words, "-q", "-o", str(root)], place / "cache-killed"), time.perf_counter()
        if moment:
            wait_for(moment, root, child)
            child.kill()
        if (status := child.wait()) and not moment:
            raise SystemExit(f"the killed grid ended with status {status}")
        now = finished(root)
        same = same and {name: now.get(name) for name in before} == before
        if moment:
            begun, done = (len(list(root.rglob(name))) for name in (CONFIG, SCORES))
            seconds = round(time.perf_counter() - start, 1)
            told.append({"after_seconds": seconds, "cells_done": done, "cells_begun": begun - done})
            print(f"killed after {seconds} s: {done} cells done, {begun - done} begun", flush=True)
        before = now
    return told, same


def wait_for(moment: Moment, root: Path, child: "subprocess.Popen[bytes]") -> None:
    """Wait until this number of cells is done, another one has started, and some time has passed."""
    cells, seconds = moment
    while len(list(root.rglob(SCORES))) < cells or len(list(root.rglob(CONFIG))) <= len(list(root.rglob(SCORES))):
        if child.poll() is not None:
            raise SystemExit("the grid ended before it was killed")
        time.sleep(0.05)
    time.sleep(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", nargs="?", default="digits")
    parser.add_argument("--methods", nargs="+", default=list(paper.methods("mnist")))
    parser.add_argument("--seeds", default="0-1")
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--chance", type=int, default=random.randrange(10**6), help="seed of the moments")
    parser.add_argument("--json", type=Path)
    chosen, settings = parser.parse_known_args()
    words = ["--tasks", chosen.task, "--methods", ",".join(chosen.methods), "--seeds", chosen.seeds]
    words += ["--workers", str(chosen.workers), "--device", "cpu", *settings]
    with TemporaryDirectory() as empty:
        place, chance = Path(empty), random.Random(chosen.chance)
        seconds = undisturbed(words, place)
        cells = len(table(place / "whole"))
        counts = sorted(chance.sample(range(max(chosen.kills, cells - chosen.workers)), chosen.kills))
        moments = [(count, chance.uniform(0, seconds / cells)) for count in counts]
        kills, untouched = killed(words, place, moments)
        one, other = table(place / "whole"), table(place / "killed")
    equal = one == other
    print(f"{len(other)} cells: tables {'equal' if equal else 'DIFFER'}, finished cells {'un' * untouched}touched")
    found = versions()
    row = {"task": chosen.task, "cells": len(one), "workers": chosen.workers, "undisturbed_seconds": round(seconds, 1)}
    row |= {"kills": kills, "chance": chosen.chance, "tables_equal": equal, "finished_untouched": untouched}
    row |= {"device": describe(torch.device("cpu")), "commit": COMMIT}
    row |= {"command": f"python benchmarks/crash.py {shown(sys.argv[1:])}".rstrip()}
    row |= {"versions": {key: found[key] for key in ("torch", "python")}}
    if chosen.json:
        merge(chosen.json, [row], ("task", "cells", "device"))
    if not (equal and untouched):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
