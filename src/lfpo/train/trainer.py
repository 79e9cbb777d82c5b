"""What a run runs: the interface that trainers of `lfpo train`, `sft` and `dpo` have in common."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

import torch

from lfpo.config.json import Json
from lfpo.config.length import Length
from lfpo.models import MaskedDiffusionLM
from lfpo.runs.context import Context


class Part(Protocol):
    """Something of a trainer that checkpoints hold in a folder of its own."""

    def save(self, folder: Path) -> None:
        """Write it into an existing empty folder. A collective. Raises OSError or SafetensorError."""

    def load(self, folder: Path) -> None:
        """Read what `save` wrote, in place. The folder is missing where the run did not have this part when it was
        saved. Raises UserError where the run cannot go on from there."""


class Trainer(Protocol):
    """What a run runs: `lfpo train`, `sft` and `dpo` each have one.

    args: its configuration; output_dir, save_steps, save_total_limit, report_to, rank_timeout and progress_timeout are
        read here. user_args: the same, before the length was counted; config.yaml holds it. kind: "train", "sft"
        or "dpo". total_steps: iterations, those of `length`. steps_key: of `args`, which holds them.
    model, reference, tokenizer, optimizer: what checkpoints hold; reference is None where there is none.
    parts: what else checkpoints hold, by the name of its folder.
    state: JSON data that checkpoints hold too (counters); restored in place. Its row_offset: training rows that earlier
        iterations took beyond those of today's batch size (below 0: fewer), after a resume with another one. Iteration
        i begins with row i * batch + row_offset.
    held_out: examples that `evaluate` measures the loss on.
    data: the `fingerprint` of the training rows; "" where they are generated, or a stream.
    row_fingerprints: "training" and "held-out" -> the `fingerprint` of these rows, of generated ones that of the first
        batch. All ranks must have the same.
    stop_on: rules of lfpo.runs.health that end the run when they begin to hold.
    callbacks: see lfpo.train.callbacks. events: what calls them, where the trainer has made it itself.
    about: what to show before it starts. began: whether an iteration has begun, so that theta may have moved.
    """

    args: Any
    user_args: Any
    kind: str
    steps_key: str = "max_steps"
    total_steps: int
    length: Length
    model: MaskedDiffusionLM
    reference: MaskedDiffusionLM | None = None
    tokenizer: Any
    optimizer: torch.optim.Optimizer
    parts: Mapping[str, Part] = MappingProxyType({})
    state: Json
    held_out: Sequence[Any] = ()
    data: str = ""
    row_fingerprints: Mapping[str, str] = MappingProxyType({})
    stop_on: Collection[str] = ()
    callbacks: Sequence[Any] = ()
    events: Any = None  # lfpo.train.callbacks.Callbacks, whose file reads this one
    about: str
    began: bool = False

    def run_iteration(self, step: int, context: Context) -> Json:
        """One iteration, the `step`-th counted from 0; returns its metrics, {} when there is nothing to log yet."""

    def evaluates_after(self, step: int) -> bool:
        """Whether an evaluation is due after `step` iterations (0: before the first)."""
        every = self.args.eval_steps
        return bool(every and self.held_out) and (step % every == 0 or step == self.total_steps)

    def evaluate(self, step: int, context: Context) -> dict[str, float]:
        """Results on held-out data after `step` iterations, as metrics."""
        return {}

    def set_iterations(self, number: int) -> None:
        """Make the run as long as this, as where a resume takes batches of another size."""
        self.total_steps = number
        setattr(self.args, self.steps_key, number)

    def export(self) -> MaskedDiffusionLM:
        """The trained model as it is to be exported."""
        return self.model
