"""The configuration of `lfpo dpo`."""

from dataclasses import dataclass
from typing import ClassVar

from lfpo.config.checks import Count, CountOrUnset, CountOrZero, Positive
from lfpo.config.data import ExampleConfig
from lfpo.config.length import UNSET
from lfpo.config.models import ModelName
from lfpo.config.other_names import EXAMPLES
from lfpo.config.training import PolicyConfig


@dataclass
class DPOConfig(ExampleConfig, PolicyConfig):
    """Configuration of `lfpo dpo`: preference training by VRPO, which is DPO on ELBOs (see lfpo.objectives.vrpo).

    A row of data has `prompt`, `chosen` and `rejected`, TRL's preference format, as text or as messages.
    Defaults are DARE's for 8 billion parameters, which trains 10 epochs.
    `torchrun --nproc_per_node N -m lfpo dpo CONFIG` splits each batch over N ranks.
    """

    model: ModelName = "embedded"
    """The checkpoint to start from, which is also the base policy that completions are compared with: a folder, a hub
    id, "embedded", "embedded-block" or "embedded-causal"."""

    gen_length: Count = 256

    beta: Positive = 0.2
    """The strength of the preference, of ELBOs over gen_length as in DARE: on ELBOs themselves, as LLaDA 1.5 writes it,
    it is beta / gen_length."""

    mc_samples: Count = 4
    """Masks of each completion, shared by the policy and the base."""

    after_eos: bool = False
    """Also score the padding after a completion's end; otherwise it is masked."""

    eval_masks: Count = 8
    """Masks of each held-out completion."""

    max_steps: CountOrUnset = UNSET
    """Optimiser steps. As in transformers they count where they are given (not -1), and else num_train_epochs; with
    neither the run has 1000 steps."""

    update_tokens: Count = 8192
    """Tokens in one pass; memory only, never the result, except that the masks of a pair stay together."""

    logging_steps: Count = 1
    """Steps between two lines of metrics, each of which holds its own step's."""

    eval_steps: CountOrZero = 50
    """Steps between two evaluations (0: none)."""

    save_steps: Count = 100

    REFUSED: ClassVar[dict[str, str]] = EXAMPLES

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_data()
