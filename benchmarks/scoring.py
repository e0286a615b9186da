"""Pictures per second and peak memory of `uqgan predict`, beside a plain loop with the same networks.

    python benchmarks/scoring.py [--n 100000] [--rounds 3] [--json results/speed/scoring.json]

Generated 32 × 32 PNG files; a small one-vs-all classifier, trained in seconds. Both sides are whole processes that
write a CSV file with decisions; they take turns, and the fastest of each counts. The time that each takes for few
pictures is its start-up, and is subtracted. Memory is the resident memory of a process and its children, summed, at
its peak. The outputs must agree.
"""

import argparse
import csv
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from uqgan.files import write_json

BATCH, FEW = 256, 512
TOLERANCE = 1e-6
NUMBERS = ("probability", "aleatoric", "epistemic", "foreignness", "p_value")
WORDS = ("path", "label", "decision")


def plain_loop(run_folder: str, folder: str, output: str) -> None:
    """A plain loop: Pillow, batches of 256, one process."""
    from PIL import Image

    import uqgan

    run = uqgan.load(run_folder)
    files = sorted(Path(folder).rglob("*.png"))
    with Path(output).open("w", newline="") as stream:
        lines = csv.writer(stream)
        lines.writerow(["path", "label", *NUMBERS, "decision"])
        for start in range(0, len(files), BATCH):
            batch = files[start : start + BATCH]
            x = np.stack([np.asarray(Image.open(file).convert("L")) for file in batch])[:, None]
            found = run.predict(x)
            decided = run.decide(found)
            names = [run.class_names[k] for k in found.labels.tolist()]
            scores = (found.probs.amax(1), found.aleatoric, found.epistemic, found.foreignness, decided.p_value)
            lines.writerows(zip(batch, names, *(score.tolist() for score in scores), decided.words, strict=True))


def write_pictures(root: Path, n: int) -> None:
    from PIL import Image

    rng = np.random.default_rng(0)
    for k in range(n):
        folder = root / f"{k // 1000:03}"
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (32, 32, 3), dtype=np.uint8)).save(folder / f"{k:06}.png")


def train(folder: Path) -> None:
    import uqgan

    uqgan.fit("one-vs-all", "digits", folder=folder, epochs=5)


def measure(command: Sequence[str]) -> tuple[float, float, int]:
    """Wall time and processor time of a process in seconds, and peak memory with its children in bytes."""
    environment = os.environ | {"OMP_WAIT_POLICY": "PASSIVE"}  # for both, as spinning threads slow each other down
    start, before, peak = time.perf_counter(), cores_busy(), 0
    process = subprocess.Popen([sys.executable, *command], env=environment)
    while process.poll() is None:
        peak = max(peak, sum(resident(each) for each in family(process.pid)))
        time.sleep(0.05)
    seconds = time.perf_counter() - start
    if process.returncode:
        raise SystemExit(process.returncode)
    return seconds, cores_busy() - before, peak


def cores_busy() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def family(pid: int) -> list[int]:
    """A process and all its descendants."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return [pid]
    return [pid, *(each for child in children for each in family(int(child)))]


def resident(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return 0


def largest_difference(ours: Path, plain: Path) -> float:
    """Largest difference of a number in two outputs; infinite if text differs."""
    largest = 0.0
    with ours.open(newline="") as first, plain.open(newline="") as second:
        for a, b in zip(csv.DictReader(first), csv.DictReader(second), strict=True):
            largest = max(largest, *(abs(float(a[key]) - float(b[key])) for key in NUMBERS))
            if any(a[key] != b[key] for key in WORDS):
                return float("inf")
    return largest


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--pictures", type=Path, help="a folder of such files, made if it is not there")
    parser.add_argument("--plain", nargs=3, metavar=("RUN", "FOLDER", "OUTPUT"), help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.plain:
        plain_loop(*chosen.plain)
        return
    from uqgan.acceleration import choose_device
    from uqgan.environment import COMMIT, describe, versions

    load = round(os.getloadavg()[0], 1)  # cores not used by other programs
    found: dict[str, list[tuple[float, float, int]]] = {}
    with tempfile.TemporaryDirectory() as place:
        run, few, ours, plain = (str(Path(place) / name) for name in ("run", "few", "ours.csv", "plain.csv"))
        folder = str(chosen.pictures or Path(place) / "pictures")
        if not Path(folder).exists():
            write_pictures(Path(folder), chosen.n)
        write_pictures(Path(few), FEW)
        train(Path(run))
        predict, loop = ["-m", "uqgan", "predict", run], [__file__, "--plain", run]
        commands = {
            "predict few": [*predict, few, "-o", f"{few}.csv", "--device", "cpu", "-q"],
            "plain few": [*loop, few, f"{few}.csv"],
            "predict": [*predict, folder, "-o", ours, "--device", "cpu", "-q"],
            "plain": [*loop, folder, plain],
        }
        for _ in range(chosen.rounds):
            for name, command in commands.items():
                found.setdefault(name, []).append(measure(command))
                seconds, busy, peak = found[name][-1]
                print(f"{name:12} {seconds:6.1f} s, of cores {busy:6.1f} s, {peak / 2**20:6,.0f} MiB", flush=True)
        difference = largest_difference(Path(ours), Path(plain))
    best = {name: min(seconds for seconds, *_ in rounds) for name, rounds in found.items()}
    busy_seconds = {name: min(busy for _, busy, _ in rounds) for name, rounds in found.items()}
    ours_rate, plain_rate = ((chosen.n - FEW) / (best[side] - best[f"{side} few"]) for side in ("predict", "plain"))
    print(
        f"{ours_rate:,.0f} and {plain_rate:,.0f} pictures/s: {ours_rate / plain_rate:.2f} times as fast, with start-up "
        f"{best['plain'] / best['predict']:.2f} times; largest difference {difference:.1e}"
    )
    row = {
        "pictures": chosen.n,
        "seconds": {name: round(each, 1) for name, each in best.items()},
        "core_seconds": {name: round(each, 1) for name, each in busy_seconds.items()},
        "pictures_per_second": round(ours_rate),
        "plain_pictures_per_second": round(plain_rate),
        "times_as_fast": round(ours_rate / plain_rate, 2),
        "peak_bytes": max(peak for *_, peak in found["predict"]),
        "plain_peak_bytes": max(peak for *_, peak in found["plain"]),
        "largest_difference": difference,
        "cores": os.cpu_count(),
        "load_before": load,
        "device": describe(choose_device("cpu")),
        "command": f"python benchmarks/scoring.py --n {chosen.n} --rounds {chosen.rounds}",
        "commit": COMMIT,
        "versions": {key: versions()[key] for key in ("torch", "python")},
    }
    if difference > TOLERANCE:
        raise SystemExit(f"the outputs differ by {difference:.1e}")
    if chosen.json:
        write_json(chosen.json, row)


if __name__ == "__main__":
    main()
