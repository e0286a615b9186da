"""`python -m uqgan` is the command `uqgan`."""

from uqgan.cli import main

main()
