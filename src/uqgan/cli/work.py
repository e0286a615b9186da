"""The commands train, report, generate, and demo."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Group, Parameter
from cyclopts.validators import Number

from uqgan.cli.app import Machine, Voice, Whole, app, check_page
from uqgan.cli.elsewhere import Elsewhere, noted, tell
from uqgan.cli.scores import show_scores
from uqgan.config import Config, is_run, load_config, read_yaml
from uqgan.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from uqgan.data.tasks import Task
    from uqgan.report.page import Chapter
    from uqgan.run import Run

Overrides = Annotated[
    Config | None, Parameter(name="*", group=Group("Settings (a task may have others: uqgan train TASK --help)"))
]


@Parameter(name="*")
@dataclass(frozen=True)
class Place:
    """Folder of a run."""

    output: Annotated[Path | None, Parameter(("--output", "-o"))] = None
    """Folder of the run; runs/TASK/METHOD/seed-SEED if not given."""
    resume: bool = False
    """Continue a stopped or killed run from its last saved state."""
    overwrite: bool = False
    """Replace the run in that folder."""
    untested: bool = False
    """Do not use the test sets; `uqgan evaluate` can do so later."""


@Parameter(name="*")
@dataclass(frozen=True)
class Pictures:
    """Options for pictures."""

    data_root: Path | None = None
    """Folder of the paper's data sets; UQGAN_DATA if not given."""
    image_size: Whole | None = None
    """32 or 64 pixels per side, for user-supplied pictures."""
    skip_broken: bool = False
    """Leave out pictures that cannot be read."""


@app.command
def train(
    task: str,
    /,
    *,
    method: str = "uqgan",
    seed: Whole = 0,
    config: Path | None = None,
    device: str = "auto",
    max_minutes: Annotated[float | None, Parameter(validator=Number(gt=0))] = None,
    place: Place = Place(),
    pictures: Pictures = Pictures(),
    settings: Overrides = None,
    voice: Voice = Voice(),
) -> None:
    """Train a method on a task and save the run.

    Parameters
    ----------
    task
        One of `uqgan tasks`, where `digits+0,2-4` selects other classes; or your pictures: a folder of class folders,
        or a .npz file with x and y.
    method
        One of `uqgan methods`.
    seed
        The same seed gives the same run on the CPU.
    config
        A YAML file with settings by section.
    device
        auto, cpu, cuda or mps.
    max_minutes
        Time limit, after which the best classifier so far is kept; --resume continues.
    """
    from uqgan import api

    overrides = settings.model_dump(exclude_unset=True) if settings else {}
    check_before_data(task, method, seed, device, config, overrides)
    if config and is_run(read_yaml(config)):
        voice.say(f"--config = {config}: that of a run; its settings are taken, not its task, method and seed")
    data = api.load_task(task, 0, pictures.data_root, pictures.image_size, None, pictures.skip_broken, voice.say)
    chosen = api.settings_of(data, config, overrides)
    folder = place.output or usual_folder(task, data, method, seed)
    console = voice.console()
    if voice.verbose:
        console.print_json(chosen.model_dump_json())
    run = api.fit(method, data, seed, chosen, folder, place.resume, device, max_minutes, console, place.overwrite)
    finish(run, folder, place.untested, voice)


def check_before_data(
    task: str, method: str, seed: int, device: str, config: Path | None, overrides: dict[str, Any]
) -> None:
    """Refuse invalid options of a training before its data are loaded."""
    from uqgan import api
    from uqgan.acceleration import choose_device
    from uqgan.data.tasks import is_user_data
    from uqgan.samples import check_seed

    api.check_sections(method, overrides)
    check_seed(seed)
    choose_device(device)
    if not is_user_data(task):
        load_config(task, config, overrides)


def usual_folder(task: str, data: "Task", method: str, seed: int) -> Path:
    from uqgan.data.tasks import is_user_data

    name = Path(data.name).name if is_user_data(data.name) else task
    return Path("runs") / name / method / f"seed-{seed}"


def finish(run: "Run", folder: Path, untested: bool, voice: Voice) -> None:
    """Test a trained run, save and print its scores, and suggest further commands."""
    from uqgan.run import save_scores

    stopped = run.record.about["stopped"]
    if stopped:
        voice.say(f"{stopped}: the best classifier so far is kept; go on with --resume")
    if untested:
        voice.say(f"saved in {folder}; its scores on validation samples: uqgan evaluate {folder} --validation")
        return
    with voice.busy("testing"):
        outputs = run.outputs()
        found = run.evaluate(outputs=outputs)
    save_scores(folder, run, found, outputs)
    show_scores(found)
    voice.say(f"saved in {folder}; a page about it: uqgan report {folder}")


@app.command
def report(
    runs: list[Path],
    /,
    *,
    output: Annotated[Path, Parameter(("--output", "-o"))] = Path("report.html"),
    machine: Machine = Machine(),
    elsewhere: Elsewhere = Elsewhere(),
    voice: Voice = Voice(),
) -> None:
    """Write one HTML page about runs: scores, maps, curves, galleries; of several methods a leaderboard.

    Raw scores that are in a run's folder are taken, others predicted.

    Parameters
    ----------
    runs
        Folders of runs.
    output
        The page.
    """
    from uqgan.report.page import write_report

    check_page("--output", output)
    chapters: list[Chapter] = []
    for folder in runs:
        with voice.busy(f"testing {folder}"):
            chapters.append(chapter_of(folder, machine, elsewhere, [each.task for each in chapters], voice))
        tell(chapters[-1].found, voice)
    with voice.busy("drawing"):
        write_report(chapters, output)
    voice.say(f"wrote {output}")


def chapter_of(
    folder: Path, machine: Machine, elsewhere: Elsewhere, loaded: "Sequence[Task]", voice: Voice
) -> "Chapter":
    """What a report needs of a run. Tasks that are the same everywhere are `loaded` once."""
    from uqgan.data.tasks import is_user_data
    from uqgan.report.page import Chapter
    from uqgan.run import Run, kept_scores

    run = noted(machine.load(folder), voice)
    plan = run.record.plan
    if not elsewhere.given and not is_user_data(plan.task):
        alike = (task for task in loaded if (task.name, task.class_names) == (plan.task, plan.class_names))
        run = Run(run.record, next(alike, None), machine.data_root)
    run = elsewhere.of(run)
    kept = None if elsewhere.given else kept_scores(folder, run)
    if kept is None:
        outputs = run.outputs()
        kept = outputs, run.evaluate(outputs=outputs)
    return Chapter(run.record, run.task, *kept, run.decide)


@app.command
def generate(
    run: Path,
    /,
    *,
    label: Annotated[str, Parameter("--class")],
    n: Annotated[Whole, Parameter(("--number", "-n"))] = 16,
    seed: Whole = 0,
    output: Annotated[Path | None, Parameter(("--output", "-o"))] = None,
    voice: Voice = Voice(),
) -> None:
    """Make out-of-class examples of a class: a sheet of pictures, or a CSV file of points.

    Parameters
    ----------
    run
        Folder of a run of uqgan or uqgan-mc.
    label
        Name or number of the class.
    n
        Number of examples.
    seed
        The same seed gives the same examples.
    output
        The file to write: .png, .jpg or .webp, for points .csv; class-LABEL in the run's folder if not given.
    """
    from uqgan import api
    from uqgan.files import write_bytes
    from uqgan.tiles import KINDS, tile

    loaded = api.load(run)
    points = len(loaded.record.plan.shape) == 1
    file = output or run / f"class-{label}.{'csv' if points else 'png'}"
    kinds = {".csv": ""} if points else KINDS
    if file.suffix.lower() not in kinds:
        raise UsageError(f"--output = {file}: must end in {' or '.join(kinds)}")
    examples = loaded.generate(int(label) if label.isdecimal() and label not in loaded.class_names else label, n, seed)
    if examples.ndim == 2:
        rows = "".join(",".join(f"{value:.6g}" for value in point) + "\n" for point in examples.tolist())
        write_bytes(file, b"x,y\n" + rows.encode())
    else:
        write_bytes(file, tile(examples.chunk((n + 7) // 8), 2, 128, kinds[file.suffix.lower()]))
    voice.say(f"wrote {file}")


@app.command
def demo(
    *,
    output: Annotated[Path, Parameter(("--output", "-o"))] = Path("demo"),
    voice: Voice = Voice(),
) -> None:
    """Train on embedded data, minutes on a CPU, and end in an HTML report.

    Parameters
    ----------
    output
        Folder for the runs and the report; an interrupted demo is continued.
    """
    from uqgan.demo import run_demo

    page = run_demo(output, voice.console())
    voice.say(f"open {page} in a browser")
