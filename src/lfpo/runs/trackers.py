"""Sends metrics to TensorBoard, Weights & Biases or trackio (`report_to`).

The user's own program may log to W&B or trackio too. So a run that is open is used, under a step metric of its own, and
only what lfpo opened is finished.
"""

import importlib
import importlib.util
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from lfpo.config.errors import UserError, last_line
from lfpo.config.files import read_json
from lfpo.config.json import Json
from lfpo.core.attempts import users_code
from lfpo.rewards.answers import prompt_text
from lfpo.runs.directory import Run

STEP = "lfpo/iteration"  # W&B's x axis of all that lfpo logs
TEXT_ROWS = 32  # most rollouts of an iteration in TensorBoard
# Name (lfpo.config.training.Tracker) -> packages, any one of which is enough.
TRACKERS = {"tensorboard": ["tensorboard", "tensorboardX"], "wandb": ["wandb"], "trackio": ["trackio"]}


def check_installed(names: list[str]) -> None:
    """Raise UserError for a tracker that is not installed."""
    for name in names:
        if not any(importlib.util.find_spec(package) for package in TRACKERS[name]):
            raise UserError(
                f"report_to: {name} is not installed; pip install {TRACKERS[name][0]}, or leave it out of report_to"
            )


@contextmanager
def reporting(
    names: list[str], run: Run, config: Mapping[str, object], *, done: int, note: Callable[[str], None] = print
) -> Iterator[None]:
    """While open, send every number that `run` logs, under its step, and its rollouts as tables, to trackers.

    names: of the trackers. The project is "lfpo", and the run has its folder's name, unless the tracker's environment
    variables say otherwise (WANDB_PROJECT, WANDB_NAME, TRACKIO_PROJECT, ...). TensorBoard writes to `tensorboard/` in
    that folder.
    config: shown beside the curves. done: number of finished steps. Of what a crashed run logged after them TensorBoard
        keeps nothing; W&B and trackio keep it beside what comes again.
    note: shows a line to the user: a tracker that fails later is left out from then on.
    Raises UserError where a tracker is not installed, or cannot start.
    """
    trackers: Json = {}

    def attempt(name: str, work: Callable[[], object]) -> None:
        try:
            work()
        except Exception as error:  # another library's, most often the network's
            if trackers.pop(name, None) is not None:  # None: it had failed before, and now cannot be closed
                why = last_line(error)
                note(f"report_to: {name} failed, so it gets nothing more: {why}; {run.metrics_file} goes on")

    def send(file: str, rows: list[Json]) -> None:
        for name, tracker in list(trackers.items()):
            if file == run.metrics_file.name:
                numbers = {k: v for k, v in rows[0].items() if isinstance(v, int | float) and k != "step"}
                attempt(name, partial(tracker.log, numbers, step=rows[0]["step"]))
            elif file.startswith("rollouts/"):
                attempt(name, partial(_log_table, tracker, rows, int(Path(file).stem.removeprefix("step-"))))

    with ExitStack() as stack:
        for name in [] if run.silent else names:
            with users_code(f"report_to: the start of {name}"):  # no key, no network
                trackers[name] = _start(name, run, config, done)
            stack.callback(attempt, name, trackers[name].finish)
        run.listeners.append(send)
        stack.callback(run.listeners.remove, send)
        yield


def _log_table(tracker: Any, rows: list[Json], step: int) -> None:
    """Log an iteration's rollouts as the table `completions`; TensorBoard, which has none, gets TEXT_ROWS as text."""
    own = ["step", "prompt", "completion", "reward", "r"]
    # A function may have the name of a column: W&B and pandas would mix them up.
    rewards = [f"rewards/{name}" if name in own else name for name in (rows[0]["rewards"] if rows else [])]
    columns = [*own[:3], *rewards, *own[3:]] if rows else []
    values = [
        [step, prompt_text(r["prompt"]), r["completion"], *r["rewards"].values(), r["reward"], r["r"]] for r in rows
    ]
    if hasattr(tracker, "log_table"):
        tracker.log_table(columns, values, step)
    else:
        lines = [columns, ["---"] * len(columns), *values[:TEXT_ROWS]]
        cells = ([str(cell).replace("|", "\\|").replace("\n", "<br>") for cell in line] for line in lines)
        text = "\n".join(f"| {' | '.join(line)} |" for line in cells)
        tracker.writer.add_text("completions", text, step)


@dataclass
class OpenRun:
    """A run of W&B or trackio. library: the tracker's module. run: its run. opened: whether lfpo has opened it."""

    library: Any
    run: Any
    opened: bool

    def log(self, values: Mapping[str, Any], step: int) -> None:
        if self.library.__name__ == "trackio":
            self.run.log({**values}, step=step)
            return
        # W&B drops what is logged under a step below one that the user's own program has reached.
        for name in values:
            self.run.define_metric(name, step_metric=STEP)
        self.run.log({**values, STEP: step})

    def log_table(self, columns: list[str], values: list[list[Any]], step: int) -> None:
        frame = importlib.import_module("pandas").DataFrame(values, columns=columns)
        self.log({"completions": self.library.Table(dataframe=frame)}, step)

    def finish(self) -> None:
        if self.opened:
            self.run.finish()


def _start(name: str, run: Run, config: Mapping[str, object], done: int) -> Any:
    check_installed([name])
    # The same id after a resume, so that the curves go on.
    number, title = read_json(run.dir / "run.json")["id"], run.dir.resolve().name
    if name == "tensorboard":
        from accelerate import PartialState, tracking

        PartialState()  # accelerate's logger, which its trackers use, raises without it
        board: Any = tracking.TensorBoardTracker("tensorboard", run.dir, purge_step=done + 1 if done else 0)
        board.start()
        board.writer.add_text("config", "\n".join(f"    {key}: {value}" for key, value in config.items()), done)
        return board
    library = importlib.import_module(name)
    if name == "wandb":
        own, settings = library.run, {"name": title, "id": number, "dir": str(run.dir)}
        variables = {"name": "WANDB_NAME", "id": "WANDB_RUN_ID", "dir": "WANDB_DIR"}
    else:
        own = importlib.import_module("trackio.context_vars").current_run.get()
        settings, variables = {"name": f"{title}-{number}", "embed": False}, {}
    settings = {key: value for key, value in settings.items() if variables.get(key, "") not in os.environ}
    project = os.environ.get(f"{name.upper()}_PROJECT", "lfpo")
    opened = own or library.init(project=project, resume="allow", **settings)
    values = {**config} if own is None else {"lfpo": {**config}}  # the user's program has its own keys
    if name == "wandb":
        opened.config.update(values, allow_val_change=True)
    else:  # its configuration is a dict
        opened.config.update(values)
    return OpenRun(library, opened, opened=own is None)
