"""The command line: `lfpo COMMAND`, one function a command."""

from lfpo.cli.command_line import main

__all__ = ["main"]
