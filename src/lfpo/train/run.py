"""Running a run: open or resume, log, evaluate, save, stop. `lfpo train`, `sft` and `dpo` all go through it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

import torch

from lfpo.base import distributed
from lfpo.base.environment import use_threads
from lfpo.base.progress import Progress
from lfpo.config.build import to_dict
from lfpo.config.errors import UserError, last_line
from lfpo.config.files import read_json
from lfpo.models import MaskedDiffusionLM
from lfpo.report import write_report
from lfpo.runs.card import model_card
from lfpo.runs.context import CannotGoOn, Context, Stopped, StopRequests
from lfpo.runs.directory import Run, open_run, opened_by_this_launcher, removed_if_unused
from lfpo.runs.display import Display
from lfpo.runs.health import Health
from lfpo.runs.trackers import reporting
from lfpo.train.checkpoint import Part, export_model, latest_checkpoint, load_optimizer, load_weights, save_checkpoint


class Trainer(Protocol):
    """What a run runs: `lfpo train`, `sft` and `dpo` each have one.

    args: its configuration; output_dir, save_steps, save_total_limit, report_to, rank_timeout and progress_timeout are
        read here. kind: "train", "sft" or "dpo". total_steps: iterations.
    model, reference, tokenizer, optimizer: what checkpoints hold; reference is None where there is none.
    parts: what else checkpoints hold, by the name of its folder.
    state: JSON data that checkpoints hold too (counters); restored in place.
    stop_on: rules of lfpo.runs.health that end the run when they begin to hold.
    callbacks: see Callbacks. epoch_steps: iterations of an epoch, 0 where there are no epochs.
    about: what to show before it starts.
    """

    args: Any
    kind: str
    total_steps: int
    model: MaskedDiffusionLM
    reference: MaskedDiffusionLM | None = None
    tokenizer: Any
    optimizer: torch.optim.Optimizer
    parts: Mapping[str, Part] = MappingProxyType({})
    state: dict[str, Any]
    stop_on: Collection[str] = ()
    callbacks: Sequence[Any] = ()
    epoch_steps: float = 0.0
    about: str

    def iterate(self, step: int, context: Context) -> dict[str, Any]:
        """One iteration, the `step`-th counted from 0; returns its metrics, {} when there is nothing to log yet."""

    def evaluates_after(self, step: int) -> bool:
        """Whether an evaluation is due after `step` iterations (0: before the first)."""
        return False

    def evaluate(self, step: int, context: Context) -> dict[str, float]:
        """Results on held-out data after `step` iterations, as metrics."""
        return {}

    def export(self) -> MaskedDiffusionLM:
        """The trained model as it is to be exported."""
        return self.model


class Lines:
    """A display that reports one line a logged step. steps/s are those since the line before."""

    def __init__(self, total: int, report: Callable[[str], None]):
        self.total, self.note = total, report
        self.last: tuple[int, float] | None = None

    def __enter__(self) -> Lines:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def update(self, metrics: dict[str, Any]) -> None:
        step, now = metrics["step"], time.perf_counter()
        rate = f"  {(step - self.last[0]) / (now - self.last[1]):.2f} steps/s" if self.last is not None else ""
        self.last = step, now
        shown = {"loss": metrics.get("loss"), "held-out preference accuracy": metrics.get("eval/preference_accuracy")}
        text = "".join(f"  {name} {value:.4f}" for name, value in shown.items() if value is not None)
        self.note(f"step {step}/{self.total}{text}{rate}")


class Callbacks:
    """Calls the trainer's callbacks, in their order, on every rank: objects with methods of transformers'
    TrainerCallback (on_train_begin, on_step_end, on_evaluate, on_log, on_save, on_train_end).

    A method is called as by transformers' Trainer: f(args, state, control, **kwargs). args is the run's configuration.
    state is a transformers.TrainerState whose steps are iterations; epoch is None where prompts are generated. kwargs
    are model, processing_class (the tokenizer) and optimizer, with `logs` in on_log and `metrics` in on_evaluate.
    After each iteration should_evaluate, should_save and should_training_stop of `control` are heeded, where any rank
    has set them.
    """

    def __init__(self, trainer: Trainer):
        self.trainer = trainer
        self.callbacks = [callback() if isinstance(callback, type) else callback for callback in trainer.callbacks]
        if self.callbacks:
            from transformers import TrainerControl, TrainerState

            first = distributed.rank() == 0
            self.control = TrainerControl()
            self.state = TrainerState(
                max_steps=trainer.total_steps, is_local_process_zero=first, is_world_process_zero=first
            )

    def restore(self, step: int, history: Sequence[dict[str, Any]]) -> None:
        """Begin after `step` iterations, with the metrics that were logged."""
        if self.callbacks:
            self.state.log_history = [*history]
            self._at(step)

    def call(self, event: str, step: int, **kwargs: Any) -> None:
        """Call the event's methods after `step` iterations. Raises CannotGoOn where one raises."""
        if not self.callbacks:
            return
        self._at(step)
        trainer = self.trainer
        given = {"model": trainer.model, "processing_class": trainer.tokenizer, "optimizer": trainer.optimizer}
        if "logs" in kwargs:
            self.state.log_history.append(kwargs["logs"])

        def call_all() -> None:
            for callback in self.callbacks:
                try:
                    if method := getattr(callback, event, None):
                        method(trainer.args, self.state, self.control, **given, **kwargs)
                except Exception as error:  # user code may raise anything
                    name = f"{type(callback).__name__}.{event}"
                    raise UserError(f"callback {name} failed after iteration {step}: {last_line(error)}") from error

        try:
            distributed.together(call_all)  # all ranks stop where one rank's callback fails
        except UserError as error:
            raise CannotGoOn(str(error)) from error

    def asks(self, what: str) -> bool:
        """Whether a callback of any rank has set this flag of `control`; only should_training_stop stays set. A
        collective where there are callbacks."""
        if not self.callbacks:
            return False
        asked = any(distributed.gather(getattr(self.control, what)))
        if what != "should_training_stop":
            setattr(self.control, what, False)
        return asked

    def _at(self, step: int) -> None:
        self.state.global_step = step
        self.state.epoch = step / self.trainer.epoch_steps if self.trainer.epoch_steps else None


class TrainingRun:
    """The run of one trainer: its folder, log, checkpoints and end. context: what it gives to the trainer."""

    def __init__(self, trainer: Trainer, *, resume: bool, display: Display | Lines | None):
        self.trainer, self.args = trainer, trainer.args
        path, progress, total = Path(self.args.output_dir), Progress(), trainer.total_steps
        # Rank 0 decides for all: a launcher on another machine may have started the others. torchrun's own count of
        # restarts does not tell: it counts the failures of one machine, and a failure restarts the ranks of all.
        restarted = distributed.gather("TORCHELASTIC_RUN_ID" in os.environ and opened_by_this_launcher(path))[0]
        self.resume = resume or restarted
        self.folder = Run(path.expanduser(), silent=True)
        self.display: Display | Lines = Lines(total, lambda text: None)
        if distributed.rank() == 0:
            self.folder = open_run(path, self.args, resume=self.resume, kind=trainer.kind)
            self.display = display or Display(total, progress=progress, evaluates_after=trainer.evaluates_after)
        distributed.barrier()
        self.note = self.display.note
        self.context = Context(self.folder, StopRequests(), progress, self.note)
        self.health = Health()
        self.callbacks = Callbacks(trainer)
        self.done = self.saved = 0  # iterations in the weights, and in the newest checkpoint
        # Metrics of a finished iteration that were not logged yet, because its evaluation was stopped.
        self.unlogged: dict[str, Any] | None = None
        self.note(trainer.about)

    def train(self) -> Path:
        """Run the trainer from where the run stands to its last step; returns the folder of the exported model."""
        trainer = self.trainer
        with removed_if_unused(self.folder):
            self.restore()
            self.folder.write_config(self.args)
            distributed.begin_work()
            tracked = reporting(self.args.report_to, self.folder, to_dict(self.args), done=self.done)
            with self.display, tracked, self.context.stop:
                try:
                    self.callbacks.call("on_train_begin", self.done)
                    if self.done == 0 and trainer.evaluates_after(0):
                        self.log({"step": 0, **self.evaluated()})
                    elif self.unlogged is not None:
                        self.finish(self.unlogged)
                    for step in range(self.done, trainer.total_steps):
                        self.unlogged = trainer.iterate(step, self.context)
                        self.done = step + 1
                        self.finish(self.unlogged)
                        self.context.stop.check()
                        if self.callbacks.asks("should_training_stop"):
                            self.note(f"a callback ended the training after iteration {self.done}")
                            break
                    if self.saved < self.done:
                        self.save()
                    self.callbacks.call("on_train_end", self.done)
                except Stopped as stopped:
                    raise Stopped(stopped.number, f"{stopped}: {self.keep()}") from None
                except CannotGoOn as error:
                    raise UserError(f"{error}; {self.keep()}") from None
            self.context.progress.end()
            card = model_card(self.folder, to_dict(self.args), trainer.kind)
            return export_model(self.folder.dir, trainer.export(), trainer.tokenizer, card=card)

    def finish(self, metrics: dict[str, Any]) -> None:
        """What follows an iteration: evaluation, log, checkpoint."""
        self.callbacks.call("on_step_end", self.done)
        asked = self.callbacks.asks("should_evaluate")
        if asked or self.trainer.evaluates_after(self.done):
            metrics = {"step": self.done, **metrics, **self.evaluated()}
        self.log(metrics)
        self.unlogged = None
        said = self.health.update(metrics) if metrics else {}
        for rule, text in said.items():
            self.folder.add_note(self.done, rule, text)
            self.note(f"note: {text}")
        ends = [rule for rule in said if rule in self.trainer.stop_on]
        asked = self.callbacks.asks("should_save")
        if asked or self.done % self.args.save_steps == 0 or self.done == self.trainer.total_steps:
            self.save()
            self.callbacks.call("on_save", self.done)
        if ends:
            raise CannotGoOn(f"stopped after iteration {self.done} by {ends[0]}: {said[ends[0]]}")

    def evaluated(self) -> dict[str, float]:
        """The metrics of an evaluation, which a request to stop ends at once."""
        with self.context.stop.at_once():
            metrics = self.trainer.evaluate(self.done, self.context)
        self.callbacks.call("on_evaluate", self.done, metrics=metrics)
        return metrics

    def log(self, metrics: dict[str, Any]) -> None:
        """Write one line of metrics and show it; after an evaluation the report is written too."""
        if metrics:
            self.folder.log(metrics)
            self.display.update(metrics)
            if "time/eval" in metrics and distributed.rank() == 0:
                try:
                    write_report(self.folder)
                except UserError as error:
                    self.note(f"no report this time: {error}")  # training goes on without one
            self.callbacks.call("on_log", self.done, logs=metrics)

    def save(self) -> None:
        """Write a checkpoint of the iterations done."""
        self.context.progress.begin("checkpoint")
        trainer = self.trainer
        save_checkpoint(
            self.folder.dir,
            self.done,
            trainer,
            state={**trainer.state, "unlogged": self.unlogged},
            card=model_card(self.folder, to_dict(self.args), trainer.kind),
            keep=self.args.save_total_limit,
        )
        self.saved = self.done
        self.context.progress.end()

    def keep(self) -> str:
        """Save what was learned since the last checkpoint; returns a sentence that says how to go on."""
        if self.done == 0:
            return f"no iteration was finished; --resume starts {self.folder.dir} from the beginning"
        if self.saved < self.done:
            self.save()
        return f"{self.folder.dir}/checkpoints/step-{self.done} holds everything learned; --resume continues"

    def restore(self) -> None:
        """On a resume, load the newest intact checkpoint and drop what was logged after it."""
        if not self.resume:
            return
        trainer, first = self.trainer, distributed.rank() == 0
        checkpoint = distributed.gather(latest_checkpoint(self.folder.dir, self.note) if first else None)[0]
        if checkpoint is None:
            self.note(f"no checkpoint in {self.folder.dir} yet; starting from the beginning")
        else:
            load_weights(trainer.model, checkpoint / "model")
            if trainer.reference is not None:
                load_weights(trainer.reference, checkpoint / "reference")
            load_optimizer(trainer.optimizer, checkpoint)
            for name, part in trainer.parts.items():
                part.load(checkpoint / name)
            state = read_json(checkpoint / "state.json")
            trainer.state.update({name: state.get(name, value) for name, value in trainer.state.items()})
            self.done = self.saved = self.context.progress.resumed_at = state["step"]
            self.unlogged = state.get("unlogged")
            self.note(f"resumed from {checkpoint}")
        self.folder.truncate_metrics(self.done if checkpoint is not None else -1)
        before = distributed.gather(self.folder.read_metrics() if first else [])[0]
        self.health = Health(before)
        self.callbacks.restore(self.done, before)


def run_trainer(trainer: Trainer, *, resume: bool = False, display: Display | Lines | None = None) -> Path:
    """Open or resume the run of `trainer.args.output_dir` and train to its end; returns the exported model's folder. A
    rank that is lost ends the others (see lfpo.base.distributed.watched)."""
    with distributed.watched(trainer.args.rank_timeout, trainer.args.progress_timeout):
        return TrainingRun(trainer, resume=resume, display=display).train()


def train_on_examples(
    make: Callable[[Any], Trainer], config: Any, *, resume: bool = False, report: Callable[[str], None] = print
) -> Path:
    """Run the trainer of `lfpo sft` or `dpo` that `make` gives for the configuration; returns the folder of the final
    model, `output_dir/model`. report: takes each line of progress. SIGTERM or SIGINT leaves a checkpoint and raises
    Stopped, a KeyboardInterrupt."""
    distributed.start()
    use_threads(config.threads)
    trainer = make(config)
    folder = run_trainer(trainer, resume=resume, display=Lines(trainer.total_steps, report))
    if distributed.rank() == 0:
        report(f"saved {folder}")
    distributed.stop()
    return folder
