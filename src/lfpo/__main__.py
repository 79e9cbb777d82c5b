"""`python -m lfpo` is the `lfpo` command."""

from lfpo.cli.command_line import run

run()
