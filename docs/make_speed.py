"""The sections on speed and cost."""

from make_tables import record, short, table
from uqgan.paper.results import set_title

COSTS = """## Cost of the methods

A whole training with the task's settings (the autoencoder's too, all members') and {samples} predictions: seconds, and
times those of `max-softmax`; on a CPU processor time of one thread. How they are timed stands in the script.
{conditions}"""
SPEED = """## Speed

`python benchmarks/iteration.py TASK --method METHOD`: one iteration (5 critic, 1 generator and 5 classifier steps,
batch 256) on random pictures of the task's shape, without validation; the mean on a GPU, the median on a CPU. Several
runs: their median and range. Start-up includes compilation with an empty cache; `compile: auto`: ResNets only. Rows of
18dd6fb: started together, so without start-up, then timed one at a time, the median of three turns; MB without the last
validation. MB of earlier GPU rows include a plain float32 iteration that counted operations."""


def speed() -> str:
    """The one table of iterations, and a sentence per timed run."""
    authors, timed, rows = record("speed/authors.json"), record("speed/iteration.json"), []
    for row in timed or []:
        ms = f"{row['ms_per_iteration']:.3g}"
        if row.get("runs", 1) > 1:
            ms += " ({} to {}, {} runs)".format(*row["range"], row["runs"])
        how = "compile: " + row["compile"] if row["mode"] == "accelerated" else row["mode"]
        same = authors and row["device"] == authors["device"]
        theirs = authors["ms_per_iteration"].get(row["task"]) if same else None
        facts = [how, row["precision"], row["device"], ms, theirs, row["start_up_seconds"], row["peak_memory_mb"]]
        facts += [short(row["commit"]), row["versions"]["torch"]]
        rows.append(
            [set_title(row["task"]), f"`{row['method']}`", *("–" if fact is None else str(fact) for fact in facts)]
        )
    header = ["shape", "method", "how", "precision", "device", "ms", "authors' ms", "start-up, s", "MB"]
    whole = [
        f"- `{row['command']}`: {row['seconds']} s ("
        + ", ".join(f"{stage} {seconds}" for stage, seconds in row["stage_seconds"].items())
        + f"), then `uqgan evaluate` {row['evaluate_seconds']} s; {row['device']}, {short(row['commit'])}"
        for row in record("speed/whole.json") or []
    ]
    words = "Whole runs as processes, with nothing decoded or compiled before (`python benchmarks/whole.py`):"
    parts = [SPEED, table([*header, "commit", "torch"], rows, 5)] if rows else []
    return "\n\n".join([*parts, *([words, "\n".join(whole)] if whole else []), *evaluation(), *prediction()])


def evaluation() -> list[str]:
    """A sentence about the largest evaluation."""
    row = record("speed/evaluation.json")
    if not row:
        return []
    what = f"{row['samples']:,} samples with {row['resamples']:,} bootstrap resamples"
    where = f"{row['cores']} cores at a load of {row['load']}, {row['device']}, {short(row['commit'])}"
    return [f"The evaluation of {what} (`{row['command']}`): {row['seconds']} s on {where}."]


def prediction() -> list[str]:
    """A sentence about predictions of files."""
    row = record("speed/scoring.json")
    if not row:
        return []
    what = f"`uqgan predict` of {row['pictures']:,} generated 32 × 32 PNG files (`{row['command']}`)"
    beside = f"{row['times_as_fast']:g} times the {row['plain_pictures_per_second']:,} of a plain loop"
    memory = f"at most {row['peak_bytes'] / 2**20:,.0f} MiB"
    where = f"{row['cores']} cores, {row['device']}, {short(row['commit'])}"
    return [f"{what}: {row['pictures_per_second']:,} pictures per second, {beside}; {memory}; {where}."]


def costs() -> str:
    """One row per method, with columns for each task and device."""
    rows, keys = record("speed/costs.json"), ("training_seconds", "training_ratio", "prediction_seconds")
    if not rows:
        return ""
    header, lines = ["method"], {row["method"]: [f"`{row['method']}`"] for row in rows}
    for task, device in dict.fromkeys((row["task"], row["device"]) for row in rows):
        header += [f"{set_title(task)}, {device.split()[0]}: training, s", "times", "prediction, s", "times"]
        found = {row["method"]: row for row in rows if (row["task"], row["device"]) == (task, device)}
        for method, line in lines.items():
            line += [f"{found[method][key]:g}" if method in found else "–" for key in (*keys, "prediction_ratio")]
    known = [(row["command"], row["device"], row["precision"], row["versions"]["torch"]) for row in rows]
    facts = [(*each, short(row["commit"])) for each, row in zip(known, rows, strict=True)]
    conditions = "; ".join(f"`{command}`: {', '.join(rest)}" for command, *rest in dict.fromkeys(facts)) + "."
    samples = " or ".join(dict.fromkeys(f"{row['samples']:,}" for row in rows))
    return f"{COSTS.format(samples=samples, conditions=conditions)}\n\n{table(header, list(lines.values()))}"
