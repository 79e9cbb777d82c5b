"""Running a run: open or resume, log, evaluate, save, stop. `lfpo train`, `sft` and `dpo` all go through it."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from lfpo.base import distributed
from lfpo.base.environment import keep_freed_memory
from lfpo.config.build import to_dict
from lfpo.config.errors import CannotGoOn, UserError, last_line
from lfpo.config.files import read_json, user_path
from lfpo.config.json import Json
from lfpo.core import collectives
from lfpo.core.observer import Observer
from lfpo.models.four_bit import original_shape
from lfpo.report import write_report
from lfpo.runs.card import model_card
from lfpo.runs.context import Context, Stopped, StopRequests
from lfpo.runs.directory import Run, open_run, removed_if_unused
from lfpo.runs.display import Display, ProgressLines
from lfpo.runs.health import Health
from lfpo.runs.trackers import reporting
from lfpo.train.callbacks import Callbacks
from lfpo.train.checkpoint import export_model, latest_checkpoint, load_optimizer, load_weights, save_checkpoint
from lfpo.train.trainer import Trainer

RESUME = "--resume, in Python resume=True"


class TrainingRun:
    """The run of one trainer: its folder, log, checkpoints and end. context: what it gives to the trainer."""

    def __init__(self, trainer: Trainer, *, resume: bool, display: Display | ProgressLines | None):
        self.trainer, self.args = trainer, trainer.args
        # Absolute, from before any function of the user's was called: such a function may change the working directory.
        path = trainer.run.dir if hasattr(trainer, "run") else user_path(self.args.output_dir).absolute()
        observer, total = Observer(), trainer.total_steps
        # torchrun counts the failures of each machine, and a failure of one restarts the ranks of all.
        restarted = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"
        ranks = collectives.gather((restarted, dict(trainer.row_fingerprints)))
        check_rows([rows for _, rows in ranks])
        self.resume = resume or any(again for again, _ in ranks)
        # All ranks run the same code; only rank 0 has a folder that writes and a display that shows.
        self.folder = Run(path, silent=True)
        self.display: Display | ProgressLines = ProgressLines(total, lambda text: None)
        if collectives.rank() == 0:
            self.folder = open_run(path, trainer.user_args, resume=self.resume, kind=trainer.kind)
            self.display = display or Display(total, progress=observer, evaluates_after=trainer.evaluates_after)
        distributed.barrier()
        self.note = self.display.note
        self.callbacks = trainer.events or Callbacks(trainer)
        # Again: `add_callback` may have come after the trainer was made.
        self.callbacks.meet()
        self.context = Context(self.folder, StopRequests(observer), observer)
        observer.note = self.note
        if self.callbacks.in_use:
            observer.event = self.callbacks.within
        self.health, self.ended_by = Health(), ""  # the rule of stop_on that began to hold, with what it says
        self.done = self.saved = 0  # iterations in the weights, and in the newest checkpoint
        self.saving = False  # whether a checkpoint is being written, or could not be
        self.unlogged: Json = {}  # metrics of a finished iteration whose evaluation or callbacks are not finished
        self.note(trainer.about)

    def train(self) -> Path:
        """Run the trainer from where the run stands to its last step; returns the folder of the exported model."""
        trainer = self.trainer
        with self.folder.locked(), removed_if_unused(self.folder):
            logged = self.restore()
            # Only now: a resume that could not be restored must leave the run's configuration as it was.
            iterations, rate = max(trainer.total_steps, self.done), self.args.learning_rate
            self.folder.write_config(trainer.user_args, iterations=iterations, learning_rate=rate)
            distributed.begin_work()
            keep_freed_memory(sum(original_shape(p).numel() for p in trainer.model.parameters()))
            shown = to_dict(self.args)
            tracked = reporting(self.args.report_to, self.folder, shown, done=self.done, note=self.note)
            # `progress_saved` is innermost: a signal that is repeated must not cut its checkpoint short.
            with self.display, tracked, self.context.stop, self.progress_saved():
                self.iterate(logged)
            self.context.observer.begin("")
            with self.progress_saved():
                # Outside `stop`: the weights are in a checkpoint, so a signal may end the export at once.
                model = export_model(self.folder.dir, trainer.export(), trainer.tokenizer, card=self.card())
        return model

    def iterate(self, logged: Sequence[Json]) -> None:
        """All iterations that are not done, with the evaluation before them. logged: the metrics so far."""
        trainer = self.trainer
        if self.done >= trainer.total_steps:
            self.note(
                f"nothing is left to train: {self.done} iterations are done, and the run has "
                f"{trainer.total_steps}; raise max_steps or num_train_epochs to go on"
            )
        self.callbacks.begin_training(self.done)
        # Before training; and on a resume where a request to stop ended the evaluation.
        if not evaluated_after(self.done, logged) and trainer.evaluates_after(self.done):
            metrics = {**self.unlogged, **self.evaluated()}
            self.log({"step": self.done, **metrics} if metrics else {})
        trainer.began = True
        while self.done < trainer.total_steps:
            self.callbacks.begin_iteration(self.done)
            self.unlogged = trainer.run_iteration(self.done, self.context)
            # From here on the iteration counts: the weights have it, whatever an evaluation or a callback does next.
            self.done += 1
            evaluate, save = trainer.evaluates_after(self.done), self.saves_after(self.done)
            self.callbacks.set_flags(log=bool(self.unlogged), evaluate=evaluate, save=save)
            self.callbacks.call("on_step_end", self.done)
            self.log_evaluate_save(self.unlogged)
            self.end_epoch()
            # A request to stop that came during the update is met here: the iteration is logged, and all ranks have the
            # same weights.
            self.context.stop.check()
            if self.callbacks.is_set("should_training_stop"):
                break
        if self.done < trainer.total_steps:
            self.note(f"a callback ended the training after iteration {self.done}")
        # A callback may have ended the training, or cleared should_save, at an iteration without a checkpoint.
        if self.saved < self.done:
            self.save()
        self.callbacks.call("on_train_end", self.done)

    def saves_after(self, step: int) -> bool:
        return bool(step % self.args.save_steps == 0 or step == self.trainer.total_steps)

    def log_evaluate_save(self, metrics: Json) -> None:
        """What follows an iteration, as the flags of `control` say: evaluation, checkpoint. Each flag is read when its
        turn comes, as an event before it may set it. Every line of metrics is written."""
        if metrics and self.callbacks.is_set("should_log"):
            self.callbacks.log(self.done, metrics)
        if self.callbacks.is_set("should_evaluate"):
            metrics = {"step": self.done, **metrics, **self.evaluated()}
        self.log(metrics)
        if self.callbacks.is_set("should_save"):
            self.save()
        self.stop_on_a_rule()

    def end_epoch(self) -> None:
        """Where an epoch ends: on_epoch_end and what it asks for."""
        if not self.callbacks.end_epoch(self.done):
            return
        # The iteration is logged already.
        if self.callbacks.is_set("should_evaluate") and (metrics := self.evaluated()):
            self.log({"step": self.done, **metrics})
        if self.callbacks.is_set("should_save"):
            self.save()
        self.stop_on_a_rule()

    def stop_on_a_rule(self) -> None:
        """Raise CannotGoOn if a rule of `stop_on` began to hold in a line that was logged."""
        if self.ended_by:
            raise CannotGoOn(f"stopped after iteration {self.done} by {self.ended_by}")

    def evaluated(self) -> dict[str, float]:
        """The metrics of an evaluation, which a request to stop ends at once."""
        with self.context.observer.interruptible_work():
            metrics = self.trainer.evaluate(self.done, self.context)
        if metrics:
            self.callbacks.evaluated(self.done, metrics)
        return metrics

    def log(self, metrics: Json) -> None:
        """Write one line of metrics, show it, and note each rule that begins to hold. After an evaluation the report
        is written too."""
        if not metrics:
            return
        collectives.on_every_rank(lambda: self.folder.log(metrics))  # rank 0 writes; all stop where it cannot
        self.unlogged = {}  # also where showing it fails: `save_progress` must not write the line again
        self.display.update(metrics)
        for rule, text in self.health.update(metrics).items():
            collectives.on_every_rank(partial(self.folder.add_note, self.done, rule, text))
            self.note(f"note: {text}")
            if rule in self.trainer.stop_on and not self.ended_by:
                self.ended_by = f"{rule}: {text}"
        if "time/eval" in metrics and collectives.rank() == 0:
            try:
                write_report(self.folder)
            except UserError as error:
                self.note(f"no report this time: {error}")  # training goes on without one

    def save(self) -> None:
        """Write a checkpoint of the iterations done."""
        self.context.observer.begin("checkpoint")
        trainer, self.saving = self.trainer, True
        save_checkpoint(
            self.folder.dir,
            self.done,
            trainer,
            state={
                **trainer.state,
                "data": trainer.data,
                "rows": self.done * trainer.length.batch + trainer.state["row_offset"],
                "callbacks": self.callbacks.saved_state(),
            },
            card=self.card(),
            keep=self.args.save_total_limit,
        )
        self.saved, self.saving = self.done, False
        self.context.observer.begin("")
        self.callbacks.saved(self.done, self.folder.dir / "checkpoints")

    def card(self) -> str:
        chat = bool(getattr(self.trainer.tokenizer, "chat_template", None))
        return model_card(self.folder, to_dict(self.args), self.trainer.kind, step=self.done, chat=chat)

    def save_progress(self) -> str:
        """Save what was learned since the last checkpoint; returns a sentence that says how to go on."""
        if self.done == 0:
            return f"no iteration was finished; {RESUME}, starts {self.folder.dir} from the beginning"
        if self.saved < self.done or self.unlogged:
            try:
                self.log(self.unlogged)
                if self.saved < self.done:
                    self.save()
            except (UserError, RuntimeError, MemoryError) as error:  # a full disk; a GPU that no longer answers
                if self.saved < self.done:  # else a callback failed when the checkpoint was complete
                    return f"what was learned since iteration {self.saved} could not be saved: {error}"
        folder = self.folder.dir / f"checkpoints/step-{self.done}"
        return f"{folder} holds everything learned; --resume continues (in Python resume=True)"

    @contextlib.contextmanager
    def progress_saved(self) -> Iterator[None]:
        """Save what was learned, whatever ends the block, and raise what ended it with how to go on.

        An error in the middle of an update leaves weights between two iterations. They are saved as those of the
        iteration before: what is resumed then has learned a part of one iteration twice, and has lost nothing.
        """
        try:
            yield
        except Stopped as stopped:
            raise Stopped(stopped.number, f"{stopped}: {self.save_progress()}") from None
        except BaseException as error:  # also a KeyboardInterrupt or SystemExit of the user's code
            # An error of one rank among several reaches the others in different collectives, and saving is one, too.
            shared, told = isinstance(error, CannotGoOn) or collectives.world() == 1, isinstance(error, UserError)
            # No second attempt where a checkpoint was being written, which would most likely fail again; and none that
            # the other ranks would not join.
            if self.saving or not (shared or told or isinstance(error, OSError)):
                raise
            how = f"{RESUME}, goes on from iteration {self.saved}, the last one that was saved"
            remedy = self.save_progress() if shared else how
            if told or isinstance(error, OSError):  # a full disk, a lost connection
                text = str(error) if told else last_line(error)
                raise UserError(f"{text}; {remedy}") from (None if told else error)
            self.note(remedy)
            raise

    def restore(self) -> list[Json]:
        """On a resume, load the newest intact checkpoint and drop what was logged after it. Returns the metrics that
        are left."""
        callback_state: Json = {}
        trainer, first = self.trainer, collectives.rank() == 0
        # Rank 0 alone verifies checksums, which read every file, and tells the others which checkpoint all load.
        newest = latest_checkpoint(self.folder.dir, self.note) if self.resume and first else None
        checkpoint = collectives.gather(newest)[0]
        if checkpoint is None and trainer.began:  # its weights have moved
            raise UserError(
                f"{self.folder.dir}: has no checkpoint to go on from, and this trainer has begun; a new trainer with "
                "the same arguments starts from the beginning"
            )
        if not self.resume:
            return []
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
            self.done = self.saved = self.context.observer.resumed_at = state["step"]
            callback_state = state.get("callbacks", {})
            # The run goes on with the next row, also where it takes batches of another size from now on.
            trainer.state["row_offset"] = state["rows"] - self.done * trainer.length.batch
            trainer.set_iterations(trainer.length.total(self.done, state["rows"]))
            self.display.total = trainer.total_steps
            self.note(f"resumed from {checkpoint}")
            if (data := state.get("data", "")) != trainer.data and data:
                self.note(
                    f"note: the training rows, or their order, have changed since the checkpoint (it has {data}; now "
                    f"{trainer.data or 'they are generated'}); the run goes on with the new ones"
                )
        # Lines after the checkpoint come again. Without one all do, also the evaluation before training at step 0.
        self.folder.truncate_metrics(self.done if checkpoint is not None else -1)
        before: list[Json] = collectives.gather(self.folder.read_metrics() if first else [])[0]
        due = trainer.evaluates_after(self.done) and not evaluated_after(self.done, before)
        if due and before and before[-1]["step"] == self.done:  # the line gets the evaluation that is still to be made
            self.unlogged = before.pop()
            self.folder.truncate_metrics(self.done - 1)
        self.callbacks.restore(self.done, callback_state)
        # Rules that hold already, and have a note, are not noted again.
        notes = collectives.gather(self.folder.read_notes() if first else [])[0]
        self.health = Health(before, {note["rule"] for note in notes})
        return before


def evaluated_after(step: int, metrics: Sequence[Json]) -> bool:
    """Whether these metrics hold an evaluation after so many iterations."""
    return any(m["step"] == step and any(name.startswith("eval/") for name in m) for m in metrics)


def check_rows(ranks: Sequence[Mapping[str, str]]) -> None:
    """Raise UserError where ranks have other rows: each takes its share of what it takes for the rows of all. ranks: by
    rank, Trainer.row_fingerprints."""
    for (rank, own), name in itertools.product(enumerate(ranks), ranks[0]):
        if own[name] != ranks[0][name]:
            raise UserError(
                f"the {name} rows, or their order, differ between the ranks: rank 0 has {ranks[0][name]}, and rank "
                f"{rank} has {own[name]}; where Python makes them, sort them (each process has another order of a set) "
                "and draw them with one seed, or read them from a file"
            )


def run_trainer(trainer: Trainer, *, resume: object = False, display: Display | ProgressLines | None = None) -> Path:
    """Open or resume the run of `trainer.args.output_dir` and train to its end; returns the exported model's folder. A
    rank that is lost ends the others (see lfpo.base.distributed.watched)."""
    if not isinstance(resume, bool):
        folder = user_path(trainer.args.output_dir) / "checkpoints"
        raise UserError(
            f"resume {str(resume)!r}: expected True or False. True goes on from the newest intact checkpoint in "
            f"{folder}; to go on from an older one, move the newer step-N folders away first"
        )
    with distributed.watched(trainer.args.rank_timeout, trainer.args.progress_timeout):
        return TrainingRun(trainer, resume=resume, display=display).train()
