"""Train a recorded run again from its record alone, and compare it with the record's intervals.

    python benchmarks/retrain.py results/mnist/max-softmax/seed-0.json [--device cpu] [--json FILE]

Task, method, seed and settings are the record's; nothing else is taken from it, and nothing from the cache of trained
weights. Two intervals of 95 %, outside of which about one value in twenty lies by chance: the record's own, over its
test samples, which a run on the same device should meet; and that of a further run among the seeds recorded beside it
(mean and deviation, Student's t), which one on another device should meet: there the same seed soon is another run.
"""

import argparse
import json
import math
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from scipy.stats import t

import uqgan
from uqgan.config import parse
from uqgan.environment import COMMIT
from uqgan.evaluation import raw_digest
from uqgan.files import write_json

Scores = dict[str, Any]
KINDS = ("samples", "seeds")
FEWEST_SEEDS = 3
KNOWN = ("accuracy", "auroc_sf", "ece")
RANKED = ("auroc", "aupr_in", "aupr_out", "fpr95_id_positive")


def compare(record: Scores, scores: Scores, alike: Sequence[Scores] = ()) -> list[dict[str, Any]]:
    """Each metric of the record with its intervals, and the value of the new run; `alike` are records of all seeds."""
    ends = record["intervals"]
    rows = []
    for name, metric in [("", metric) for metric in KNOWN] + [(each, m) for each in ends["sets"] for m in RANKED]:
        samples = ends["sets"][name][metric] if name else ends[metric]
        old, new = value_of(record["scores"], name, metric), value_of(scores, name, metric)
        if old is None or new is None:
            continue
        values = [value for one in alike if (value := value_of(one["scores"], name, metric)) is not None]
        seeds = of_a_further_run(values)
        row = {"set": name or "known classes", "metric": metric, "recorded": old, "retrained": new}
        for kind, pair in {"samples": samples, "seeds": seeds}.items():
            row |= {kind: pair, f"inside_{kind}": None if pair is None else pair[0] <= new <= pair[1]}
        rows.append(row)
    return rows


def value_of(scores: Scores, name: str, metric: str) -> float | None:
    """A metric of the known classes, or of an OoD set."""
    found: float | None = scores["sets"][name][metric] if name else scores[metric]
    return found


def of_a_further_run(values: Sequence[float]) -> list[float] | None:
    """95 % prediction interval for a further value of a normal distribution; None for fewer than three values."""
    if len(values) < FEWEST_SEEDS:
        return None
    reach = stdev(values) * float(t.ppf(0.975, len(values) - 1)) * math.sqrt(1 + 1 / len(values))
    return [mean(values) - reach, mean(values) + reach]


def show(rows: Sequence[dict[str, Any]]) -> None:
    for row in rows:
        words = f"{row['set']:16} {row['metric']:18} {100 * row['recorded']:6.2f}, again {100 * row['retrained']:6.2f}"
        for kind in KINDS:
            if row[kind]:
                low, high = (100 * end for end in row[kind])
                words += f"  {kind} {low:6.2f} to {high:6.2f} {'inside' if row[f'inside_{kind}'] else 'OUTSIDE':7}"
        print(words)
    for kind in KINDS:
        known = [row[f"inside_{kind}"] for row in rows if row[kind]]
        print(f"{sum(known)} of {len(known)} inside the interval over {kind}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("record", type=Path)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    record = json.loads(chosen.record.read_text())
    config = parse(record["settings"] | {"fresh": True})
    run = uqgan.fit(record["method"], record["task"], record["seed"], config, device=chosen.device)
    outputs = run.outputs()
    alike = [json.loads(file.read_text()) for file in sorted(chosen.record.parent.glob("seed-*.json"))]
    rows = compare(record, run.evaluate(outputs=outputs, resamples=0)["scores"], alike)
    show(rows)
    if chosen.json:
        facts = {"record": str(chosen.record), "recorded_on": record["device"], "seeds": [one["seed"] for one in alike]}
        known = ("device", "threads", "seconds", "versions")
        about = {key: run.record.about[key] for key in known} | {"commit": COMMIT, "raw_sha256": raw_digest(outputs)}
        command = f"python benchmarks/retrain.py {chosen.record} --device {chosen.device}"
        write_json(chosen.json, {**facts, **about, "command": command, "rows": rows})


if __name__ == "__main__":
    main()
