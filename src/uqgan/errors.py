"""Errors that users cause or can fix, each with a one-sentence message; numbers with their noun for messages."""


class UsageError(ValueError):
    """A wrong input, described as *what = value: rule (nearest fix)*. The command line exits with status 2."""

    status = 2


class RunFailed(RuntimeError):
    """A command could not finish: diverged, out of memory, disk full. The command line exits with status 1."""

    status = 1


class OutOfTime(RunFailed):
    """A command reached its time limit before its end. The command line exits with status 3."""

    status = 3


class Interrupted(RunFailed):
    """Ended by Ctrl-C or SIGTERM. The command line exits with 128 plus the number of the signal, as shells do."""

    def __init__(self, sentence: str, signal_number: int = 2) -> None:
        super().__init__(sentence)
        self.status = 128 + signal_number


def first_line(error: Exception) -> str:
    """First line of an error's message."""
    return str(error).strip().partition("\n")[0]


def count(n: int, thing: str) -> str:
    """Number with its noun: `1 picture`, `2,000 pictures`, `3 classes`."""
    ending = "" if n == 1 else "es" if thing.endswith("s") else "s"
    return f"{n:,} {thing}{ending}"
