"""What a training command checks before torch is loaded, which takes seconds: files, tasks, reward functions, trackers,
the folder. Keys and values are checked by the configuration itself."""

import os
from pathlib import Path
from typing import Any

from lfpo.config.files import user_path
from lfpo.config.models import check_model_folder, check_model_name
from lfpo.config.plugins import resolve
from lfpo.config.train import LFPOConfig
from lfpo.prompts.examples import demonstration, preference, read_examples
from lfpo.prompts.problems import check_problems
from lfpo.prompts.tasks import get_task
from lfpo.runs import trackers
from lfpo.runs.directory import check_folder


def check_run(args: Any, kind: str, *, resume: bool = False) -> None:
    """Raise the UserError that a command would raise later for its input files, names and folder.

    kind: "train", "sft" or "dpo". args: its configuration; a model of None is a fresh one. Under torchrun the folder is
    not checked here: this may be a restart, which resumes without `resume`. Rank 0 checks it when it opens the run.
    """
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        check_folder(Path(args.output_dir), args, resume=resume, kind=kind)
    trackers.check_installed(args.report_to)
    if args.model is not None:
        check_model_name(args.model)
        if (folder := user_path(args.model)).is_dir():
            check_model_folder(folder)
    if kind == "train":
        _check_prompts(args)
        return
    for task in args.tasks:
        get_task(task)
    if args.data_file is not None:  # a data set of the hub is loaded with the model
        read_examples(args, preference if kind == "dpo" else demonstration)


def _check_prompts(args: LFPOConfig) -> None:
    """Check the prompts and reward functions of `lfpo train`."""
    check_problems(args, environment=args.environment)
    environment_class(args.environment)


def environment_class(path: str | None) -> Any:
    """The class of environments at a dotted path, or what else makes them."""
    return None if path is None else resolve(path, {}, kind="environment")
