"""What went wrong, in one sentence: the two kinds of error that a person caused or can mend."""


class UsageError(ValueError):
    """A wrong input, said as *what = value: rule (nearest fix)*. The command line exits with status 2."""


class RunFailed(RuntimeError):
    """The work could not be finished: diverged, out of memory, disk full. The command line exits with status 1."""
