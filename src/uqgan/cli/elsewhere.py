"""Options for pictures to test a run on, other than its own, and for a file of their scores."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cyclopts import Parameter

from uqgan.errors import UsageError

if TYPE_CHECKING:
    from uqgan.cli.app import Voice
    from uqgan.evaluation import Outputs
    from uqgan.run import Run


@Parameter(name="*")
@dataclass(frozen=True)
class Elsewhere:
    """Other pictures than the run's own."""

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


def tell(found: dict[str, Any], voice: "Voice") -> None:
    """Say what was left out, or has changed, of what the scores are of."""
    for note in found["test_set"]["notes"] if "test_set" in found else ():
        voice.say(note)


def check_output(file: Path | None) -> None:
    if file and file.suffix not in (".json", ".npz"):
        raise UsageError(f"-o = {file}: must end in .json (scores) or .npz (raw scores of every picture)")


def write_output(file: Path, run: "Run", found: dict[str, Any], outputs: "Outputs") -> None:
    """Write scores with all that they depend on, or raw scores, as the file's name says."""
    from uqgan.runs import write_scores

    if file.suffix == ".npz":
        outputs.write(file)
    else:
        write_scores(file.parent, run.record, found, file.name)
