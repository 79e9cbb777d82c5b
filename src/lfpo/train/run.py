"""Running a run: open or resume, log, evaluate, save, stop. `lfpo train`, `sft` and `dpo` all go through it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Protocol

import torch

from lfpo.base import distributed
from lfpo.base.config import to_dict
from lfpo.base.errors import UserError
from lfpo.base.progress import Progress
from lfpo.models import MaskedDiffusionLM
from lfpo.report import write_report
from lfpo.runs.card import model_card
from lfpo.runs.context import CannotGoOn, Context
from lfpo.runs.directory import Run, open_run, opened_by_this_launcher, removed_if_unused
from lfpo.runs.display import Display
from lfpo.runs.health import Health
from lfpo.runs.stopping import Stopped, StopRequests
from lfpo.runs.trackers import reporting
from lfpo.train.checkpoint import (
    Part,
    export_model,
    latest_checkpoint,
    load_optimizer,
    load_state,
    load_weights,
    save_checkpoint,
)


class Trainer(Protocol):
    """What a run runs.

    args: its configuration; output_dir, save_steps, save_total_limit, report_to, rank_timeout and progress_timeout are
        read here. kind: "train", "sft" or "dpo".
    model, reference, tokenizer, optimizer: what checkpoints hold; reference is None where there is none.
    parts: what else checkpoints hold, by the name of its folder.
    state: JSON data that checkpoints hold too (counters); restored in place.
    about: what to show before it starts.
    """

    args: Any
    kind: str
    model: MaskedDiffusionLM
    tokenizer: Any
    optimizer: torch.optim.Optimizer
    state: dict[str, Any]
    about: str

    @property
    def reference(self) -> MaskedDiffusionLM | None: ...

    @property
    def parts(self) -> Mapping[str, Part]: ...

    @property
    def total_steps(self) -> int: ...

    @property
    def stop_on(self) -> Collection[str]:
        """Rules of lfpo.runs.health that end the run when they begin to hold."""

    def iterate(self, step: int, context: Context) -> dict[str, Any]:
        """One iteration, the `step`-th counted from 0; returns its metrics, {} when there is nothing to log yet."""

    def evaluates_after(self, step: int) -> bool:
        """Whether an evaluation is due after `step` iterations (0: before the first)."""

    def evaluate(self, step: int, context: Context) -> dict[str, float]:
        """Results on held-out data after `step` iterations, as metrics."""

    def export(self) -> MaskedDiffusionLM:
        """The trained model as it is to be exported."""


class Shows(Protocol):
    """Where a run shows its progress: lines of text, and metrics as they are logged. Entered while the run trains."""

    def note(self, message: str) -> None: ...

    def update(self, metrics: dict[str, Any]) -> None: ...

    def __enter__(self) -> Any: ...

    def __exit__(self, *_: object) -> None: ...


class Silent:
    """What ranks other than 0 show: nothing."""

    def note(self, message: str) -> None: ...

    def update(self, metrics: dict[str, Any]) -> None: ...

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


class TrainingRun:
    """The run of one trainer: its folder, log, checkpoints and end.

    context: what it gives to the trainer. folder, stop, progress, note: those of the context.
    """

    def __init__(self, trainer: Trainer, *, resume: bool, display: Shows | None):
        self.trainer, self.args = trainer, trainer.args
        progress = Progress()
        path = Path(self.args.output_dir)
        # Rank 0 decides for all: a launcher on another machine may have started the others.
        restarted = distributed.gather(distributed.launched() and opened_by_this_launcher(path))[0]
        self.resume = resume or restarted
        if distributed.rank() == 0:
            folder = open_run(path, self.args, resume=self.resume, kind=trainer.kind)
            self.display: Shows = display or Display(
                trainer.total_steps, progress=progress, evaluates_after=trainer.evaluates_after
            )
        else:
            folder = Run(path.expanduser(), silent=True)
            self.display = Silent()
        distributed.barrier()
        self.context = Context(folder, StopRequests(), progress, self.display.note)
        self.folder, self.stop, self.progress, self.note = folder, self.context.stop, progress, self.display.note
        self.health = Health()
        self.done = self.saved = 0  # iterations in the weights, and in the newest checkpoint
        # Metrics of a finished iteration that were not logged yet, because its evaluation was stopped.
        self.unlogged: dict[str, Any] | None = None
        self.note(trainer.about)

    def train(self) -> Path:
        """Run the trainer from where the run stands to its last step; returns the folder of the exported model.

        SIGTERM or SIGINT leaves a checkpoint of all finished iterations and raises Stopped, a KeyboardInterrupt.
        """
        trainer, total = self.trainer, self.trainer.total_steps
        with removed_if_unused(self.folder):
            self.restore()
            distributed.begin_work()
            tracked = reporting(self.args.report_to, self.folder, to_dict(self.args), done=self.done)
            with self.display, tracked, self.stop:
                try:
                    if self.done == 0 and trainer.evaluates_after(0):
                        with self.stop.at_once():
                            before = trainer.evaluate(0, self.context)
                        self.log({"step": 0, **before})
                    elif self.unlogged is not None:
                        self.finish(self.unlogged)
                    for step in range(self.done, total):
                        metrics = trainer.iterate(step, self.context)
                        self.done = step + 1
                        self.finish(metrics)
                        self.stop.check()
                except Stopped as stopped:
                    raise Stopped(stopped.number, f"{stopped}: {self.keep()}") from None
                except CannotGoOn as error:
                    raise UserError(f"{error}; {self.keep()}") from None
            self.progress.end()
            return export_model(self.folder.dir, trainer.export(), trainer.tokenizer, card=self._card())

    def finish(self, metrics: dict[str, Any]) -> None:
        """What follows an iteration: evaluation, log, checkpoint."""
        self.unlogged = metrics
        if self.trainer.evaluates_after(self.done):
            with self.stop.at_once():
                metrics = {"step": self.done, **metrics, **self.trainer.evaluate(self.done, self.context)}
        self.log(metrics)
        self.unlogged = None
        said = self.health.update(metrics) if metrics else {}
        for rule, text in said.items():
            self.folder.add_note(self.done, rule, text)
            self.note(f"note: {text}")
        ends = [rule for rule in said if rule in self.trainer.stop_on]
        if self.done % self.args.save_steps == 0 or self.done == self.trainer.total_steps:
            self.save()
        if ends:
            raise CannotGoOn(f"stopped after iteration {self.done} by {ends[0]}: {said[ends[0]]}")

    def log(self, metrics: dict[str, Any]) -> None:
        """Write one line of metrics and show it; after an evaluation the report is written too."""
        if not metrics:
            return
        self.folder.log(metrics)
        self.display.update(metrics)
        if "time/eval" in metrics and distributed.rank() == 0:
            try:
                write_report(self.folder)
            except UserError as error:
                self.note(f"no report this time: {error}")  # training goes on without one

    def save(self) -> None:
        """Write a checkpoint of the iterations done."""
        self.progress.begin("checkpoint")
        trainer = self.trainer
        save_checkpoint(
            self.folder.dir,
            self.done,
            model=trainer.model,
            reference=trainer.reference,
            tokenizer=trainer.tokenizer,
            optimizer=trainer.optimizer,
            parts=trainer.parts,
            state={**trainer.state, "unlogged": self.unlogged},
            card=self._card(),
            keep=self.args.save_total_limit,
        )
        self.saved = self.done
        self.progress.end()

    def keep(self) -> str:
        """Save what was learned since the last checkpoint; returns a sentence that says how to go on."""
        if self.done == 0:
            return f"no iteration was finished; --resume starts {self.folder.dir} from the beginning"
        if self.saved < self.done:
            self.save()
        return f"{self.folder.dir}/checkpoints/step-{self.done} holds everything learned; --resume continues"

    def restore(self) -> None:
        """On a resume, load the newest intact checkpoint and drop what was logged after it."""
        trainer = self.trainer
        checkpoint = self._newest() if self.resume else None
        if checkpoint is not None:
            load_weights(trainer.model, checkpoint / "model")
            if trainer.reference is not None:
                load_weights(trainer.reference, checkpoint / "reference")
            load_optimizer(trainer.optimizer, checkpoint)
            for name, part in trainer.parts.items():
                part.load(checkpoint / name)
            state = load_state(checkpoint)
            trainer.state.update({name: state.get(name, value) for name, value in trainer.state.items()})
            self.done = self.saved = self.progress.resumed_at = state["step"]
            self.unlogged = state.get("unlogged")
            self.note(f"resumed from {checkpoint}")
        if self.resume:
            self.folder.truncate_metrics(self.done if checkpoint is not None else -1)
            before = self.folder.read_metrics() if distributed.rank() == 0 else []
            self.health = Health(distributed.gather(before)[0])

    def _newest(self) -> Path | None:
        """The newest intact checkpoint. Rank 0 alone verifies the files."""
        found = latest_checkpoint(self.folder.dir, self.note) if distributed.rank() == 0 else None
        checkpoint = distributed.gather(found)[0]
        if checkpoint is None:
            self.note(f"no checkpoint in {self.folder.dir} yet; starting from the beginning")
        return checkpoint

    def _card(self) -> str:
        return model_card(self.folder, to_dict(self.args), self.trainer.kind)


def run_trainer(trainer: Trainer, *, resume: bool = False, display: Shows | None = None) -> Path:
    """Open or resume the run of `trainer.args.output_dir` and train to its end; returns the exported model's folder.

    A rank that is lost ends the others (see lfpo.base.distributed.watched).
    """
    with distributed.watched(trainer.args.rank_timeout, trainer.args.progress_timeout):
        return TrainingRun(trainer, resume=resume, display=display).train()
