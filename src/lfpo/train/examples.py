"""What `lfpo sft` and `lfpo dpo` share: they train on examples that are given, not sampled."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from lfpo.base import distributed
from lfpo.base.environment import use_threads
from lfpo.models import MaskedDiffusionLM
from lfpo.train.run import Trainer, run_trainer


def train_on_examples(
    make: Callable[[Any], Trainer], config: Any, *, resume: bool, report: Callable[[str], None]
) -> Path:
    """Run the trainer that `make` gives for the configuration to its end; returns the folder of the final model.

    report: takes each line of progress.
    """
    distributed.start()
    use_threads(config.threads)
    trainer = make(config)
    folder = run_trainer(trainer, resume=resume, display=Lines(trainer.total_steps, report))
    if distributed.rank() == 0:
        report(f"saved {folder}")
    distributed.stop()
    return folder


def sampled_length(prompt: Sequence[int], completion: Sequence[int], model: MaskedDiffusionLM) -> int:
    """Tokens of a completion as a sampler would have left it: to the end of the block that holds its first EOS. For a
    model with full attention all tokens."""
    if model.block_length is None:
        return len(completion)
    end = completion.index(model.eos_id) + 1 if model.eos_id in completion else len(completion)
    return end + -(len(prompt) + end) % model.block_length


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
        step, now, rate = metrics["step"], time.perf_counter(), ""
        if self.last is not None:
            rate = f"  {(step - self.last[0]) / (now - self.last[1]):.2f} steps/s"
        self.last = step, now
        shown = {"loss": metrics.get("loss"), "held-out preference accuracy": metrics.get("eval/preference_accuracy")}
        text = "".join(f"  {name} {value:.4f}" for name, value in shown.items() if value is not None)
        self.note(f"step {step}/{self.total}{text}{rate}")
