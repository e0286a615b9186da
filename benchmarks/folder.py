"""From a folder of pictures to decisions about new ones, in four commands.

    python benchmarks/folder.py [--method uqgan] [--json results/decisions/folder.json]

Writes 1,000 MNIST digits 0-4 as PNG files into folders of classes, and new pictures beside them: other digits 0-4,
letters, and photo patches. Needs MNIST and EMNIST-Letters in UQGAN_DATA. Then runs the commands, and counts what was
flagged of each kind. Of the new digits it should lie within the 95 % interval of the beta-binomial distribution that
so many calibration pictures and so many new ones give.
"""

import argparse
import csv
import json
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from PIL import Image
from scipy.stats import betabinom
from torch import Tensor

import uqgan
from uqgan.data.digits import digits_task
from uqgan.data.sets import load_part
from uqgan.data.sources import data_root
from uqgan.decisions import WORDS
from uqgan.environment import COMMIT, describe, versions
from uqgan.files import write_json

ROOT = Path(__file__).parent.parent
N_TRAIN, N_NEW = 1000, 1000
FALSE_ALARM = 0.05


def write_pictures(x: Tensor, folder: Path, names: list[str] | None = None) -> None:
    for k, pixels in enumerate(x):
        place = folder / names[k] if names else folder
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels[0].numpy()).save(place / f"{k:04}.png")


def pictures(folder: Path) -> None:
    """Folders to train on and to predict."""
    train = load_part("mnist", "train", 28, 1, data_root())
    letters = load_part("emnist-letters", "test", 28, 1, data_root())
    assert train
    assert letters
    known = (train.y < 5).nonzero()[:, 0]
    order = torch.randperm(len(known), generator=torch.Generator().manual_seed(0))
    first, second = known[order].split([N_TRAIN, len(known) - N_TRAIN])  # type: ignore[no-untyped-call]
    write_pictures(train.x[first], folder / "digits", [str(k) for k in train.y[first].tolist()])
    write_pictures(train.x[second[:N_NEW]], folder / "new" / "digits")
    some = torch.randperm(len(letters.x), generator=torch.Generator().manual_seed(0))[: N_NEW // 2]
    write_pictures(letters.x[some], folder / "new" / "letters")
    patches = digits_task("digits", "digits", range(5), 0).ood["photo-patches"]
    write_pictures(patches[: N_NEW // 2], folder / "new" / "photo-patches")


def run(command: str, folder: Path) -> dict[str, Any]:
    """A command with its output and its time."""
    start = time.monotonic()
    words = [sys.executable, "-m", "uqgan", *shlex.split(command)[1:]]
    alone = os.environ | {"UQGAN_CACHE": str(folder / "cache")}  # empty caches
    shell = shlex.join(words) + " 2>&1"  # both streams together, as on a terminal
    done = subprocess.run(shell, shell=True, cwd=folder, env=alone, stdout=subprocess.PIPE, text=True, check=False)
    seconds = round(time.monotonic() - start, 1)
    print(f"$ {command}\n{done.stdout}", flush=True)
    if done.returncode:
        raise SystemExit(done.returncode)
    lines = done.stdout.replace(str(folder.resolve()), ".").rstrip().splitlines()
    return {"command": command, "said": lines, "seconds": seconds}


def shares(file: Path, n_calibration: int) -> dict[str, Any]:
    """Share flagged, and of each decision, per kind of new pictures."""
    with file.open() as lines:
        rows = list(csv.DictReader(lines))
    found: dict[str, Any] = {}
    for kind in ("digits", "letters", "photo-patches"):
        its = [row for row in rows if Path(row["path"]).parent.name == kind]
        flagged = sum(float(row["p_value"]) <= FALSE_ALARM for row in its) / len(its)
        words = {word: sum(row["decision"] == word for row in its) / len(its) for word in WORDS}
        found[kind] = {"n": len(its), "flagged": flagged, "decisions": words}
    k = int(np.floor(FALSE_ALARM * (n_calibration + 1)))
    m = found["digits"]["n"]
    found["digits"]["interval"] = [float(end) / m for end in betabinom(m, k, n_calibration + 1 - k).interval(0.95)]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method", default="uqgan")
    parser.add_argument("--json", type=Path, default=ROOT / "results" / "decisions" / "folder.json")
    chosen = parser.parse_args()
    load = round(os.getloadavg()[0], 1)  # cores not used by other programs
    with TemporaryDirectory() as place:
        folder = Path(place)
        pictures(folder)
        where = f"runs/digits/{chosen.method}/seed-0"
        steps = [
            run(f"uqgan train digits/ --method {chosen.method} --device cpu", folder),
            run(f"uqgan calibrate {where} --false-alarm {FALSE_ALARM}", folder),
            run(f"uqgan predict {where} new/ -o decisions.csv --page decisions.html", folder),
            run(f"uqgan report {where} -o report.html", folder),
        ]
        n = len(uqgan.load(folder / where, device="cpu").calibration.y)
        found = shares(folder / "decisions.csv", n)
    record = {
        "method": chosen.method,
        "commands": steps,
        "seconds": round(sum(step["seconds"] for step in steps), 1),
        "n_calibration": n,
        "false_alarm": FALSE_ALARM,
        "kinds": found,
        "command": f"python benchmarks/folder.py --method {chosen.method}",
        "commit": COMMIT,
        "device": describe(torch.device("cpu")),
        "threads": torch.get_num_threads(),
        "cores": os.cpu_count(),
        "load_before": load,
        "versions": versions(),
    }
    write_json(chosen.json, record)
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
