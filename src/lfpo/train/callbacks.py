"""Callbacks of a run, with the methods of transformers' TrainerCallback."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lfpo.base import distributed
from lfpo.base.errors import UserError, last_line
from lfpo.runs.context import CannotGoOn

if TYPE_CHECKING:
    from lfpo.train.run import Trainer

EVENTS = ("on_train_begin", "on_step_end", "on_evaluate", "on_log", "on_save", "on_train_end")
ASKED = ("should_evaluate", "should_save", "should_training_stop")


class Callbacks:
    """Calls the methods that the callbacks have of EVENTS, in their order, on every rank.

    A method is called as by transformers' Trainer: f(args, state, control, **kwargs). args is the run's configuration.
    state is a transformers.TrainerState whose steps are iterations; epoch is None where prompts are generated. kwargs
    are model, processing_class (the tokenizer) and optimizer, with `logs` in on_log and `metrics` in on_evaluate.
    Of `control`, ASKED is heeded after each iteration, where any rank has set it.
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
        """Whether a callback of any rank has set this flag of ASKED. Evaluations and checkpoints are asked for once. A
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
