"""Train a recorded run again from its record alone, and see whether it lands inside the record's intervals.

    python benchmarks/retrain.py results/mnist/max-softmax/seed-0.json [--device cpu] [--json results/retrained.json]

Task, method, seed and settings are the record's; nothing else is taken from it, and nothing from the cache of trained
weights. The intervals are those over its test samples (95 %), so that about one value in twenty may lie outside by
chance, more where training itself varies: a record made on a GPU and a run on a CPU draw different random numbers.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import uqgan
from uqgan.config import parse
from uqgan.environment import COMMIT
from uqgan.evaluation import raw_digest
from uqgan.files import write_json

KNOWN = ("accuracy", "auroc_sf", "ece")
RANKED = ("auroc", "aupr_in", "aupr_out", "fpr95_id_positive")


def compare(record: dict[str, Any], scores: dict[str, Any]) -> list[dict[str, Any]]:
    """Each metric of the record with its interval, and the value of the new run."""
    old, ends = record["scores"], record["intervals"]
    rows = [("known classes", metric, old[metric], ends[metric], scores[metric]) for metric in KNOWN]
    for name, values in old["sets"].items():
        rows += [(name, each, values[each], ends["sets"][name][each], scores["sets"][name][each]) for each in RANKED]
    return [
        {"set": name, "metric": metric, "recorded": value, "interval": pair, "retrained": new, "inside": _in(new, pair)}
        for name, metric, value, pair, new in rows
        if value is not None and new is not None
    ]


def _in(value: float, pair: list[float]) -> bool:
    return pair[0] <= value <= pair[1]


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
    rows = compare(record, run.evaluate(outputs=outputs, resamples=0)["scores"])
    for row in rows:
        low, high = row["interval"]
        word = "inside" if row["inside"] else "OUTSIDE"
        print(
            f"{row['set']:16} {row['metric']:18} {100 * row['recorded']:6.2f} ({100 * low:.2f} to {100 * high:.2f})"
            f"  again {100 * row['retrained']:6.2f}  {word}"
        )
    print(f"{sum(row['inside'] for row in rows)} of {len(rows)} inside their intervals")
    if chosen.json:
        facts = {"record": str(chosen.record), "recorded_on": record["device"], "recorded_commit": record["commit"]}
        known = ("device", "threads", "seconds", "versions")
        about = {key: run.record.about[key] for key in known} | {"commit": COMMIT, "raw_sha256": raw_digest(outputs)}
        command = f"python benchmarks/retrain.py {chosen.record} --device {chosen.device}"
        write_json(chosen.json, {**facts, **about, "command": command, "rows": rows})


if __name__ == "__main__":
    main()
