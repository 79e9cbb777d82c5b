"""The command line: `lfpo COMMAND`. Each command is one function; options are the fields of its dataclass."""

from __future__ import annotations

import os
import signal
import sys

from lfpo.base.config import recipe_names
from lfpo.base.errors import LOST, ProcessLost, UserError, nearest
from lfpo.base.version import VERSION
from lfpo.cli.commands import COMMANDS

USAGE = """usage: lfpo COMMAND [CONFIG] [--key value ...]

  train CONFIG    reinforcement learning (LFPO or another objective)
  sft CONFIG      supervised training by the masked diffusion loss
  sample          denoise one prompt; --show-steps true shows how
  eval            accuracy, steps and forwards of a model on a task
  lm-eval         the same model in lm-evaluation-harness, whose options it takes
  compare CONFIG  objectives on the same base, rollouts and sampler; tables and figures
  report RUN      (re)write a run's report.html; --text prints it, --figures writes SVG and PDF
  watch RUN       serve a run's report, live while it trains
  plan CONFIG     memory and time of a training run before it starts
  bench NAME      measure speed and memory; NAME: rollout, update, sandbox
  demo            train the embedded model by LFPO and show before and after
  doctor          what this machine has, and whether lfpo works on it

CONFIG is a YAML file or the name of a recipe that comes with lfpo: {recipes}.
Any key can be given or changed as --key value (nested: --objective.beta 0.3).
`lfpo COMMAND --help` lists a command's keys. --resume continues a run."""


def main(arguments: list[str] | None = None) -> int:
    """Run one command. Exit code 0: done; 2: a mistake in the input, told in one line on standard error; 128 + N:
    signal N ended it, training with a checkpoint; 75: another of several processes was lost, start again."""
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        return _run(arguments)
    except UserError as error:
        rank = int(os.environ.get("RANK", "0"))
        # Of several processes the first speaks for all, until they have rollouts of their own to stumble over.
        if rank == 0 or _at_work():
            print(f"error: {f'process {rank}: ' if rank else ''}{error}", file=sys.stderr)
        return 2
    except ProcessLost as lost:
        if lost.speaks:
            print(f"lost: {lost}", file=sys.stderr)
        return LOST
    except KeyboardInterrupt as stop:
        number = getattr(stop, "number", signal.SIGINT)
        if os.environ.get("RANK", "0") == "0":
            print(str(stop) or "interrupted", file=sys.stderr)
        return 128 + number  # as a shell reports a process that a signal ended


def _at_work() -> bool:
    """Whether this is one of several processes that are already at work (without importing torch to find out)."""
    module = sys.modules.get("lfpo.base.distributed")
    return module is not None and module.at_work


def _run(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(USAGE.format(recipes=", ".join(recipe_names())))
        return 0 if arguments else 2
    if arguments[0] == "--version":
        print(f"lfpo {VERSION}")
        return 0
    name, *rest = arguments
    if name not in COMMANDS:
        raise UserError(f"unknown command {name!r}{nearest(name, COMMANDS)}")
    COMMANDS[name](rest)
    return 0
