"""transformers' callbacks: its CallbackHandler, TrainerState and TrainerControl, with the events of a run."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from lfpo.config.errors import CannotGoOn, UserError
from lfpo.config.json import Json
from lfpo.core import collectives
from lfpo.core.attempts import users_code
from lfpo.train.trainer import Trainer

FLAGS = "should_training_stop", "should_save", "should_evaluate", "should_log"


class Callbacks:
    """Calls the trainer's callbacks, objects or classes of transformers' TrainerCallback, in their order, on every
    rank, and knows what they ask for.

    A method is called as by transformers' Trainer: f(args, state, control, **kwargs). args: see `arguments`. state is a
    transformers.TrainerState whose steps are iterations. kwargs are model, processing_class (the tokenizer) and
    optimizer, with `logs` in on_log and `metrics` in on_evaluate; data loaders and lr_scheduler are None. The flags of
    `control` are obeyed where any rank has set them, all but should_epoch_stop.
    """

    def __init__(self, trainer: Trainer):
        self.trainer = trainer
        self.handler: Any = None  # transformers' CallbackHandler, where there are callbacks: to import it takes seconds
        self.failed = False  # on any rank
        self.epoch: int | None = None  # the epoch that has begun
        self.step = 0  # iterations that were done at the last event
        self.in_use = False  # whether any rank has callbacks: some give them to the first rank only
        self.control: Any = SimpleNamespace(**dict.fromkeys(FLAGS, False))  # without callbacks; else a TrainerControl
        for callback in trainer.callbacks:
            self.add(callback)
        self.meet()

    def meet(self) -> None:
        """Learn whether any rank has callbacks, before what they are called for begins. A collective."""
        self.in_use = any(collectives.gather(self.handler is not None))
        if self.in_use and self.handler is None:
            self._prepare()

    def add(self, callback: Any) -> None:
        """Call this one too, after the others."""
        if self.handler is None:
            self._prepare()
        self.handler.add_callback(callback)

    def remove(self, callback: object) -> None:
        """Call this one, or one of this class, no more."""
        if self.handler is not None:
            self.handler.remove_callback(callback)

    def _prepare(self) -> None:
        """What the first callback needs."""
        from transformers import TrainerControl, TrainerState
        from transformers.trainer_callback import CallbackHandler, DefaultFlowCallback

        trainer, first = self.trainer, collectives.rank() == 0
        self.metric = metric_name(trainer.args)
        self.args = arguments(trainer, self.metric)
        # The run says itself what is due after an iteration; without this callback the handler warns.
        self.handler = CallbackHandler(
            [DefaultFlowCallback], trainer.model, trainer.tokenizer, trainer.optimizer, lr_scheduler=None
        )
        self.handler.callbacks.clear()
        self.control = TrainerControl()
        self.state = TrainerState(
            max_steps=trainer.total_steps,
            num_train_epochs=trainer.length.epochs,
            logging_steps=self.args.logging_steps,
            eval_steps=trainer.args.eval_steps,
            save_steps=trainer.args.save_steps,
            is_local_process_zero=first,
            is_world_process_zero=first,
        )

    def call(self, event: str, step: int, **kwargs: object) -> None:
        """Call the event's methods after `step` iterations. A collective. Raises CannotGoOn where one raises: what was
        learned is then saved without them."""
        self.step = step
        if not self.in_use or self.failed:
            return
        self._at(step)
        try:
            # All ranks stop where one rank's callback fails.
            collectives.on_every_rank(lambda: self.within(event, **kwargs))
        except UserError as error:
            self.failed = True
            raise CannotGoOn(str(error)) from error

    def within(self, event: str, **kwargs: object) -> None:
        """Call the event's methods on this rank; also in the middle of an iteration or an evaluation."""
        with users_code(f"a callback's {event}, after iteration {self.state.global_step},"):
            self.control = getattr(self.handler, event)(self.args, self.state, self.control, **kwargs)

    def begin_training(self, step: int) -> None:
        self.control.should_training_stop = self.failed = False  # also where the trainer has trained before
        self.epoch = None
        self.call("on_train_begin", step)

    def begin_iteration(self, step: int) -> None:
        """Before the iteration after `step` ones: on_epoch_begin where an epoch begins, and on_step_begin. A flag to
        log, evaluate or save that is set from on_step_begin on holds until that was done, or on_step_begin again."""
        if self.in_use and self.epoch is None:
            self.epoch = math.floor(self._passed(step))
            self.call("on_epoch_begin", step)
        self.control.should_log = self.control.should_evaluate = self.control.should_save = False
        self.call("on_step_begin", step)

    def set_flags(self, *, log: bool, evaluate: bool, save: bool) -> None:
        """Set also the flags of what is due after an iteration by the run's own keys; on_step_end may clear them."""
        control = self.control
        control.should_log, control.should_evaluate = control.should_log or log, control.should_evaluate or evaluate
        control.should_save = control.should_save or save

    def end_epoch(self, step: int) -> bool:
        """Call on_epoch_end where the epoch's last row was among those of `step` iterations, or the training ends;
        returns whether it was called. A collective."""
        if not self.in_use or self.epoch is None:
            return False
        over = math.floor(self._passed(step)) != self.epoch or step >= self.state.max_steps
        if not (over or self.is_set("should_training_stop")):
            return False
        self.epoch = None
        self.call("on_epoch_end", step)
        return True

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        """on_log with a copy of some metrics, under their names here and those of held-out data under transformers'."""
        if self.in_use:
            self._at(step)
            logs = {**self._named(metrics), "epoch": self.state.epoch, "step": step}
            self.state.total_flos = metrics.get("flops", self.state.total_flos)
            self.state.log_history.append({**logs})
            self.call("on_log", step, logs=logs)

    def evaluated(self, step: int, metrics: Json) -> None:
        """on_log and on_evaluate after an evaluation; then the best metric, as transformers does: not of the evaluation
        before training. Raises UserError where the metric of `metric_for_best_model` was not measured."""
        if not self.in_use:
            return
        self.log(step, metrics)
        values = {**self._named(metrics), "epoch": self.state.epoch}
        if self.metric is not None and self.metric not in values:
            names = sorted(name.removeprefix("eval_") for name in values if name.startswith("eval_"))
            raise CannotGoOn(
                f"metric_for_best_model {self.trainer.args.metric_for_best_model!r} is no metric of the evaluation; it "
                f"has {', '.join(names)}"
            )
        self.call("on_evaluate", step, metrics={**values})
        if self.metric is None or step == 0 or not math.isfinite(value := values[self.metric]):
            return
        best = self.state.best_metric
        if best is None or (value > best if self.args.greater_is_better else value < best):
            self.state.best_metric, self.state.best_global_step = value, step

    def saved(self, step: int, folder: Path) -> None:
        """on_save after a checkpoint. folder: of the run's checkpoints."""
        if self.in_use:
            best = folder / f"step-{self.state.best_global_step}"
            self.state.best_model_checkpoint = str(best) if best.is_dir() else None
            self.call("on_save", step)

    def is_set(self, what: str) -> bool:
        """Whether this flag of `control` is set, on any rank. A collective where there are callbacks."""
        flag = bool(getattr(self.control, what))
        return any(collectives.gather(flag)) if self.in_use else flag

    def saved_state(self) -> Json:
        """The TrainerState for a checkpoint, with the states of callbacks that export theirs."""
        from transformers.trainer_callback import ExportableState

        if not self.in_use:
            return {}
        exporting = [callback for callback in self.handler.callbacks if isinstance(callback, ExportableState)]
        self.state.stateful_callbacks = {type(callback).__name__: callback.state() for callback in exporting}
        return dataclasses.asdict(self.state)

    def restore(self, step: int, saved: Json) -> None:
        """Begin after `step` iterations. saved: the `saved_state` of the checkpoint; {} without one."""
        if not self.in_use:
            return
        for name in ("log_history", "best_metric", "best_global_step", "total_flos"):
            setattr(self.state, name, saved.get(name, getattr(self.state, name)))
        self.state.max_steps = self.trainer.total_steps
        for callback in self.handler.callbacks:
            own = saved.get("stateful_callbacks", {}).get(type(callback).__name__, {})
            vars(callback).update(own.get("attributes", {}))
        self._at(step)

    def _passed(self, step: int) -> Any:
        return self.trainer.length.passed(step, self.trainer.state["row_offset"])

    def _at(self, step: int) -> None:
        self.state.global_step, self.state.epoch = step, float(self._passed(step))

    def _named(self, metrics: Mapping[str, Any]) -> Json:
        """Metrics with held-out ones also as eval_SAMPLER/NAME, and those of the first eval sampler as eval_NAME."""
        named = {f"eval_{k.removeprefix('eval/')}": v for k, v in metrics.items() if k.startswith("eval/")}
        start = f"eval_{next(iter(getattr(self.trainer, 'eval_samplers', {})), None)}/"
        first = {f"eval_{k.removeprefix(start)}": v for k, v in named.items() if k.startswith(start)}
        return {**metrics, **first, **named}


def metric_name(config: object) -> str | None:
    """The name of metric_for_best_model as transformers' callbacks look it up: `eval_NAME`."""
    name = getattr(config, "metric_for_best_model", None)
    return None if name is None else f"eval_{name.removeprefix('eval_').removeprefix('eval/')}"


def arguments(trainer: Trainer, metric: str | None) -> Any:
    """The run's settings as callbacks read them: transformers' TrainingArguments, with the values that follow from the
    run's configuration, and the configuration's own keys beside them. To set one changes nothing in the run."""
    from transformers import TrainingArguments
    from transformers.trainer_utils import IntervalStrategy

    class Arguments(TrainingArguments):
        # Not the class's own __init__, which would start accelerate; and its places are those of our process group.
        def __init__(self, values: Json):
            self.__dict__.update(values)

        world_size = property(lambda self: collectives.world())
        process_index = local_process_index = property(lambda self: collectives.rank())
        device = property(lambda self: collectives.device())
        n_gpu = property(lambda self: min(1, torch.cuda.device_count()))

    config, greater = trainer.args, getattr(trainer.args, "greater_is_better", None)
    defaults = {
        f.name: f.default if f.default_factory is dataclasses.MISSING else f.default_factory()
        for f in dataclasses.fields(TrainingArguments)
    }
    rollouts = trainer.length.batch * getattr(config, "num_generations", 1)
    evaluates = trainer.evaluates_after(trainer.total_steps)
    derived = {
        "logging_steps": getattr(config, "logging_steps", 1),
        "eval_strategy": IntervalStrategy.STEPS if evaluates else IntervalStrategy.NO,
        "metric_for_best_model": metric,
        "greater_is_better": not (metric or "").endswith("loss") if greater is None else greater,
        "run_name": Path(config.output_dir).name,
        "per_device_train_batch_size": -(-rollouts // collectives.world()),
    }
    return Arguments({**defaults, **vars(config), **derived})
