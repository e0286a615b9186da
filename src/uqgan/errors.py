"""What went wrong, in one sentence: two kinds of error that a person caused or can mend; counted things."""


class UsageError(ValueError):
    """A wrong input, said as *what = value: rule (nearest fix)*. The command line exits with status 2."""


class RunFailed(RuntimeError):
    """The work could not be finished: diverged, out of memory, disk full. The command line exits with status 1."""


def count(n: int, thing: str) -> str:
    """Number and thing in words: `1 picture`, `2,000 pictures`, `3 classes`."""
    ending = "" if n == 1 else "es" if thing.endswith("s") else "s"
    return f"{n:,} {thing}{ending}"
