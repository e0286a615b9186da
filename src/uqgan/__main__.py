"""The command `uqgan`, also as `python -m uqgan`."""

import sys


def main() -> None:
    """Run the command line; Ctrl-C while it is still imported ends the program as it does later."""
    try:
        from uqgan.cli import main as run

        run()
    except KeyboardInterrupt:
        sys.stderr.write("uqgan: stopped by hand\n")
        raise SystemExit(130) from None


if __name__ == "__main__":
    main()
