"""`lfpo COMMAND`: usage, exit codes and messages. The commands are in `commands.py`."""

import os
import shutil
import signal
import sys
import traceback
from typing import NoReturn

from lfpo.base import environment
from lfpo.base.environment import before_torch, drop_output
from lfpo.cli.commands import COLLECTIVE, COMMANDS, launched_rank
from lfpo.cli.list_recipes import wrapped
from lfpo.config.build import recipe_names
from lfpo.config.errors import LOST, ProcessLost, UserError, nearest
from lfpo.config.version import VERSION

USAGE = """usage: lfpo COMMAND [CONFIG] [--key value ...]

Train
  train CONFIG    reinforcement learning with LFPO or another objective
  sft CONFIG      supervised training with the masked diffusion loss
  dpo CONFIG      preference training on chosen and rejected completions
  compare CONFIG  train several objectives on the same base; write tables
  plan CONFIG     estimate memory, hours and cost; print the command to start
  recipes         list the shipped recipes: model, task, what each needs
  schema COMMAND  print the JSON schema of its settings, for editors
  demo            train the embedded model with LFPO; results before and after

Use a model
  convert         make a diffusion model of a Llama, Qwen2 or Qwen3
  sample          denoise one prompt; --show_steps prints every step
  eval            measure accuracy, steps and forwards (NFE) on a task
  lm-eval         run lm-evaluation-harness, with its own options

Look at a run
  report RUN      rewrite report.html; --text prints it, --figures draws it
  watch RUN       serve the report while the run trains; --text true prints it
                  RUN may be a folder of runs, which are listed and overlaid

Share a model
  export RUN      write the model for transformers or the family's own code
  push RUN REPO   upload it to the hub with card, recipe, metrics and report

Check the machine
  doctor          show versions and devices, and check that lfpo works

CONFIG is a YAML file or a shipped recipe.
{recipes}
--key value sets any key, --objective.beta 0.3 a nested one. --resume continues
a stopped run of train, sft or dpo. `lfpo COMMAND --help` lists its keys."""


def run() -> NoReturn:
    """The `lfpo` command: run it, and end this process."""
    environment.is_command = True
    try:
        code = main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    environment.end_process(code)


def main(arguments: list[str] | None = None) -> int:
    """Run one command and return its exit code.

    0: done. 2: a mistake in the input, reported in one line on standard error. 75: another rank was lost; start again.
    128 + N: signal N ended the command; training has saved a checkpoint.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    before_torch()
    try:
        code = _run(arguments)
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # as after `lfpo recipes | head -1`
        if _is_read():
            raise  # another pipe
        drop_output()
        return 128 + signal.SIGPIPE
    except UserError as error:
        rank = launched_rank()
        # Before the ranks do different things they fail alike, so only rank 0 prints.
        # torch, which takes seconds to load, may not be loaded yet.
        if rank == 0 or getattr(sys.modules.get("lfpo.base.distributed"), "at_work", False):
            print(f"error: {f'process {rank}: ' if rank else ''}{error}", file=sys.stderr)
        return 2
    except ProcessLost as lost:
        if lost.speaks:
            print(f"lost: {lost}", file=sys.stderr)
        return LOST
    except KeyboardInterrupt as stop:
        number = getattr(stop, "number", signal.SIGINT)
        if launched_rank() == 0:
            print(str(stop) or "interrupted", file=sys.stderr)
        return 128 + number  # as a shell reports a process that a signal ended


def _is_read() -> bool:
    """Whether somebody reads standard output, to which an empty line is written."""
    try:
        print(flush=True)
    except BrokenPipeError:
        return False
    return True


def _run(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        width = shutil.get_terminal_size().columns
        on_a_cpu = ", ".join(name for name in recipe_names() if "/" not in name)
        on_gpus = ", ".join(name.rpartition("/")[2] for name in recipe_names() if "/" in name)
        listed = (wrapped(text, width) for text in (f"CPU: {on_a_cpu}", f"GPUs: {on_gpus}"))
        print(USAGE.format(recipes="\n".join(listed)))
        return 0 if arguments else 2
    if arguments[0] == "--version":
        print(f"lfpo {VERSION}")
        return 0
    name, *rest = arguments
    if name not in COMMANDS:
        raise UserError(f"unknown command {name!r}{nearest(name, COMMANDS)}")
    if name not in COLLECTIVE:
        # Only torchrun starts a command once for all ranks. A scheduler sets RANK too, and there each node may run its
        # own command.
        if (rank := launched_rank()) and "TORCHELASTIC_RUN_ID" in os.environ:
            print(f"process {rank}: lfpo {name} is done by process 0 alone", file=sys.stderr)
            return 0
        os.environ.pop("WORLD_SIZE", None)  # neither this process nor those that it starts join a group
    COMMANDS[name](rest)
    return 0
