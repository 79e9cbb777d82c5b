"""Callbacks in the way of transformers: which events a run fires, with what, and what it does as they ask."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from lfpo.config.errors import CannotGoOn, UserError, last_line
from lfpo.config.json import Json
from lfpo.config.torch_state import torch_state_kept
from lfpo.core import collectives
from lfpo.train.callback_arguments import Arguments, ModelConfig, Schedule, loaders, metric_name, values_of
from lfpo.train.trainer import Trainer

# Every event of transformers' TrainerCallback. Of these `on_predict` is fired by nothing that a run does.
EVENTS = (
    *("on_init_end", "on_train_begin", "on_train_end", "on_epoch_begin", "on_epoch_end", "on_step_begin"),
    *("on_pre_optimizer_step", "on_optimizer_step", "on_substep_end", "on_step_end", "on_prediction_step"),
    *("on_evaluate", "on_predict", "on_save", "on_log", "on_push_begin"),
)
FLAGS = "should_training_stop", "should_epoch_stop", "should_save", "should_evaluate", "should_log"
GENERATES = "it generates with transformers' `generate`, which a masked diffusion model does not have"
# TRL's callbacks that cannot work here, by the name of their class, and what to do instead.
REFUSED = {
    "SyncRefModelCallback": "theta_old follows theta by itself: set ema_decay",
    "BEMACallback": "set average_decay, which keeps an average of the weights",
    "MergeModelCallback": "it reads transformers' checkpoint-N folders; use `lfpo export` on checkpoints/step-N",
    "LogCompletionsCallback": f"{GENERATES}; set log_completions, and report_to for tables of them",
    "WinRateCallback": f"{GENERATES}; give a judge as a reward function",
    "WeaveCallback": f"{GENERATES}; set log_completions, and report_to for tables of them",
}


class Callbacks:
    """Calls the trainer's callbacks, in their order, on every rank: objects or classes with methods of transformers'
    TrainerCallback.

    A method is called as by transformers' Trainer: f(args, state, control, **kwargs), and may return a new control.
    args: see Arguments. state is a transformers.TrainerState whose steps are iterations. kwargs are model,
    processing_class (the tokenizer), optimizer, lr_scheduler, train_dataloader, eval_dataloader, with `logs` in on_log
    and `metrics` in on_evaluate. The flags of `control` are obeyed where any rank has set them.
    Raises UserError for a callback that cannot work.
    """

    def __init__(self, trainer: Trainer):
        self.trainer, self.callbacks = trainer, list[Any]()
        self.error: UserError | None = None  # of a callback in the middle of an iteration; `call` raises it
        self.failed = False  # on any rank
        self.epoch: int | None = None  # the epoch that has begun
        self.step = 0  # iterations that were done at the last event
        self.in_use = False  # whether any rank has callbacks: some give them to the first rank only
        self.control: Any = SimpleNamespace(**dict.fromkeys(FLAGS, False))  # without callbacks; else a TrainerControl
        collectives.together(lambda: list(map(self.add, trainer.callbacks)))
        self.meet()

    def meet(self) -> None:
        """Learn whether any rank has callbacks, before what they are called for begins. A collective."""
        self.in_use = any(collectives.gather(bool(self.callbacks)))
        if self.in_use and not hasattr(self, "args"):
            self._prepare()

    def add(self, callback: object) -> None:
        """Call this one too, after the others. Raises UserError for a callback that cannot work."""
        callback = _made(callback)
        if not hasattr(self, "args"):
            self._prepare()
        _check_early_stopping(callback, self.args)
        self.callbacks.append(callback)

    def remove(self, callback: object) -> None:
        """Call this one, or all of this class, no more."""
        self.callbacks = [own for own in self.callbacks if own is not callback and type(own) is not callback]

    def _prepare(self) -> None:
        """What the first callback needs."""
        from transformers import TrainerControl, TrainerState

        trainer = self.trainer
        first, config, length = collectives.rank() == 0, trainer.args, trainer.length
        self.metric = metric_name(config)
        self.args = Arguments(config, values_of(trainer, self.metric))
        self.control = TrainerControl()
        self.state = TrainerState(
            max_steps=trainer.total_steps,
            num_train_epochs=length.epochs,
            logging_steps=self.args.logging_steps,
            eval_steps=getattr(config, "eval_steps", 0),
            save_steps=config.save_steps,
            train_batch_size=self.args.per_device_train_batch_size,
            is_local_process_zero=first,
            is_world_process_zero=first,
        )
        trainer.model.config = ModelConfig(trainer.model.config)
        self.event_arguments = {
            "model": trainer.model,
            "processing_class": trainer.tokenizer,
            "optimizer": trainer.optimizer,
            "lr_scheduler": Schedule(trainer.optimizer),
            **loaders(trainer),
        }

    def call(self, event: str, step: int, **kwargs: object) -> None:
        """Call the event's methods after `step` iterations. A collective. Raises CannotGoOn where one raises, or has
        raised in `within`."""
        self.step = step
        if not self.in_use or self.failed:
            return
        self._at(step)

        def call_all() -> None:
            if self.error is None:
                self.within(event, **kwargs)
            if self.error is not None:
                raise self.error

        try:
            collectives.together(call_all)  # all ranks stop where one rank's callback fails
        except UserError as error:
            self.failed = True  # what was learned is saved without them
            raise CannotGoOn(str(error)) from error

    def within(self, event: str, **kwargs: object) -> None:
        """Call the event's methods on this rank, in the middle of an iteration or an evaluation. An error waits for the
        next `call`, so that the iteration is finished and saved first."""
        for callback in self.callbacks if self.error is None else []:
            name, done = f"callback {type(callback).__name__}.{event}", self.state.global_step
            try:
                changed = None
                if method := getattr(callback, event, None):
                    with torch_state_kept():
                        changed = method(self.args, self.state, self.control, **self.event_arguments, **kwargs)
            except Exception as error:  # user code may raise anything
                self.error = UserError(f"{name} failed after iteration {done}: {last_line(error)}")
                return
            if changed is not None and not isinstance(changed, type(self.control)):
                self.error = UserError(f"{name} returned {changed!r} after iteration {done}; return control, or None")
                return
            self.control = self.control if changed is None else changed

    def begin_training(self, step: int) -> None:
        self.control.should_training_stop = self.failed = False  # also where the trainer has trained before
        self.error = self.epoch = None
        self.call("on_train_begin", step)

    def begin_iteration(self, step: int) -> None:
        """Before the iteration after `step` ones: on_epoch_begin where an epoch begins, and on_step_begin. A flag to
        log, evaluate or save that is set from on_step_begin on holds until that was done, or on_step_begin again."""
        if self.in_use and self.epoch is None:
            self.epoch, self.control.should_epoch_stop = math.floor(self._passed(step)), False
            self.call("on_epoch_begin", step)
        self.control.should_log = self.control.should_evaluate = self.control.should_save = False
        self.call("on_step_begin", step)

    def set_flags(self, *, log: bool, evaluate: bool, save: bool) -> None:
        """Set also the flags of what is due after an iteration by the run's own keys; on_step_end may clear them."""
        control = self.control
        control.should_log, control.should_evaluate = control.should_log or log, control.should_evaluate or evaluate
        control.should_save = control.should_save or save

    def ends_epoch(self, step: int) -> str:
        """Whether on_epoch_end is due after `step` iterations, and then calls it: "whole" after the epoch's last row
        and where the training ends, "early" where a callback leaves out the epoch's other rows; else "". A
        collective."""
        if not self.in_use or self.epoch is None:
            return ""
        early, over = self.asks("should_epoch_stop"), math.floor(self._passed(step)) != self.epoch
        if not (early or over or self.asks("should_training_stop") or step >= self.state.max_steps):
            return ""
        self.epoch = None
        self.call("on_epoch_end", step)
        return "early" if early and not over else "whole"

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        """on_log with a copy of some metrics, under their names here and those of held-out data under transformers'."""
        if self.in_use:
            self._at(step)
            self.control.should_log = False
            logs = {**_with_transformers_names(self.trainer, metrics), "epoch": self.state.epoch, "step": step}
            self.state.total_flos = metrics.get("flops", self.state.total_flos)
            self.state.num_input_tokens_seen += int(metrics.get("num_tokens", 0))
            self.state.log_history.append({**logs})
            self.call("on_log", step, logs=logs)

    def evaluated(self, step: int, metrics: Json) -> None:
        """on_log and on_evaluate after an evaluation; then the best metric, as transformers does: not of the evaluation
        before training. Raises UserError where the metric of `metric_for_best_model` was not measured."""
        if not self.in_use:
            return
        self.log(step, metrics)
        values = {**_with_transformers_names(self.trainer, metrics), "epoch": self.state.epoch}
        self.control.should_evaluate = False
        if self.metric is not None and self.metric not in values:
            names = sorted(name.removeprefix("eval_") for name in values if name.startswith("eval_"))
            raise CannotGoOn(
                f"metric_for_best_model {self.trainer.args.metric_for_best_model!r} is no metric of the evaluation; it "
                f"has {', '.join(names)}"
            )
        self.call("on_evaluate", step, metrics={**values})
        if self.metric is None or step == 0:
            return
        best, value = self.state.best_metric, values[self.metric]
        better = math.isfinite(value) and (
            best is None or (value > best if self.args.greater_is_better else value < best)
        )
        if better:
            self.state.best_metric, self.state.best_global_step = value, step

    def saved(self, step: int, folder: Path) -> None:
        """on_save after a checkpoint. folder: of the run's checkpoints."""
        if self.in_use:
            self.control.should_save = False
            best = folder / f"step-{self.state.best_global_step}"
            self.state.best_model_checkpoint = str(best) if best.is_dir() else None
            self.call("on_save", step)

    def end_training(self, step: int, *, began_at: int, seconds: float) -> None:
        """on_log with a summary of the training, and on_train_end."""
        if self.in_use:
            losses = [row["loss"] for row in self.state.log_history if row.get("loss") is not None]
            summary = {"train_runtime": seconds, "train_steps_per_second": (step - began_at) / max(seconds, 1e-9)}
            summary |= {"train_loss": sum(losses) / len(losses) if losses else math.nan}
            self.log(step, summary | {"total_flos": self.state.total_flos})
        self.call("on_train_end", step)

    def asks(self, what: str) -> bool:
        """Whether this flag of `control` is set, on any rank. A collective where there are callbacks."""
        flag = bool(getattr(self.control, what))
        return any(collectives.gather(flag)) if self.in_use else flag

    def saved_state(self) -> Json:
        """JSON data for a checkpoint: the best metric, and the state of callbacks that export theirs."""
        if not self.in_use:
            return {}
        best = {name: getattr(self.state, name) for name in ("best_metric", "best_global_step")}
        return best | {"states": [[type(c).__name__, _state(c)] for c in self.callbacks if _state(c) is not None]}

    def restore(self, step: int, history: Sequence[Json], saved_state: Json | None = None) -> None:
        """Begin after `step` iterations. history: the metrics that were logged. saved_state: of the
        checkpoint."""
        if not self.in_use:
            return
        self.state.log_history, saved = [], saved_state or {}
        for row in history:
            held_out = {name: value for name, value in row.items() if name.startswith("eval/") or name == "time/eval"}
            trained = {name: value for name, value in row.items() if name not in held_out}
            for part in (trained if len(trained) > 1 else {}, held_out):
                if part:
                    self._at(row["step"])
                    named = _with_transformers_names(self.trainer, part)
                    self.state.log_history.append({**named, "epoch": self.state.epoch, "step": row["step"]})
        for name in ("best_metric", "best_global_step"):
            setattr(self.state, name, saved.get(name))
        states = [*saved.get("states", [])]
        for callback in self.callbacks:
            own = next((pair for pair in states if pair[0] == type(callback).__name__), None)
            if own is not None and _state(callback) is not None:
                states.remove(own)
                for name, value in own[1].get("attributes", {}).items():
                    setattr(callback, name, value)
        self._at(step)

    def _passed(self, step: int) -> Any:
        return self.trainer.length.passed(step, self.trainer.state.get("rows_skipped", 0))

    def _at(self, step: int) -> None:
        self.state.global_step, self.state.epoch = step, float(self._passed(step))


def _made(callback: object) -> object:
    """A callback, or the object of a callback's class. Raises UserError for what cannot work as one."""
    name = callback.__name__ if isinstance(callback, type) else type(callback).__name__
    for base in (callback if isinstance(callback, type) else type(callback)).__mro__:
        if base.__name__ in REFUSED:
            raise UserError(f"callbacks: {base.__name__} does not work here: {REFUSED[base.__name__]}")
    if isinstance(callback, type):
        try:
            callback = callback()
        except Exception as error:  # user code may raise anything
            advice = f"; give an object, {name}(...)" if isinstance(error, TypeError) else ""
            raise UserError(f"callbacks: {name}() failed: {last_line(error)}{advice}") from error
    methods = [method for method in dir(callback) if method.startswith("on_") and callable(getattr(callback, method))]
    if not set(methods) & set(EVENTS):
        close = next((c for m in methods for c in difflib.get_close_matches(m, EVENTS, 1)), None)
        hint = f"; did you mean {close}?" if close else ", such as on_step_end(self, args, state, control, **kwargs)"
        raise UserError(f"callbacks: {name} has no method of transformers' TrainerCallback{hint}")
    return callback


def _check_early_stopping(callback: object, args: Arguments) -> None:
    """Raise UserError where transformers' EarlyStoppingCallback would fail an assertion once training begins."""
    if not any(base.__name__ == "EarlyStoppingCallback" for base in type(callback).__mro__):
        return
    if args.metric_for_best_model is None:
        raise UserError(
            "callbacks: EarlyStoppingCallback needs metric_for_best_model, such as 'greedy/accuracy' for the accuracy "
            "of the eval sampler 'greedy'"
        )
    if args.eval_strategy == "no":
        raise UserError("callbacks: EarlyStoppingCallback needs evaluations: set eval_steps, and give held-out rows")


def _with_transformers_names(trainer: Trainer, metrics: Mapping[str, Any]) -> Json:
    """Metrics with held-out ones also as eval_SAMPLER/NAME, and those of the first eval sampler as eval_NAME."""
    named = {f"eval_{name.removeprefix('eval/')}": value for name, value in metrics.items() if name.startswith("eval/")}
    first = next(iter(getattr(trainer, "eval_samplers", {})), None)
    start = f"eval_{first}/"
    return {**metrics, **{f"eval_{k.removeprefix(start)}": v for k, v in named.items() if k.startswith(start)}, **named}


def _state(callback: object) -> Json | None:
    """What a callback exports for checkpoints; None where it exports nothing."""
    from transformers.trainer_callback import ExportableState

    return callback.state() if isinstance(callback, ExportableState) else None
