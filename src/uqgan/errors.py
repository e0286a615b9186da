"""What went wrong, in one sentence: two kinds of error that a person caused or can mend; counted things."""


class UsageError(ValueError):
    """A wrong input, said as *what = value: rule (nearest fix)*. The command line exits with status 2."""

    status = 2


class RunFailed(RuntimeError):
    """The work could not be finished: diverged, out of memory, disk full. The command line exits with status 1."""

    status = 1


class OutOfTime(RunFailed):
    """Stopped by a time limit with work left. The command line exits with status 3."""

    status = 3


class Interrupted(RunFailed):
    """Ended by Ctrl-C, or by SIGTERM. The command line exits with 128 and the signal's number, as a shell has it."""

    def __init__(self, sentence: str, signal_number: int = 2) -> None:
        super().__init__(sentence)
        self.status = 128 + signal_number


def first_line(error: Exception) -> str:
    """First line of an error's message."""
    return str(error).strip().partition("\n")[0]


def count(n: int, thing: str) -> str:
    """Number and thing in words: `1 picture`, `2,000 pictures`, `3 classes`."""
    ending = "" if n == 1 else "es" if thing.endswith("s") else "s"
    return f"{n:,} {thing}{ending}"
