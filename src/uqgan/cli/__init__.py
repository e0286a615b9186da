"""The commands: they parse options, report, and call other modules."""

import os
import signal
import sys
import traceback
from typing import NoReturn

import cyclopts
from pydantic import ValidationError

from uqgan.cli import data, decide, detect, elsewhere, figure, grid, lists, predict, reproduce, study, sweep, work
from uqgan.cli.app import app
from uqgan.cli.help import show_help_of_task
from uqgan.config import explain
from uqgan.errors import Interrupted, RunFailed, UsageError

__all__ = [
    "app",
    "data",
    "decide",
    "detect",
    "elsewhere",
    "figure",
    "grid",
    "lists",
    "main",
    "predict",
    "reproduce",
    "study",
    "sweep",
    "work",
]


def fail(sentence: str, status: int) -> NoReturn:
    sys.stderr.write(f"uqgan: {sentence}\n")
    raise SystemExit(status)


def nowhere() -> int:
    return os.open(os.devnull, os.O_WRONLY)


def give_up_output() -> None:
    """Discard output that could not be written, so that Python does not write it again on exit."""
    os.dup2(nowhere(), sys.stdout.fileno())


def terminate(number: int, _: object) -> NoReturn:
    """Handle SIGTERM like Ctrl-C, without incomplete files."""
    raise KeyboardInterrupt(number)


def stopped(error: KeyboardInterrupt) -> NoReturn:
    """Report that a command was stopped; a second Ctrl-C ends the program immediately."""
    number = signal.SIGTERM if error.args == (signal.SIGTERM,) else signal.SIGINT
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    fail("stopped by hand" if number == signal.SIGINT else "stopped by SIGTERM", 128 + number)


def misspelt(error: cyclopts.CycloptsError) -> str:
    """Sentence about what is wrong with the arguments of a command."""
    cause = error.__cause__ or error.__context__
    if isinstance(cause, ValidationError):
        return "; ".join(explain(cause))
    if isinstance(error, cyclopts.UnusedCliTokensError):
        return f"{' '.join(error.unused_tokens or ())}: one word too many (uqgan COMMAND --help says which it takes)"
    return " ".join(str(error).split())


def main() -> None:
    """Run a command; errors that users can fix are one sentence on standard error."""
    verbose = "-v" in sys.argv or "--verbose" in sys.argv
    # Streams that were closed at the start are None.
    sys.stdout, sys.stderr = (stream or os.fdopen(nowhere(), "w") for stream in (sys.stdout, sys.stderr))
    before = signal.signal(signal.SIGTERM, terminate)
    try:
        if not show_help_of_task(sys.argv[1:]):
            app(sys.argv[1:], print_error=False, exit_on_error=False)
        sys.stdout.flush()
    except cyclopts.CycloptsError as error:
        fail(misspelt(error), 2)
    except ValidationError as error:
        fail("; ".join(explain(error)), 2)
    except (UsageError, RunFailed) as error:
        if verbose and not isinstance(error, Interrupted):
            traceback.print_exception(error)
        fail(str(error), error.status)
    except KeyboardInterrupt as error:
        stopped(error)
    except BrokenPipeError:
        give_up_output()
    except OSError as error:
        if verbose:
            raise
        if error.filename is None:
            give_up_output()
        fail(f"{error.filename or 'output'}: {(error.strerror or str(error)).lower()}", 1)
    finally:
        signal.signal(signal.SIGTERM, before)
