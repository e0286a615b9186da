"""Parts common to all commands: the app, verbosity, and printing."""

import json
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Group, Parameter, Token
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from uqgan import __version__
from uqgan.errors import UsageError

if TYPE_CHECKING:
    from uqgan.run import Run

app = App(
    name="uqgan",
    version=__version__,
    help="Classifiers that say what a picture is, how torn they are, and how foreign it is to them.",
    help_format="markdown",
    default_parameter=Parameter(negative=()),
    result_action="return_value",
    suppress_keyboard_interrupt=False,
)

QUIET = Group("Output")


@Parameter(name="*")
@dataclass(frozen=True)
class Voice:
    """Verbosity of a command."""

    quiet: Annotated[bool, Parameter(("--quiet", "-q"), group=QUIET)] = False
    """Print only results and errors."""
    verbose: Annotated[bool, Parameter(("--verbose", "-v"), group=QUIET)] = False
    """Print more, and errors with their traceback."""

    def console(self) -> Console:
        return Console(stderr=True, quiet=self.quiet, highlight=False)

    def busy(self, doing: str) -> AbstractContextManager[object]:
        """Spinner within the block, on a terminal."""
        console = self.console()
        return console.status(f"{doing} …") if console.is_terminal and not self.quiet else nullcontext()

    def say(self, sentence: str) -> None:
        """Print one line on standard error, without markup."""
        self.console().print(sentence, markup=False, soft_wrap=True)


@Parameter(name="*")
@dataclass(frozen=True)
class Machine:
    """Device and data of a loaded run."""

    device: str = "auto"
    """auto, cpu, cuda or mps."""
    data_root: Path | None = None
    """Folder of the paper's data sets; UQGAN_DATA if not given."""

    def load(self, folder: Path) -> "Run":
        from uqgan import api

        return api.load(folder, self.device, self.data_root)


def whole_number(_: object, tokens: Sequence[Token]) -> int:
    """Whole number from digits; fractions are refused, not rounded."""
    try:
        return int(tokens[0].value)
    except ValueError:
        raise ValueError(f"{tokens[0].value}: must be a whole number") from None


Whole = Annotated[int, Parameter(converter=whole_number)]
Json = Annotated[bool, Parameter("--json", group=QUIET)]


def check_page(option: str, file: Path | None) -> None:
    """Refuse the name of a page with a wrong ending, or of a folder, before any work is done."""
    if file is None:
        return
    if file.suffix.lower() not in (".html", ".htm"):
        raise UsageError(f"{option} = {file}: must end in .html")
    if file.is_dir():
        raise UsageError(f"{option} = {file}: is a folder (choose another name)")


def show_rows(rows: list[dict[str, Any]], as_json: bool, whole: bool = False) -> None:
    """Print rows as a table or as JSON; `whole`: with a line per row where there is no terminal to fit into."""
    if as_json:
        print_json(rows)
        return
    table = Table(*(Column(title, overflow="fold") for title in rows[0]), box=None, pad_edge=False)
    for row in rows:
        table.add_row(*(escape(str(value)) for value in row.values()))
    out = Console(highlight=False)
    if whole:
        print_whole(out, table)
    else:
        out.print(table)


def print_whole(out: Console, table: Table) -> None:
    """Print a table, with a line per row where there is no terminal to fit into."""
    if not out.is_terminal:
        out.width = max(out.width, out.measure(table, options=out.options.update(width=10_000)).maximum)
    out.print(table)


def print_json(value: Any) -> None:
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False) + "\n")
