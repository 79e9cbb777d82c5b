"""What a training command checks before torch and a model are loaded: the folder, trackers, examples. Keys and values
are checked by the configuration itself."""

import os
from pathlib import Path
from typing import Any

from lfpo.prompts.examples import demonstration, preference, read_examples
from lfpo.prompts.files import files_of
from lfpo.prompts.tasks import get_task
from lfpo.runs import trackers
from lfpo.runs.directory import check_folder


def check_run(args: Any, kind: str, *, resume: bool = False) -> None:
    """Raise the UserError that a command would raise once its model is loaded.

    kind: "train", "sft" or "dpo". args: its configuration; a model of None is a fresh one. Under torchrun the folder is
    not checked here: this may be a restart, which resumes without `resume`. Rank 0 checks it when it opens the run.
    """
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        check_folder(Path(args.output_dir), args, resume=resume, kind=kind)
    trackers.check_installed(args.report_to)
    if kind == "train":  # its trainer reads the prompts before the model
        for name in filter(None, (args.data_file, args.eval_file)):
            files_of(name)
        return
    for task in args.tasks:
        get_task(task)
    if args.data_file is not None:  # a data set of the hub is loaded with the model
        read_examples(args, preference if kind == "dpo" else demonstration)
