"""The pages of toys, and of own pictures and networks."""

from make_tables import joined, ours, percent, record, records, short, table
from uqgan.errors import count
from uqgan.paper.results import set_title

TOYS = """# Toys

Made by `make results` from `results/toys/`, as [Results](results.md) is.
`python benchmarks/toys.py`, method `uqgan`, one value per seed ({seeds}). "Far" is further than 4 standard deviations
from every mode. The regulariser closes the shield around the classes: see `gaussians-overlap` with and without it."""
PRACTICE = """# Own pictures, own networks

Made by `make results`. Percent; mean ± standard deviation over the seeds where there are several."""
FOLDER = """## From a folder to decisions

`{command}`: 1,000 MNIST digits 0-4 as PNG files in class folders, then new pictures: other digits 0-4, letters, photo
patches. {seconds} s in all; {device}; load before: {load} on {cores} cores; commit {commit}. With {n}
calibration pictures and a false-alarm rate of 5 %, between {low} and {high} % of the new digits should be flagged (95 %
interval)."""
BACKBONES = """## User-supplied networks

`python benchmarks/backbone.py TASK`: the same network for every method. AUROC over all OoD sets. Real and generated
samples pass the classifier mixed in one batch; `uqgan` has the better AUROC with group norm
([more](methods.md#a-user-supplied-classifier))."""


def toys() -> str:
    """The page of the toys: one table for the cases that share their figures."""
    cases = records("toys")
    if not cases:
        return ""
    groups: dict[tuple[str, ...], list[str]] = {}
    for case, found in cases.items():
        groups.setdefault(tuple(found["figures"]), []).append(case)
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


def session() -> str:
    """The commands from a folder to decisions, with what they said, and the share flagged of each kind of pictures."""
    found = record("decisions/folder.json")
    if not found:
        return ""
    said = [
        "\n".join([f"$ {step['command']}", *step["said"], f"# {step['seconds']:.0f} s"]) for step in found["commands"]
    ]
    rows = [
        [kind.replace("-", " "), f"{one['n']:,}", percent(one["flagged"]), *map(percent, one["decisions"].values())]
        for kind, one in found["kinds"].items()
    ]
    low, high = found["kinds"]["digits"]["interval"]
    words = FOLDER.format(
        command=found["command"],
        device=f"{found['device']}, {count(found['threads'], 'thread')}, torch {found['versions']['torch']}",
        commit=short(found["commit"]),
        load=found["load_before"],
        cores=found["cores"],
        seconds=f"{found['seconds']:.0f}",
        n=found["n_calibration"],
        low=percent(low),
        high=percent(high),
    )
    words_of = list(found["kinds"]["digits"]["decisions"])
    shares = table(["new pictures", "number", "flagged", *words_of], rows)
    return "\n\n".join([words, shares, "```text\n" + "\n\n".join(said) + "\n```"])


def backbones() -> str:
    """User-supplied networks: a row per network, norm and method."""
    rows, facts = [], []
    for found in records("backbones").values():
        runs_of = found["runs"]
        cells = [ours([run["accuracy"] for run in runs_of]), ours([run["auroc"]["all"] for run in runs_of])]
        kind = {"batch": "batch norm", "group": "group norm"}[found["norm"]]
        rows.append([set_title(found["task"]), f"{found['network']}, {kind}", f"`{found['method']}`", *cells])
        rows[-1].append(str(len(runs_of)))
        facts.append(f"{runs_of[0]['device']}, commit {short(found['commit'])}")
    if not rows:
        return ""
    header = ["task", "network", "method", "accuracy", "AUROC all", "seeds"]
    return f"{BACKBONES}\n\n{table(header, rows, 3)}\n\nOn {'; '.join(dict.fromkeys(facts))}."


def practice() -> str:
    return joined(PRACTICE, session(), backbones())
