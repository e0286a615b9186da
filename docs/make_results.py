"""Write docs/results.md, docs/toys.md and the tables of README.md from the files under results/: `make results`."""

import json
import re
from functools import cache
from pathlib import Path
from statistics import mean, stdev
from typing import Any

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "results"
BEGIN, END = "<!-- results:begin -->", "<!-- results:end -->"
NAMES = {
    "mnist": "MNIST",
    "cifar10": "CIFAR10",
    "cifar100": "CIFAR100",
    "tiny-imagenet": "Tiny ImageNet",
    "emnist-letters": "EMNIST-Letters",
    "fashion-mnist": "Fashion-MNIST",
    "omniglot": "Omniglot",
    "svhn": "SVHN",
    "lsun": "LSUN",
    "other-digits": "digits 5-9",
    "digits": "Digits",
}
KNOWN = {"accuracy": "accuracy", "auroc_sf": "AUROC S/F", "ece": "ECE"}
INTRODUCTION = """# Results

Made by `make results` from the files under `results/`, which hold every score with its settings, versions, device,
command and commit; a test fails when this page is not what they give. Percent, mean ± standard deviation over the
seeds. "Ours" is this program, "paper" the printed value (`results/paper.json`). S/F: success against failure. OoD sets
are ranked by Eq. 4; FPR95 takes the known classes as positive. A record without a commit of its own has that of its
first appearance. [Every look at a test set](test-set-looks.md) is logged."""
TOYS = """# Toys

Made by `make results` from `results/toys/`, as [Results](results.md) is.
`python benchmarks/toys.py`, method `uqgan`, one value per seed ({seeds}). "Far" is further than 4 standard deviations
from every mode. The regulariser closes the shield around the classes: see `gaussians-overlap` with and without it."""
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

PRACTICE = """# Own pictures, own networks

Made by `make results`. Percent; mean ± standard deviation over the seeds where there are several."""
FOLDER = """## From a folder to decisions

`{command}`: 1,000 MNIST digits 0-4 as PNG files in class folders, then new pictures: other digits 0-4, letters, photo
patches. {seconds} s in all; {device}; commit {commit}. With {n} calibration pictures and a false-alarm rate of 5 %,
between {low} and {high} % of the new digits should be flagged (95 % interval)."""
BACKBONES = """## User-supplied networks

`python benchmarks/backbone.py TASK`: the same network for every method. AUROC over all OoD sets. Real and generated
samples pass the classifier mixed in one batch, which batch norm needs."""

Record = dict[str, Any]
used: set[Path] = set()
"""Files that were read for the page."""


@cache
def read(path: Path) -> Any:
    used.add(path)
    return json.loads(path.read_text())


def paper() -> Record:
    """Printed values per setting and method, and the paper's names of the methods."""
    found: Record = read(RESULTS / "paper.json")
    return found


def runs(task: str) -> dict[str, list[Record]]:
    """Records of a task per method, in the paper's order of methods, then by name."""
    found: dict[str, list[Record]] = {}
    for path in sorted((RESULTS / task).glob("*/seed-*.json")):
        found.setdefault(path.parent.name, []).append(read(path))
    order = list(paper()["titles"])
    return dict(sorted(found.items(), key=lambda item: (order.index(item[0]) if item[0] in order else 99, item[0])))


def tasks() -> list[str]:
    """Tasks with results: the paper's settings first."""
    found = sorted({path.parent.parent.name for path in RESULTS.glob("*/*/seed-*.json")})
    settings = list(paper()["settings"])
    return [task for task in settings if task in found] + [task for task in found if task not in settings]


def title(method: str) -> str:
    return str(paper()["titles"].get(method, method))


def name(data_set: str) -> str:
    base, _, classes = data_set.partition("+")
    return NAMES.get(base, base.replace("-", " ")) + (f" {classes}" if classes else "")


def ours(values: list[float | None]) -> str:
    """Fractions as percent: mean ± standard deviation, or the value of a single seed."""
    known = [100 * value for value in values if value is not None]
    if not known:
        return "–"
    return f"{mean(known):.2f}" + (f" ± {stdev(known):.2f}" if len(known) > 1 else "")


def printed(value: list[str] | None) -> str:
    return f"{value[0]} ± {value[1]}" if value else "–"


def short(commit: str | None) -> str:
    """Seven digits; a + says that the tree had changes."""
    return commit[:7] + "+" * commit.endswith("+") if commit else "–"


def table(header: list[str], rows: list[list[str]], left: int = 1) -> str:
    """A Markdown table whose first columns are aligned to the left."""
    lines = [header, ["---"] * left + ["--:"] * (len(header) - left), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def set_names(found: dict[str, list[Record]]) -> list[str]:
    return [key for key in next(iter(found.values()))[0]["scores"]["sets"] if key != "all"]


def our_row(records: list[Record], sets: list[str]) -> list[str]:
    scores = [record["scores"] for record in records]
    known = [ours([score[key] for score in scores]) for key in KNOWN]
    auroc = [ours([score["sets"].get(key, {}).get("auroc") for score in scores]) for key in ["all", *sets]]
    foreign = ours([score.get("foreignness", {}).get("all", {}).get("auroc") for score in scores])
    return [*known, *auroc, ours([score["sets"]["all"]["fpr95_id_positive"] for score in scores]), foreign]


def paper_row(values: Record, sets: list[str]) -> list[str]:
    """The paper's values; over all OoD sets only where these are ours."""
    same = set(values["sets"]) == {"all", *sets}
    everything = values["sets"]["all"] if same else {}
    auroc = [printed(values["sets"].get(key, {}).get("auroc")) for key in sets]
    known = [printed(values[key]) for key in KNOWN]
    return [*known, printed(everything.get("auroc")), *auroc, printed(everything.get("fpr95_id_positive")), ""]


def conditions(found: dict[str, list[Record]]) -> str:
    """Command, device, versions and commits of all records of a task."""
    records = [record for group in found.values() for record in group]
    commands = {
        re.sub(
            r"--seed \d+", "--seed SEED", record["command"].replace(f"--method {record['method']}", "--method METHOD")
        )
        for record in records
    }
    devices = {f"{record['device']}, torch {record['versions']['torch']}" for record in records}
    commits = {short(record["commit"]) for record in records}
    imported = ["imported: made from a copy of the tree"] if any("imported" in record for record in records) else []
    words = [*(f"`{command}`" for command in sorted(commands)), *sorted(devices)]
    return "; ".join([*words, f"commit {', '.join(sorted(commits))}", *imported]) + "."


def setting(task: str) -> str:
    """Heading, conditions and table of one task, beside the paper's values where it has the task."""
    found, published = runs(task), paper()["settings"].get(task, {})
    sets = set_names(found)
    header = ["method", *(["from"] if published else []), "seeds", *KNOWN.values(), "AUROC all", *map(name, sets)]
    rows = []
    for method, records in found.items():
        who = ["ours"] if published else []
        rows.append([title(method), *who, str(len(records)), *our_row(records, sets)])
        if method in published:
            rows.append(["", "paper", "", *paper_row(published[method], sets)])
    parts = [f"## {name(task)}", conditions(found)]
    if missing := sorted({key for values in published.values() for key in values["sets"]} - {"all", *sets}):
        parts[1] += f'\nWithout {", ".join(map(name, missing))}, so "all" cannot be compared with the paper.'
    parts.append(table([*header, "FPR95 all", "AUROC all by foreignness"], rows, 2 if published else 1))
    return "\n\n".join([*parts, *comparison(task)])


def comparison(task: str) -> list[str]:
    """AUROC of two methods on the same samples, if they were compared."""
    file = RESULTS / task / "uqgan-against-one-vs-all.json"
    if not file.exists():
        return []
    rows, seeds = read(file), sorted({row["seed"] for row in read(file)})
    found = {(row["set"], row["seed"]): row["difference"] for row in rows}

    def cell(d: dict[str, float]) -> str:
        return f"{100 * d['estimate']:+.2f} ({100 * d['low']:+.2f} to {100 * d['high']:+.2f})"

    sets = dict.fromkeys(row["set"] for row in rows)
    lines = [[name(key), *(cell(found[key, seed]) for seed in seeds)] for key in sets]
    words = "AUROC of `uqgan` minus that of `one-vs-all` on the same test samples (paired bootstrap, 95 % interval):"
    return [words, table(["OoD set", *(f"seed {seed}" for seed in seeds)], lines)]


def toys() -> str:
    """The page of the toys: one table for the cases that share their figures."""
    cases = {path.stem: read(path) for path in sorted((RESULTS / "toys").glob("*.json"), key=lambda path: path.stem)}
    groups: dict[tuple[str, ...], list[str]] = {}
    for case, record in cases.items():
        groups.setdefault(tuple(record["figures"]), []).append(case)
    seeds = ", ".join(map(str, next(iter(cases.values()))["seeds"]))
    parts = [TOYS.format(seeds=seeds)]
    for figures, members in groups.items():
        rows = [
            [
                figure.replace("|", "\\|"),
                *(" · ".join(f"{v:.3f}" for v in cases[key]["figures"][figure]) for key in members),
            ]
            for figure in figures
        ]
        facts = [f"{cases[key]['device']}, {short(cases[key]['commit'])}" for key in members]
        parts.append(table(["", *(f"`{key}`" for key in members)], [["device, commit", *facts], *rows]))
    return "\n\n".join(parts) + "\n"


def speed() -> str:
    """The one table of iterations, and a sentence per timed run."""
    authors, rows = read(RESULTS / "speed" / "authors.json"), []
    for row in read(RESULTS / "speed" / "iteration.json"):
        ms = f"{row['ms_per_iteration']:.3g}"
        if row.get("runs", 1) > 1:
            ms += " ({} to {}, {} runs)".format(*row["range"], row["runs"])
        how = "compile: " + row["compile"] if row["mode"] == "accelerated" else row["mode"]
        theirs = authors["ms_per_iteration"].get(row["task"]) if row["device"] == authors["device"] else None
        facts = [how, row["precision"], row["device"], ms, theirs, row["start_up_seconds"], row["peak_memory_mb"]]
        facts += [short(row["commit"]), row["versions"]["torch"]]
        rows.append([name(row["task"]), f"`{row['method']}`", *("–" if fact is None else str(fact) for fact in facts)])
    header = ["shape", "method", "how", "precision", "device", "ms", "authors' ms", "start-up, s", "MB"]
    whole = [
        f"- `{row['command']}`: {row['seconds']} s ("
        + ", ".join(f"{stage} {seconds}" for stage, seconds in row["stage_seconds"].items())
        + f"), then `uqgan evaluate` {row['evaluate_seconds']} s; {row['device']}, {short(row['commit'])}"
        for row in read(RESULTS / "speed" / "whole.json")
    ]
    words = "Whole runs as processes, with nothing decoded or compiled before (`python benchmarks/whole.py`):"
    return "\n\n".join([SPEED, table([*header, "commit", "torch"], rows, 5), words, "\n".join(whole)])


def costs() -> str:
    """One row per method, with columns for each task and device."""
    rows, keys = read(RESULTS / "speed" / "costs.json"), ("training_seconds", "training_ratio", "prediction_seconds")
    header, lines = ["method"], {row["method"]: [f"`{row['method']}`"] for row in rows}
    for task, device in dict.fromkeys((row["task"], row["device"]) for row in rows):
        header += [f"{name(task)}, {device.split()[0]}: training, s", "times", "prediction, s", "times"]
        found = {row["method"]: row for row in rows if (row["task"], row["device"]) == (task, device)}
        for method, line in lines.items():
            line += [f"{found[method][key]:g}" if method in found else "–" for key in (*keys, "prediction_ratio")]
    known = [(row["command"], row["device"], row["precision"], row["versions"]["torch"]) for row in rows]
    facts = [(*each, short(row["commit"])) for each, row in zip(known, rows, strict=True)]
    conditions = "; ".join(f"`{command}`: {', '.join(rest)}" for command, *rest in dict.fromkeys(facts)) + "."
    samples = " or ".join(dict.fromkeys(f"{row['samples']:,}" for row in rows))
    return f"{COSTS.format(samples=samples, conditions=conditions)}\n\n{table(header, list(lines.values()))}"


def page() -> str:
    return "\n\n".join([INTRODUCTION, *map(setting, tasks()), costs(), speed()]) + "\n"


def percent(value: float) -> str:
    return f"{100 * value:.1f}"


def session() -> str:
    """The commands from a folder to decisions, with what they said, and the share flagged of each kind of pictures."""
    record = read(RESULTS / "decisions" / "folder.json")
    said = [
        "\n".join([f"$ {step['command']}", *step["said"], f"# {step['seconds']:.0f} s"]) for step in record["commands"]
    ]
    rows = [
        [kind.replace("-", " "), f"{found['n']:,}", percent(found["flagged"])]
        + [percent(share) for share in found["decisions"].values()]
        for kind, found in record["kinds"].items()
    ]
    low, high = record["kinds"]["digits"]["interval"]
    words = FOLDER.format(
        command=record["command"],
        device=f"{record['device']}, {record['threads']} threads, torch {record['versions']['torch']}",
        commit=short(record["commit"]),
        seconds=f"{record['seconds']:.0f}",
        n=record["n_calibration"],
        low=percent(low),
        high=percent(high),
    )
    words_of = list(record["kinds"]["digits"]["decisions"])
    shares = table(["new pictures", "number", "flagged", *words_of], rows)
    return "\n\n".join([words, shares, "```text\n" + "\n\n".join(said) + "\n```"])


def backbones() -> str:
    """User-supplied networks: a row per network, norm and method."""
    rows, facts = [], []
    for path in sorted((RESULTS / "backbones").glob("*.json")):
        record = read(path)
        runs_of = record["runs"]
        cells = [ours([run["accuracy"] for run in runs_of]), ours([run["auroc"]["all"] for run in runs_of])]
        kind = {"batch": "batch norm", "group": "group norm"}[record["norm"]]
        rows.append([name(record["task"]), f"{record['network']}, {kind}", f"`{record['method']}`", *cells])
        rows[-1].append(str(len(runs_of)))
        facts.append(f"{runs_of[0]['device']}, commit {short(record['commit'])}")
    header = ["task", "network", "method", "accuracy", "AUROC all", "seeds"]
    return f"{BACKBONES}\n\n{table(header, rows, 3)}\n\nOn {'; '.join(dict.fromkeys(facts))}."


def practice() -> str:
    return "\n\n".join([PRACTICE, session(), backbones()]) + "\n"


def beside_paper(task: str, sets: list[str]) -> list[list[str]]:
    """Rows of the README's first table."""
    found, published = runs(task), paper()["settings"][task]
    known = set_names(found)
    columns = [0, 1, 2, *(4 + known.index(key) for key in sets), 3]
    rows = []
    for method in (method for method in found if method in published):
        us, them = our_row(found[method], known), paper_row(published[method], known)
        n = len(found[method])
        rows.append([f"{name(task)}, {title(method)}", f"ours, {n} seed{'s' * (n > 1)}", *(us[k] for k in columns)])
        rows.append(["", "paper", *(them[k] for k in columns)])
    return rows


def readme_tables() -> str:
    header = ["", "", *KNOWN.values(), "other classes", "SVHN", "Fashion-MNIST", "all OoD sets"]
    rows = []
    for task, other in {"mnist": "mnist+5-9", "cifar10": "cifar10+5-9"}.items():
        rows += beside_paper(task, [other, "svhn", "fashion-mnist"])
    found = runs("digits")
    sets = set_names(found)
    digits = [
        [title(key), *our_row(group, sets)[:1], *our_row(group, sets)[3 : 4 + len(sets)]]
        for key, group in found.items()
    ]
    n = len(next(iter(found.values())))
    words = f"CIFAR10 without LSUN. The embedded digits, 0-4 known, on a CPU ({n} seeds):"
    return "\n\n".join(
        [table(header, rows, 2), words, table(["method", "accuracy", "all OoD sets", *map(name, sets)], digits)]
    )


def readme(text: str) -> str:
    """README.md with its tables made anew."""
    before, rest = text.split(BEGIN)
    return f"{before}{BEGIN}\n{readme_tables()}\n{END}{rest.split(END)[1]}"


def main() -> None:
    (ROOT / "docs" / "results.md").write_text(page())
    (ROOT / "docs" / "toys.md").write_text(toys())
    (ROOT / "docs" / "practice.md").write_text(practice())
    (ROOT / "README.md").write_text(readme((ROOT / "README.md").read_text()))


if __name__ == "__main__":
    main()
