"""The command detect: joint detection of wrong and foreign pictures by uncertainty scores."""

import shlex
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from uqgan.cli.app import Json, Machine, Voice, app, print_json, print_whole
from uqgan.cli.elsewhere import noted
from uqgan.cli.reproduce import SHORT, coloured
from uqgan.errors import RunFailed, UsageError

if TYPE_CHECKING:
    from uqgan.detection import Job
    from uqgan.evaluation import Outputs
    from uqgan.paper.detection_table import Row
    from uqgan.run import Run
    from uqgan.runs import Plan


@app.command
def detect(
    runs: list[Path],
    /,
    *,
    quick: bool = False,
    machine: Machine = Machine(),
    output: Annotated[Path | None, Parameter(("--output", "-o"))] = None,
    as_json: Json = False,
    voice: Voice = Voice(),
) -> None:
    """Joint detection: which pictures are classified correctly (TP), wrongly (FP), or foreign (OoD)?

    Gradient-boosted trees predict it from a run's uncertainty scores, with and without class probabilities. They are
    fitted on validation samples, known and OoD, with equal weights for the three kinds and for all OoD sets, and tested
    on the test samples. The result is saved in each run's folder.

    Parameters
    ----------
    runs
        Folders of runs.
    quick
        Use trees that split at 255 quantiles of each score only: many times as fast, and less accurate.
    output
        JSON file for the results of all these runs.
    as_json
        Print JSON.
    """
    if output and output.suffix != ".json":
        raise UsageError(f"--output = {output}: must end in .json")
    if not runs:
        raise UsageError("RUN: names none (uqgan detect runs/cifar10/uqgan/seed-0)")
    from uqgan.detection import KINDS, detect_all
    from uqgan.files import write_json
    from uqgan.runs import DETECTION

    start = time.monotonic()
    prepared = [one for folder in runs if (one := prepared_run(folder, quick, machine, voice))]
    if not prepared:
        raise UsageError("RUN: none has what joint detection is fitted on (their notes say what is missing)")
    with voice.busy("fitting"):
        found = iter(detect_all([job for one in prepared for job in one.jobs]))
    made = [replace(one, record=one.record | {kind: next(found) for kind in KINDS}) for one in prepared]
    whole = whole_record([one.record for one in made], quick, time.monotonic() - start)
    if output:
        write_json(output, whole)
        voice.say(f"wrote {output}")
    for one in made:
        write_or_say(partial(write_json, one.folder / DETECTION, whole | {"runs": [one.record]}), voice)
    if as_json:
        print_json(whole)
    else:
        show(made)


@dataclass(frozen=True)
class Prepared:
    """A run with its data to fit, and its files to write."""

    folder: Path
    plan: "Plan"
    jobs: "list[Job]"
    record: dict[str, Any]


def prepared_run(folder: Path, quick: bool, machine: Machine, voice: Voice) -> Prepared | None:
    """Predictions of a run; None, with a note, if there is nothing to fit on."""
    from uqgan.detection import KINDS, Job, check, facts

    with voice.busy(f"predicting for {folder}"):
        run = noted(machine.load(folder), voice)
        plan, about = run.record.plan, run.record.about
        validation, test = scores_of(run, folder, voice)
    try:
        check(validation)
    except UsageError as error:
        voice.say(f"{folder}: left out; {error}")
        return None
    record = {"task": plan.task, "method": plan.method, "seed": plan.seed, **facts(validation, test)}
    record |= {"trained_by": about["command"], "trained_at": about.get("commit")}
    record |= {"settings": plan.config.model_dump()}
    return Prepared(folder, plan, [Job(plan.method, kind, validation, test, quick) for kind in KINDS], record)


def scores_of(run: "Run", folder: Path, voice: Voice) -> "tuple[Outputs, Outputs]":
    """Predictions of a run for validation and test samples: its raw scores, or new ones, which are saved."""
    from uqgan.detection import holds
    from uqgan.evaluation import Outputs
    from uqgan.methods import METHODS
    from uqgan.runs import RAW_SCORES, RAW_VALIDATION

    method, found = METHODS[run.record.plan.method], []
    for name, validation in ((RAW_VALIDATION, True), (RAW_SCORES, False)):
        file = folder / name
        outputs = Outputs.read(file) if file.exists() else None
        if outputs is None or not holds(outputs, method):
            outputs = run.outputs(validation)
            if validation:
                write_or_say(partial(outputs.write, file), voice)
        found.append(outputs)
    return found[0], found[1]


def write_or_say(write: Callable[[], None], voice: Voice) -> None:
    """Write into a run's folder, if that is possible."""
    try:
        write()
    except RunFailed as error:
        voice.say(f"{error}; it is not kept")


def whole_record(records: list[dict[str, Any]], quick: bool, seconds: float) -> dict[str, Any]:
    """Results of all runs with their conditions."""
    import torch

    from uqgan.detection import model
    from uqgan.environment import circumstances

    around = circumstances(torch.device("cpu"), seconds, None, {}, command=shlex.join(["uqgan", *sys.argv[1:]]))
    kept = {key: around[key] for key in ("command", "commit", "seconds", "device", "versions")}
    return {"model": model(quick), **kept, "runs": records}


def show(made: Sequence[Prepared]) -> None:
    """A table per task, a row per method and its settings."""
    from uqgan import paper
    from uqgan.paper.detection_table import COLUMNS, TITLES, WORDS, table_lines

    out = Console(highlight=False)
    for task in dict.fromkeys(one.plan.task for one in made):
        rows = rows_of_runs([one for one in made if one.plan.task == task])
        table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
        table.add_column("")
        table.add_column("", no_wrap=True)
        for kind, group in COLUMNS:
            table.add_column(f"{TITLES[group]}\n{'with p̂' if kind != 'scores' else 'scores'}", justify="right")
        for line in table_lines(task, rows):
            who = f"{SHORT.get(line.who, line.who)} {line.seeds}"
            table.add_row(escape(line.method), who, *map(coloured, line.cells))
        out.print(f"[bold]{escape(task)}[/bold]: accuracy on each kind of test samples, in percent")
        print_whole(out, table)
        sets = {name for row in rows for record in row.records for name in record["tested_on"]["ood"]}
        lacking = [name for name in paper.sizes(task) if name not in sets]
        if lacking:
            out.print(f"Ours without {', '.join(lacking)}, which the paper's have: no verdict.", markup=False)
        out.print(f"with p̂: by {WORDS['scores_and_probs']}; scores: by uncertainty scores only", markup=False)


def rows_of_runs(made: Sequence[Prepared]) -> "list[Row]":
    """Rows of the table; runs that differ only in their seed share one."""
    from uqgan.paper.detection_table import Row
    from uqgan.runs import run_titles

    groups: dict[Any, list[Prepared]] = {}
    for one in made:
        groups.setdefault((one.plan.method, *one.plan.settings.items()), []).append(one)
    titles = run_titles([replace(group[0].plan, seed=0) for group in groups.values()])
    return [
        Row(group[0].plan.method, title, tuple(one.record for one in group))
        for title, group in zip(titles, groups.values(), strict=True)
    ]
