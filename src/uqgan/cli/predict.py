"""The command predict: from files to decisions."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from uqgan.cli.app import Json, Machine, Voice, Whole, app, check_page
from uqgan.cli.scored import Job, Nodes, scored_here, scored_there
from uqgan.errors import RunFailed, UsageError, count

if TYPE_CHECKING:
    from uqgan.run import Run
    from uqgan.scoring import Summary
    from uqgan.sorting import Folders
    from uqgan.tables import Row
    from uqgan.tables import Table as Kept

SHORT = {"probability": "prob.", "aleatoric": "aleat.", "epistemic": "epist.", "foreignness": "foreign", "p_value": "p"}
"""Short titles of columns, for the terminal."""
BESIDE = 60
"""Width of a line of the table without the path, in characters."""


@Parameter(name="*")
@dataclass(frozen=True)
class Results:
    """Output of predictions."""

    output: Annotated[Path | None, Parameter(("--output", "-o"))] = None
    """A .csv, .jsonl or .parquet file with a row per picture; a table of the first ones if not given."""
    probabilities: bool = False
    """Add a column per class with its probability."""
    resume: bool = False
    """Continue the output of an interrupted command."""
    copy_to: Path | None = None
    """Folder for copies of the pictures, in accept/LABEL/, ambiguous/ and unknown/."""
    page: Path | None = None
    """An HTML page with galleries of accepted, ambiguous and unknown pictures."""
    as_json: Json = False
    """Print a JSON object per picture, each on one line."""


@app.command
def predict(
    run: Path,
    paths: Annotated[list[str], Parameter(allow_leading_hyphen=True)],
    /,
    *,
    results: Results = Results(),
    seed: Whole = 0,
    machine: Machine = Machine(),
    nodes: Nodes = Nodes(),
    voice: Voice = Voice(),
) -> None:
    """Predict pictures, and decide about each: files, folders, patterns, or a list on standard input.

    Files that cannot be read are listed, and the exit status is then 1.

    Parameters
    ----------
    run
        Folder of a run.
    paths
        Pictures, folders of them, patterns in quotes, or - for a list on standard input, one path per line.
    seed
        The same seed repeats the draws of a stochastic method.
    """
    from uqgan.data.decode import decoders
    from uqgan.data.inputs import Sources, pixel_format_of, preprocessing_in_words, processes_for
    from uqgan.samples import check_seed
    from uqgan.tables import check_ending

    if results.output:
        check_ending(results.output)
    elif results.resume:
        raise UsageError("resume: needs --output, the file to go on with")
    check_page("--page", results.page)
    check_seed(seed)
    nodes.check()
    with ExitStack() as stack:
        sources = stack.enter_context(closing(Sources(paths, sys.stdin.buffer if "-" in paths else None)))
        pool = stack.enter_context(decoders(1 if nodes.ray else processes_for(sources)))
        with voice.busy(f"loading {run}"):
            loaded = machine.load(run)
            pixel_format, total = pixel_format_of(loaded.record.plan.shape), sources.count()
        voice.say(f"{count(total, 'picture')}, each {preprocessing_in_words(pixel_format)}")
        decides = can_decide(loaded, voice, needed=bool(results.copy_to or results.page))
        job = Job(loaded, sources, total, pixel_format, seed, decides, results.probabilities, pool)
        summary = score_all(job, results, nodes, voice)
    tell(job, summary, results, voice)
    if summary.broken:
        raise RunFailed(f"{summary.broken:,} of {count(summary.n, 'picture')} could not be read")


def can_decide(run: "Run", voice: Voice, needed: bool) -> bool:
    """Whether a run can decide; otherwise the reason is printed, or raised where decisions are required."""
    try:
        run.decide(run.calibration.prediction.first(1))
    except UsageError as error:
        if needed:
            raise
        voice.say(f"{error}: without p-values, decisions and sets")
        return False
    return True


def score_all(job: Job, results: Results, nodes: Nodes, voice: Voice) -> "Summary":
    """Predict all pictures; each chunk is saved, copied and printed before the next."""
    from uqgan.log import interrupts
    from uqgan.progress import Pace, shown
    from uqgan.scoring import PICTURES, Summary, chunk_size, columns_of
    from uqgan.sorting import Folders
    from uqgan.tables import json_line

    run, columns, chunk = job.run, columns_of(job.run.class_names, job.probabilities), chunk_size(job.run)
    summary = Summary(columns, run.rule.score, pictures=PICTURES if results.page else 0)
    folders = Folders(results.copy_to, job.sources.folders()) if results.copy_to else None
    with ExitStack() as stack:
        files, table = iter(job.sources), None
        if results.output:
            table = stack.enter_context(closing(begun(job, columns, chunk, results)))
            for file, row in go_on(table, files, results.resume, voice):
                summary.add([row])
                if folders:
                    copy(folders, [file], [row], columns)
        first = summary.n // chunk
        scored = scored_there(nodes, job, files, first) if nodes.ray else scored_here(job, files, first)
        chunks = stack.enter_context(scored)
        asked = stack.enter_context(interrupts())
        pace = Pace("predicting", summary.n, job.total, "picture")
        show = stack.enter_context(shown(pace, voice.console()))
        try:
            for done, rows in chunks:
                if folders:
                    copy(folders, done, rows, columns)
                if table:
                    table.append(rows)
                if results.as_json:
                    sys.stdout.writelines(json_line(columns, row) for row in rows)
                summary.add(rows)
                pace.advance(len(rows))
                show()
                if asked():
                    raise KeyboardInterrupt(asked())
        except KeyboardInterrupt:
            if table:
                voice.say(f"{table.n:,} of {count(job.total, 'picture')} kept; the same command with --resume goes on")
            raise
        if table:
            table.finish()
    return summary


def begun(job: Job, columns: Sequence[str], chunk: int, results: Results) -> "Kept":
    """Output table, with the rows of an interrupted command."""
    from uqgan.tables import Table as Kept

    assert results.output
    about = job.run.record.about
    facts = {
        "run": about.get("weights_sha256"),
        "seed": job.seed,
        "device": job.device,
        "rule": asdict(job.run.rule) if job.decides else None,
    }
    return Kept(results.output, columns, facts, chunk, results.resume)


def go_on(table: "Kept", files: Iterator[str], resumes: bool, voice: Voice) -> Iterator[tuple[str, "Row"]]:
    """Rows of an interrupted command with their files, which must be the same ones in the same order."""
    from uqgan.scoring import printable

    if table.n:
        voice.say(f"going on after {count(table.n, 'picture')}")
    elif resumes:
        voice.say(f"{table.part}: nothing was kept there, so this begins with the first picture")
    for row in table.rows():
        file = next(files, None)
        if file is None or printable(file) != row[0]:
            found = "nothing" if file is None else printable(file)
            change = f"there was {row[0]} where {found} is now"
            raise UsageError(f"{table.part}: the pictures have changed, {change} (delete it to begin anew)")
        yield file, row


def copy(folders: "Folders", files: Sequence[str], rows: Sequence["Row"], columns: Sequence[str]) -> None:
    label, word = (columns.index(name) for name in ("label", "decision"))
    for file, row in zip(files, rows, strict=True):
        if row[word] is not None:
            folders.copy(file, row[word], row[label])


def tell(job: Job, summary: "Summary", results: Results, voice: Voice) -> None:
    """Print the first rows as a table, unreadable files, counts, and the comparison of all pictures."""
    from uqgan.decisions import NO_FOREIGNNESS, WORDS

    drift = summary.drift(job.run)
    if not (results.output or results.as_json):
        show_first(summary)
    for sentence in summary.named:
        voice.say(sentence)
    if summary.broken > len(summary.named):
        voice.say(f"… and {summary.broken - len(summary.named):,} more that could not be read")
    lines = []
    if summary.counts:
        lines.append(", ".join(f"{word} {summary.counts[word]:,}" for word in WORDS))
    if drift:
        lines.append(f"as a whole: {drift}")
    if summary.counts["unknown"] and not job.run.has_foreignness:
        lines.append(NO_FOREIGNNESS)
    for line in lines:
        (voice.say if results.as_json else plain)(line)
    if results.page:
        from uqgan.report.predictions_page import write_page

        write_page(results.page, job.run, summary, job.pixel_format, drift)
    for file in (results.output, results.copy_to, results.page):
        if file:
            voice.say(f"wrote {file}")


def plain(sentence: str) -> None:
    Console(highlight=False).print(sentence, markup=False, soft_wrap=True)


def show_first(summary: "Summary") -> None:
    """Table of the first rows, with the number of further ones."""
    out = Console(highlight=False)
    kept = [name for name in summary.columns if name not in ("reason", "error")]
    titles = (Column(SHORT.get(name, name), overflow="fold", no_wrap=name == "path") for name in kept)
    table = Table(*titles, box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for row in summary.first:
        cells = dict(zip(summary.columns, row, strict=True)) | {"path": end_of(row[0], max(16, out.width - BESIDE))}
        table.add_row(*(escape(cell(cells[name])) for name in kept))
    out.print(table)
    if summary.n > len(summary.first):
        plain(f"… and {summary.n - len(summary.first):,} more: -o FILE.csv")


def end_of(path: str, width: int) -> str:
    """End of a path, in which files differ."""
    return path if len(path) <= width else f"…{path[1 - width :]}"


def cell(value: Any) -> str:
    """Value as text for a table."""
    if value is None:
        return "–"
    if isinstance(value, list):
        return ", ".join(value)
    return f"{value:.3f}" if isinstance(value, float) else str(value)
