"""The configuration of `lfpo sft`."""

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from lfpo.config.checks import Count, CountOrUnset, CountOrZero, NotNegative, Share, ShareBelowOne, refuse
from lfpo.config.data import ExampleConfig
from lfpo.config.json import Json
from lfpo.config.length import UNSET
from lfpo.config.models import ModelName
from lfpo.config.other_names import EXAMPLES
from lfpo.config.training import TrainingConfig


@dataclass
class SFTConfig(ExampleConfig, TrainingConfig):
    """Configuration of `lfpo sft`: supervised training with the masked diffusion loss.

    A row of data is a conversation, `messages`, whose last message is the completion; or has `prompt` and `completion`,
    as text or as messages (TRL's formats).

    `torchrun --nproc_per_node N -m lfpo sft CONFIG` splits each batch over N ranks.
    """

    model: ModelName | None = None
    """The checkpoint to start from: a folder, a hub id, "embedded", "embedded-block", "embedded-causal" or
    "embedded-uniform". Give either model or init."""

    init: Json | None = None
    """A family's config.json for a fresh model, with vocab_size as the upper bound of the tokenizer's."""

    right_share: Share | None = None
    """Share of right demonstrations of tasks (None: each task's own)."""

    block_length: Count | None = None
    """Tokens of a block; makes the model attend block by block (None: as its config.json says)."""

    mask_ratios: list[float] = field(default_factory=lambda: [0.0, 1.0])
    """[low, high], the range that an example's mask ratio t is drawn from."""

    loss_weight: Literal["1/t", "equal"] = "1/t"
    """The weight of a masked token. 1/t: 1 / (t C), C tokens in the completion (LLaDA, SDAR); equal: 1 / the number of
    masked tokens of the example (LLaDA2, which draws t from [0.3, 0.8]). Where noise is uniform (DiffusionGemma), 1/t:
    every token of the completion weighs 1 / C; equal: the noised tokens alone, as masked ones."""

    masked_loss_weight: NotNegative = 0.3
    """For models with masks and a causal context, whose loss has two terms: the weight of the masked tokens' loss
    beside that of each token after the clean ones before it, which weighs 1 (Nemotron-Labs-Diffusion)."""

    steps: CountOrUnset = UNSET
    """Optimiser steps (max_steps works too). As in transformers they count where they are given (not -1), and else
    num_train_epochs; with neither the run has 1000 steps."""

    bf16: bool = False
    lr_scheduler_type: Literal["constant", "cosine", "linear"] = "cosine"
    warmup_steps: CountOrZero = 100
    adam_beta2: ShareBelowOne = 0.98
    update_tokens: Count = 4096

    logging_steps: Count = 20
    """Steps between two lines of metrics."""

    eval_steps: CountOrZero = 100
    """Steps between two evaluations of the loss on held-out rows (0: none)."""

    save_steps: Count = 500
    export_dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """Of the final `output_dir/model`; checkpoints stay float32."""

    ALIASES: ClassVar[dict[str, str]] = {**ExampleConfig.ALIASES, "max_steps": "steps"}
    REFUSED: ClassVar[dict[str, str]] = EXAMPLES

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_data()
        ratios = self.mask_ratios
        refuse(
            ((self.model is None) == (self.init is None), "give either 'model' (a checkpoint) or 'init' (a config)"),
            (self.right_share is not None and not self.tasks, "'right_share' is for tasks; other rows have their own"),
            (
                len(ratios) != 2 or not 0 <= ratios[0] < ratios[-1] <= 1,
                f"'mask_ratios' {ratios} must be two numbers, 0 <= low < high <= 1",
            ),
        )
