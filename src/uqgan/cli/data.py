"""Commands about data: list, check, fetch, show, clean."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter
from rich.console import Console

from uqgan.cli.app import Json, Voice, Whole, app, print_json, show_rows
from uqgan.errors import RunFailed, UsageError, count

if TYPE_CHECKING:
    from uqgan.data.tasks import Task

data = App(
    name="data",
    help="What data are on this machine, whether they are whole, and how they look.",
    help_format="plaintext",
)
app.command(data)

Root = Annotated[Path | None, Parameter("--data-root")]


@data.command(name="list")
def list_(*, data_root: Root = None, as_json: Json = False, voice: Voice = Voice()) -> None:
    """List the paper's data sets: what is on this machine, from where, and what the hub has.

    Parameters
    ----------
    data_root
        Folder of the sets; UQGAN_DATA if not given.
    as_json
        Print JSON.
    """
    from uqgan.data import sources
    from uqgan.data.cache import cache_files
    from uqgan.data.fetch import origin
    from uqgan.files import cache_folder

    root = sources.data_root(data_root)
    rows = []
    for name, repository in sources.REPOSITORIES.items():
        splits = [split for part in ("train", "test") for split in sources.splits_of(name, part, root)]
        there = {split: sources.rows_of(name, split, root) for split in splits}
        rows.append(
            {
                "set": name,
                "here": ", ".join(f"{split} {n:,}" for split, n in there.items()) or "no",
                "from": origin(name, root) if there else "-",
                "hub": repository.hub or "no faithful copy known",
                "verified": "yes" if repository.verified else "no",
            }
        )
    show_rows(rows, as_json)
    if not as_json and not voice.quiet:
        size = sum(file.stat().st_size for file in cache_files())
        out = Console(highlight=False, soft_wrap=True)
        out.print(f"\nsets are looked for in {root}; what was made from them takes {_mib(size)} in {cache_folder()}")
        out.print("verified: whether files fetched from that repository of the hub were read with this version")


@data.command
def check(
    names: Sequence[str] = (), /, *, data_root: Root = None, as_json: Json = False, voice: Voice = Voice()
) -> None:
    """Read sets in full: sha256, pictures per class and split, broken ones, duplicates between training and test.

    Parameters
    ----------
    names
        Sets of `uqgan data list`, or folders of pictures; all sets on this machine if not given.
    data_root
        Folder of the sets; UQGAN_DATA if not given.
    as_json
        Print JSON, with the count of every class.
    """
    from uqgan.data import checks, sources

    say = voice.say
    root = sources.data_root(data_root)
    here = [name for name in sources.REPOSITORIES if sources.splits_of(name, "test", root)]
    findings = []
    for name in names or here:
        if name not in sources.REPOSITORIES:
            findings += _check_user_data(name, say)
        elif name in here:
            findings += checks.check_set(name, root, say)
        else:
            raise UsageError(f"{name}: not in {root} ({sources.how_to_get(name, root)})")
    if not findings:
        raise UsageError(f"{root}: holds no sets (uqgan data list says which are known)")
    if as_json:
        print_json([vars(finding) for finding in findings])
    else:
        show_rows([_row(finding) for finding in findings], False)
    wrong = [finding for finding in findings if finding.hashes.startswith("wrong") or finding.left_out]
    if wrong:
        first = wrong[0].left_out[0] if wrong[0].left_out else wrong[0].hashes
        raise RunFailed(f"{wrong[0].name}, {wrong[0].split}: {first} (fetch or copy it again)")


def _row(finding: Any) -> dict[str, Any]:
    counts = sorted(finding.counts.values())
    return {
        "set": finding.name,
        "split": finding.split,
        "pictures": f"{finding.pictures:,}",
        "classes": len([count for count in counts if count]),
        "per class": f"{min(c for c in counts if c):,}-{max(counts):,}" if any(counts) else "-",
        "sha256": finding.hashes,
        "broken": len(finding.left_out),
        "also in train": "-" if finding.duplicates is None else finding.duplicates,
    }


def _check_user_data(name: str, say: Any) -> list[Any]:
    """Print findings about the parts of a task of user-supplied data."""
    from uqgan.data.checks import Finding
    from uqgan.data.duplicates import fingerprints
    from uqgan.data.tasks import load_task

    task = load_task(name, skip_broken=True, say=say)
    seen = set(fingerprints(task.train.x).tolist())
    findings = []
    for part in ("train", "validation", "calibration", "test"):
        data_set = getattr(task, part)
        counts = data_set.y.bincount(minlength=task.n_classes).tolist()
        duplicates = None if part == "train" else sum(each in seen for each in fingerprints(data_set.x).tolist())
        named = dict(zip(task.class_names, counts, strict=True))
        broken = tuple(note for note in task.notes if part == "train" and note.startswith("broken"))
        findings.append(Finding(task.title, part, len(data_set), named, "-", broken, duplicates))
    for note in task.notes:
        say(note)
    return findings


@data.command
def fetch(names: Sequence[str], /, *, data_root: Root = None, voice: Voice = Voice()) -> None:
    """Fetch sets from the hub (needs the extra hf).

    Parameters
    ----------
    names
        Sets of `uqgan data list`, or tasks, for all sets that they need.
    data_root
        Folder for the sets; UQGAN_DATA, or a folder in the user's cache, if not given.
    """
    from uqgan.data import fetch as hub
    from uqgan.data import sources
    from uqgan.data.tasks import TASKS

    wanted: dict[str, None] = {}
    for name in names:
        if name not in sources.REPOSITORIES:
            raise UsageError(f"{name}: no such set (known: {', '.join(sources.REPOSITORIES)})")
        wanted |= dict.fromkeys([name, *(TASKS[name].ood if name in TASKS else ())])
    root = hub.made_root(data_root)
    for name in wanted:
        if name not in names and not sources.REPOSITORIES[name].hub:
            voice.say(f"{name}: {sources.how_to_get(name, root)}; the task does without it")
            continue
        voice.say(f"{name}: in {hub.fetch(name, root, voice.say)}")


@data.command
def show(
    name: str,
    /,
    *,
    output: Annotated[Path | None, Parameter(("--output", "-o"))] = None,
    root: Root = None,
    image_size: Whole | None = None,
    skip_broken: bool = False,
    voice: Voice = Voice(),
) -> None:
    """Write contact sheets: a PNG of preprocessed pictures for each set of a task.

    Parameters
    ----------
    name
        A task, one of the sets of `uqgan data list`, or a folder of pictures.
    output
        Folder for the sheets; sheets/NAME if not given.
    root
        Folder of the paper's sets; UQGAN_DATA if not given.
    image_size
        Pixels per side, for user-supplied pictures.
    skip_broken
        Leave out pictures that cannot be read.
    """
    from uqgan.data.sources import REPOSITORIES, data_root
    from uqgan.data.tasks import TASKS, load_task, refuse_format
    from uqgan.files import write_bytes

    folder = output or Path("sheets") / Path(name).resolve().name
    if name in REPOSITORIES and name not in TASKS:
        refuse_format(name, image_size, None)
        sheets = _set_sheets(name, data_root(root), skip_broken, voice)
    else:
        task = load_task(name, 0, root, image_size, None, skip_broken, voice.say)
        sheets = _task_sheets(task)
        for note in (*task.notes, *(f"{key}: left out, {why}" for key, why in task.missing.items())):
            voice.say(note)
    for key, png in sheets.items():
        write_bytes(folder / f"{key.replace('/', '-')}.png", png)
    voice.say(f"wrote {count(len(sheets), 'sheet')} in {folder}")


def _set_sheets(name: str, root: Path, skip_broken: bool, voice: Voice) -> dict[str, bytes]:
    from uqgan.data import sources
    from uqgan.data.checks import contact_sheet
    from uqgan.data.sets import load_part

    size, channels = sources.REPOSITORIES[name].size, sources.REPOSITORIES[name].channels
    parts = {p: load_part(name, p, size, channels, root, skip_broken, voice.say) for p in ("train", "test")}
    if not any(parts.values()):
        raise UsageError(f"{name}: not in {root} ({sources.how_to_get(name, root)})")
    return {part: contact_sheet(found.x, found.y) for part, found in parts.items() if found}


def _task_sheets(task: "Task") -> dict[str, bytes]:
    from uqgan.data.checks import contact_sheet

    if task.is_planar:
        raise UsageError(f"{task.name}: points in the plane have no pictures (uqgan report shows them)")
    sheets = {part: contact_sheet(getattr(task, part).x, getattr(task, part).y) for part in ("train", "test")}
    return sheets | {f"ood-{key}": contact_sheet(x) for key, x in task.ood.items()}


@data.command
def clean(*, voice: Voice = Voice()) -> None:
    """Delete cached pictures and networks, which are made again when needed; fetched sets stay."""
    from uqgan.data.cache import clean as empty
    from uqgan.files import cache_folder

    freed = empty()
    voice.say(f"freed {_mib(freed)} in {cache_folder()}")


def _mib(size: int) -> str:
    return f"{size / 2**20:,.1f} MiB"
