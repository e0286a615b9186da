"""The command `uqgan`, also as `python -m uqgan`."""

import os
import sys


def main() -> None:
    """Run the command line; Ctrl-C while it is still imported ends the program as it does later."""
    # Threads that wait for work actively slow down a computer that is busy otherwise several times.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        from uqgan.cli import main as run

        run()
    except KeyboardInterrupt:
        sys.stderr.write("uqgan: stopped by hand\n")
        raise SystemExit(130) from None


if __name__ == "__main__":
    main()
