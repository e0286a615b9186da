"""Commands that draw the paper's figures from runs: toys in the plane, and the examples that shield each class."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import App, Parameter
from cyclopts.validators import Number

from uqgan.cli.app import Machine, Voice, Whole, app
from uqgan.cli.elsewhere import noted
from uqgan.errors import UsageError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

figure = App(name="figure", help="Draw the paper's figures from runs, as SVG and PNG.", help_format="plaintext")
app.command(figure)

Forms = dict[str, Literal["svg", "png"]]
FORMS: Forms = {".svg": "svg", ".png": "png"}
Output = Annotated[Path | None, Parameter(("--output", "-o"))]
Count = Annotated[Whole, Parameter(validator=Number(gte=1, lte=100))]


@figure.command
def toys(runs: list[Path], /, *, output: Output = None, machine: Machine = Machine(), voice: Voice = Voice()) -> None:
    """Maps of both uncertainties in the plane, foreignness and generated points: a row per run.

    Parameters
    ----------
    runs
        Folders of runs on toys.
    output
        The figure: .svg, .png, or a name without ending for both; toys if not given.
    """
    from uqgan.report.figures import plane_figure

    files = files_of(output or Path("toys"))
    write(plane_figure([noted(machine.load(folder), voice) for folder in runs]), files, voice)


@figure.command
def shields(
    runs: list[Path],
    /,
    *,
    per_class: Count = 8,
    classes: Count = 5,
    output: Output = None,
    machine: Machine = Machine(),
    voice: Voice = Voice(),
) -> None:
    """Real pictures of each class above the out-of-class examples of each run, say for several lambda_reg.

    Parameters
    ----------
    runs
        Folders of runs of uqgan or uqgan-mc on one task; a row is named by the settings in which its run differs.
    per_class
        Pictures in a row.
    classes
        How many classes, the first ones.
    output
        The figure: .svg, .png, or a name without ending for both; shields if not given.
    """
    from uqgan.report.figures import shields_figure

    files = files_of(output or Path("shields"))
    drawn = shields_figure([noted(machine.load(folder), voice) for folder in runs], per_class, classes)
    write(drawn, files, voice)


def files_of(output: Path) -> Forms:
    """Files to write and their formats."""
    if output.suffix in FORMS:
        return {str(output): FORMS[output.suffix]}
    if output.suffix.lower() in (".pdf", ".jpg", ".jpeg", ".eps", ".html"):
        raise UsageError(f"--output = {output}: must end in .svg or .png, or in neither for both")
    return {f"{output}{ending}": form for ending, form in FORMS.items()}


def write(draw: "Callable[[], Figure]", files: Forms, voice: Voice) -> None:
    from uqgan.files import write_bytes
    from uqgan.report.plots import saved

    with voice.busy("drawing"):
        for file, form in files.items():
            write_bytes(Path(file), saved(draw, form))
    voice.say(f"wrote {' and '.join(files)}")
