"""The configurations of `lfpo sft` and `lfpo dpo`."""

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from lfpo.config.checks import Count, CountOrUnset, CountOrZero, Positive, Share, ShareBelowOne
from lfpo.config.length import UNSET, Length, run_length
from lfpo.config.other_names import EXAMPLES
from lfpo.config.train import TrainingConfig


@dataclass
class SFTConfig(TrainingConfig):
    """Configuration of `lfpo sft`.

    model: checkpoint to start from; or init: a family's config.json for a fresh model, with vocab_size as the upper
        bound of the tokenizer's. Give one of the two.
    tasks: procedural tasks and their share of the examples; or data_file: rows with `prompt` and `completion`.
        Give one of the two.
    right_share: share of right demonstrations of tasks (None: each task's own).
    gen_length: completion length of data_file rows in tokens; tasks have their own.
    block_length: tokens of a block; makes the model attend block by block (None: as its config.json says).
    steps (max_steps works too): optimiser steps. num_train_epochs: passes over data_file. As in transformers, steps
        counts where it is given (not -1), and else the epochs; with neither the run has 1000 steps.
    mask_ratios: [low, high], the range that an example's mask ratio t is drawn from.
    loss_weight: of a masked token. 1/t: 1 / (t C), C tokens in the completion (LLaDA, SDAR); equal: 1 / the number of
        masked tokens of the example (LLaDA2, which draws t from [0.3, 0.8]).
    lora: {r, lora_alpha, target_modules, experts}: train an adapter instead of all weights; the exported model is
        merged.
    bf16: on a GPU, run the body of forwards under bfloat16 autocast. Weights are float32.
    gradient_checkpointing, fsdp, fsdp_size: as in LFPOConfig.
    optim: adamw_torch, or one of bitsandbytes: adamw_8bit, paged_adamw_8bit, paged_adamw_32bit (see LFPOConfig).
    max_grad_norm: gradients are scaled down to this norm (0: never).
    update_tokens: tokens in one forward pass; memory only, never the result.
    export_dtype: dtype of the final `output_dir/model`; checkpoints stay float32.
    report_to: trackers that get the metrics too (see lfpo.runs.trackers).
    rank_timeout, progress_timeout: as in LFPOConfig.

    `torchrun --nproc_per_node N -m lfpo sft CONFIG` splits each batch over N ranks.
    """

    init: dict[str, Any] | None = None
    tasks: dict[str, float] = field(default_factory=dict)
    right_share: Share | None = None
    data_file: str | None = None
    gen_length: Count = 64
    block_length: Count | None = None
    mask_ratios: list[float] = field(default_factory=lambda: [0.0, 1.0])
    loss_weight: Literal["1/t", "equal"] = "1/t"
    steps: CountOrUnset = UNSET
    batch_size: Count = 64
    bf16: bool = False
    learning_rate: Positive = 1e-3
    lr_scheduler_type: Literal["constant", "cosine", "linear"] = "cosine"
    warmup_steps: CountOrZero = 100
    adam_beta2: ShareBelowOne = 0.98
    update_tokens: Count = 4096
    logging_steps: Count = 20
    save_steps: Count = 500
    export_dtype: Literal["float32", "bfloat16", "float16"] = "float32"

    ALIASES: ClassVar[dict[str, str]] = {"max_steps": "steps"}
    REFUSED: ClassVar[dict[str, str]] = EXAMPLES

    def __post_init__(self) -> None:
        super().__post_init__()
        check_examples(self)
        if (self.model is None) == (self.init is None):
            raise ValueError("give either 'model' (a checkpoint) or 'init' (a fresh model's config)")
        if self.right_share is not None and self.data_file is not None:
            raise ValueError("'right_share' is for tasks; 'data_file' has its own completions")
        if len(self.mask_ratios) != 2 or not 0 <= self.mask_ratios[0] < self.mask_ratios[1] <= 1:
            raise ValueError(f"'mask_ratios' {self.mask_ratios} must be two numbers, 0 <= low < high <= 1")


@dataclass
class DPOConfig(TrainingConfig):
    """Configuration of `lfpo dpo`: preference training by VRPO, which is DPO on ELBOs (see lfpo.objectives.vrpo).

    model: the checkpoint to start from, which is also the base policy that completions are compared with.
    data_file: rows with `prompt`, `chosen` and `rejected`, TRL's preference format, as text or as messages; or
        tasks: procedural tasks and their share of the pairs, each a right and a flawed demonstration. Give one of them.
    eval_file: held-out pairs for data_file runs; tasks have their own. eval_size: number of held-out pairs.
    gen_length: completion length of data_file rows in tokens; tasks have their own.
    beta: the strength of the preference, of ELBOs over gen_length as in DARE: on ELBOs themselves, as LLaDA 1.5 writes
        it, it is beta / gen_length. mc_samples: masks of each completion, shared by the policy and the base.
    after_eos: also score the padding after a completion's end; otherwise it is masked.
    eval_masks: masks of each held-out completion.
    max_steps: optimiser steps. num_train_epochs: passes over data_file. As in transformers, max_steps counts where it
        is given (not -1), and else the epochs; with neither the run has 1000 steps. batch_size: pairs of each step.
    lora, dtype, bf16, head_precision, load_in_4bit, fsdp, fsdp_size, optim, gradient_checkpointing, max_grad_norm: as
        in LFPOConfig.
    update_tokens: tokens in one pass; memory only, never the result, except that the masks of a pair stay together.
    logging_steps: steps between two lines of metrics, each of which holds its own step's.
    report_to, rank_timeout, progress_timeout: as in LFPOConfig.

    Defaults are DARE's for 8 billion parameters, which trains 10 epochs.
    `torchrun --nproc_per_node N -m lfpo dpo CONFIG` splits each batch over N ranks.
    """

    model: str = "embedded"
    data_file: str | None = None
    tasks: dict[str, float] = field(default_factory=dict)
    eval_file: str | None = None
    eval_size: CountOrZero = 200
    gen_length: Count = 256
    beta: Positive = 0.2
    mc_samples: Count = 4
    after_eos: bool = False
    eval_masks: Count = 8
    max_steps: CountOrUnset = UNSET
    batch_size: Count = 64
    dtype: Literal["float32", "bfloat16"] = "float32"
    head_precision: Literal["auto", "float32", "tf32", "bfloat16"] = "auto"
    load_in_4bit: bool = False
    learning_rate: Positive = 5e-7
    logging_steps: Count = 1
    eval_steps: CountOrZero = 50
    save_steps: Count = 100

    REFUSED: ClassVar[dict[str, str]] = EXAMPLES

    def __post_init__(self) -> None:
        super().__post_init__()
        check_examples(self)
        if self.eval_file is not None and self.data_file is None:
            raise ValueError("'eval_file' goes with 'data_file'; tasks bring their own held-out pairs")


def examples_length(args: SFTConfig | DPOConfig, steps: int, rows: int) -> Length:
    """The length of a run on so many distinct examples, 0 for those of tasks. steps: the key that says it, or UNSET."""
    epochs, endless = args.num_train_epochs, "'tasks'"
    return run_length(steps, epochs, rows=rows, batch=args.batch_size, default=1000, endless=endless)


def check_examples(args: SFTConfig | DPOConfig) -> None:
    """Raise ValueError unless either tasks or a file give the examples, and each task's share of them is above 0."""
    if bool(args.tasks) == (args.data_file is not None):
        raise ValueError("give either 'tasks' or 'data_file'")
    for task, share in args.tasks.items():
        if not share > 0:
            raise ValueError(f"'tasks': the share {share} of {task!r} must be positive; or leave out the task")
