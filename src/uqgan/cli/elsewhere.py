"""The command evaluate, and options for other test pictures."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from uqgan.cli.app import Json, Machine, Voice, app, print_json
from uqgan.cli.scores import show_scores
from uqgan.errors import RunFailed, UsageError

if TYPE_CHECKING:
    from uqgan.evaluation import Outputs
    from uqgan.run import Run


@Parameter(name="*")
@dataclass(frozen=True)
class Elsewhere:
    """Other test pictures for a run."""

    test: Path | None = None
    """Folder of class folders (all or some of the run's classes) to test on, with ood/NAME/ if you like."""
    ood: tuple[str, ...] = ()
    """NAME=FOLDER: pictures of no class of the run, all that lie below the folder; may be repeated."""

    @property
    def given(self) -> bool:
        return self.test is not None or bool(self.ood)

    def sets(self) -> dict[str, Path]:
        """Folders of the OoD sets by name."""
        found: dict[str, Path] = {}
        for text in self.ood:
            name, sign, folder = text.partition("=")
            if not (sign and name.strip() and folder):
                raise UsageError(f"--ood = {text}: must be NAME=FOLDER (for instance drawings=pictures/drawings)")
            if name in found:
                raise UsageError(f"--ood = {text}: {name} is given twice (choose another name)")
            found[name] = Path(folder)
        return found

    def of(self, run: "Run") -> "Run":
        """The run, to be tested on these pictures if there are any."""
        sets = self.sets()
        return run.on(self.test, sets) if self.given else run


def noted(run: "Run", voice: Voice) -> "Run":
    """Run whose notes have been printed."""
    for note in run.record.notes:
        voice.say(note)
    return run


def tell(found: dict[str, Any], voice: Voice) -> None:
    """Print the notes on a test set: what was left out of it, or has changed."""
    for note in found["test_set"]["notes"] if "test_set" in found else ():
        voice.say(note)


def check_output(file: Path | None) -> None:
    if file and file.suffix not in (".json", ".npz"):
        raise UsageError(f"-o = {file}: must end in .json (scores) or .npz (raw scores of every picture)")


def write_output(file: Path, run: "Run", found: dict[str, Any], outputs: "Outputs") -> None:
    """Write scores with all that they depend on, or raw scores, as the file's name says."""
    from uqgan.run import write_scores

    if file.suffix == ".npz":
        outputs.write(file)
    else:
        write_scores(file.parent, run.record, found, file.name)


@app.command
def evaluate(
    run: Path,
    /,
    *,
    machine: Machine = Machine(),
    validation: bool = False,
    elsewhere: Elsewhere = Elsewhere(),
    output: Annotated[Path | None, Parameter(("--output", "-o"))] = None,
    as_json: Json = False,
    voice: Voice = Voice(),
) -> None:
    """Test a run: the paper's columns for each OoD set, with 95 % intervals, and the accuracy of each class.

    Scores on its own test set are kept in its folder. Those on other pictures (--test, --ood), or on its own data where
    they changed since, are shown; -o keeps them.

    Parameters
    ----------
    run
        Folder of a run.
    validation
        Score validation samples instead, known and OoD, to choose settings by; nothing is kept.
    output
        File for the scores, or for the raw scores of every picture: .json or .npz.
    as_json
        Print JSON.
    """
    check_output(output)
    if validation and elsewhere.given:
        raise UsageError("--validation: scores samples of the run's own data (leave it out, or --test and --ood)")
    loaded = elsewhere.of(noted(machine.load(run), voice))
    with voice.busy(f"testing {run}"):
        outputs = loaded.outputs(validation)
        found = loaded.evaluate(outputs=outputs)
    tell(found, voice)
    (print_json if as_json else show_scores)(found)
    if output:
        write_output(output, loaded, found, outputs)
        voice.say(f"wrote {output}")
    elif not validation and "test_set" in found:
        voice.say("shown only: the run keeps the scores on its own test set (-o FILE.json keeps these)")
    if not validation and "test_set" not in found:
        keep_scores(run, loaded, found, outputs, voice)


def keep_scores(folder: Path, run: "Run", found: dict[str, Any], outputs: "Outputs", voice: Voice) -> None:
    """Write scores into a run's folder, where that can be written."""
    from uqgan.run import save_scores

    try:
        save_scores(folder, run, found, outputs)
    except RunFailed as error:
        voice.say(f"{error}; the scores are shown only")
