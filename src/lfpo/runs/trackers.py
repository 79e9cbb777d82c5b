"""Sends metrics to TensorBoard, Weights & Biases or trackio (`report_to`), through accelerate's trackers."""

import importlib
import importlib.util
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from lfpo.config.errors import UserError, last_line
from lfpo.config.files import read_json
from lfpo.config.json import Json
from lfpo.rewards.answers import prompt_text
from lfpo.runs.directory import Run

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

    names: of the trackers. The project is WANDB_PROJECT or TRACKIO_PROJECT ("lfpo" if unset), and the run has its
    folder's name. TensorBoard writes to `tensorboard/` in that folder. Trackers read their other environment variables
    (WANDB_MODE, ...).
    config: shown beside the curves. done: number of finished steps. Of what a crashed run logged after them TensorBoard
        keeps nothing; W&B keeps it and takes nothing that comes again; trackio keeps both.
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
            try:
                tracker = _start(name, run, config, done)
            except UserError:
                raise
            except Exception as error:  # another library's: no key, no network
                raise UserError(
                    f"report_to: {name} could not start ({last_line(error)}); log in, or leave it out of report_to"
                ) from error
            trackers[name] = tracker
            stack.callback(attempt, name, tracker.finish)
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
    if tracker.name == "wandb":
        tracker.log_table("completions", columns=columns, data=values, step=step)
    elif tracker.name == "trackio":
        frame = importlib.import_module("pandas").DataFrame(values, columns=columns)
        tracker.log({"completions": importlib.import_module("trackio").Table(dataframe=frame)}, step=step)
    else:
        lines = [columns, ["---"] * len(columns), *values[:TEXT_ROWS]]
        cells = ([str(cell).replace("|", "\\|").replace("\n", "<br>") for cell in line] for line in lines)
        text = "\n".join(f"| {' | '.join(line)} |" for line in cells)
        tracker.writer.add_text("completions", text, step)


def _start(name: str, run: Run, config: Mapping[str, object], done: int) -> Any:
    check_installed([name])
    from accelerate import PartialState, tracking

    PartialState()  # accelerate's logger, which its trackers use, raises without it
    number, title = read_json(run.dir / "run.json")["id"], run.dir.resolve().name
    project = os.environ.get(f"{name.upper()}_PROJECT", "lfpo")
    tracker: Any
    if name == "tensorboard":
        tracker = tracking.TensorBoardTracker("tensorboard", run.dir, purge_step=done + 1 if done else 0)
    elif name == "wandb":
        tracker = tracking.WandBTracker(project, name=title, id=number, resume="allow", dir=run.dir)
    else:
        tracker = tracking.TrackioTracker(project, name=f"{title}-{number}", resume="allow", embed=False)
    tracker.start()
    if name == "tensorboard":
        tracker.writer.add_text("config", "\n".join(f"    {key}: {value}" for key, value in config.items()), done)
    else:
        tracker.store_init_configuration(dict(config))
    return tracker
