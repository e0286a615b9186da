"""Time of a whole run: data decoded, autoencoder and classifier trained, test sets evaluated.

    python benchmarks/whole.py mnist cifar10 [--method uqgan] [--seed 0] [--runs FOLDER]
                               [--json results/speed/whole.json]

Each is one `uqgan train`, from the start of the process to its end, with nothing decoded or compiled before. Then
`uqgan evaluate`, which finds the pictures decoded. --runs keeps the runs, as `uqgan grid` names them.
Needs the data (UQGAN_DATA). Settings can be given as for `uqgan train`.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from iteration import merge
from uqgan.data.tasks import TASKS


def timed(words: list[str], cache: Path) -> float:
    """Time of one `uqgan` command that shares only this cache with earlier ones, in seconds."""
    own = {"UQGAN_CACHE": str(cache / "uqgan"), "TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor")}
    own |= {"TRITON_CACHE_DIR": str(cache / "triton")}
    start = time.perf_counter()
    subprocess.run([sys.executable, "-m", "uqgan", *words], env=os.environ | own, check=True)
    return time.perf_counter() - start


def measure(task: str, method: str, seed: int, settings: list[str], folder: Path, cache: Path) -> dict[str, Any]:
    command = ["train", task, "--method", method, "--seed", str(seed), *settings]
    seconds = timed([*command, "--output", str(folder)], cache)
    again = timed(["evaluate", str(folder)], cache)
    about = json.loads((folder / "about.json").read_text())
    return {
        "task": task,
        "method": method,
        "seed": seed,
        "seconds": round(seconds, 1),
        "stage_seconds": about["stage_seconds"],
        "evaluate_seconds": round(again, 1),
        "command": " ".join(["uqgan", *command]),
        "device": about["device"],
        "commit": about["commit"],
        "versions": {key: about["versions"][key] for key in ("torch", "python")},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="+", choices=list(TASKS), metavar="TASK")
    parser.add_argument("--method", default="uqgan")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--runs", type=Path)
    parser.add_argument("--json", type=Path)
    chosen, settings = parser.parse_known_args()
    for task in chosen.tasks:
        with TemporaryDirectory() as empty:
            place = chosen.runs or Path(empty) / "runs"
            folder = place / task / chosen.method / f"seed-{chosen.seed}"
            row = measure(task, chosen.method, chosen.seed, settings, folder, Path(empty))
        stages = ", ".join(f"{name} {seconds} s" for name, seconds in row["stage_seconds"].items())
        print(
            f"{task:10} {chosen.method:9} {row['seconds']:7.1f} s ({stages}), "
            f"evaluated again in {row['evaluate_seconds']:.1f} s"
        )
        if chosen.json:
            merge(chosen.json, [row], ("task", "method", "device"))


if __name__ == "__main__":
    main()
