"""The configuration of `lfpo sft`."""

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from lfpo.base.checks import at_least_one
from lfpo.models.settings import LoraSettings
from lfpo.train.config import Optim, check_shared

LossWeight = Literal["1/t", "equal"]


@dataclass
class SFTConfig:
    """Configuration of `lfpo sft`.

    model: checkpoint to start from; or init: a family's config.json for a fresh model, with vocab_size as the upper
        bound of the tokenizer's. Give one of the two.
    tasks: procedural tasks and their share of the examples; or data_file: a JSONL file with `prompt` and `completion`.
        Give one of the two.
    right_share: share of right demonstrations of tasks (None: each task's own).
    gen_length: completion length of data_file rows in tokens; tasks have their own.
    block_length: tokens of a block; makes the model attend block by block (None: as its config.json says).
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

    output_dir: str
    model: str | None = None
    init: dict[str, Any] | None = None
    tasks: dict[str, float] = field(default_factory=dict)
    right_share: float | None = None
    data_file: str | None = None
    gen_length: int = 64
    block_length: int | None = None
    mask_ratios: list[float] = field(default_factory=lambda: [0.0, 1.0])
    loss_weight: LossWeight = "1/t"
    steps: int = 1000
    batch_size: int = 64
    lora: LoraSettings | None = None
    bf16: bool = False
    gradient_checkpointing: bool = False
    fsdp: bool = False
    fsdp_size: int = 0
    optim: Optim = "adamw_torch"
    learning_rate: float = 1e-3
    lr_scheduler_type: Literal["constant", "cosine", "linear"] = "cosine"
    warmup_steps: int = 100
    weight_decay: float = 0.01
    adam_beta1: float = 0.9
    adam_beta2: float = 0.98
    max_grad_norm: float = 1.0
    update_tokens: int = 4096
    seed: int = 0
    threads: int = 0
    logging_steps: int = 20
    save_steps: int = 500
    save_total_limit: int = 2
    export_dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    report_to: list[str] = field(default_factory=list)
    rank_timeout: float = 300.0
    progress_timeout: float = 7200.0

    # What `lfpo train` also offers.
    dtype: ClassVar[str] = "float32"
    head_precision: ClassVar[str] = "auto"
    load_in_4bit: ClassVar[bool] = False
    offload_reference: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_shared(self)
        check_examples(self)
        if (self.model is None) == (self.init is None):
            raise ValueError("give either 'model' (a checkpoint) or 'init' (a fresh model's config)")
        if self.right_share is not None and not 0 <= self.right_share <= 1:
            raise ValueError(f"'right_share' {self.right_share} must be between 0 and 1")
        if self.right_share is not None and self.data_file is not None:
            raise ValueError("'right_share' is for tasks; 'data_file' has its own completions")
        if len(self.mask_ratios) != 2 or not 0 <= self.mask_ratios[0] < self.mask_ratios[1] <= 1:
            raise ValueError(f"'mask_ratios' {self.mask_ratios} must be two numbers, 0 <= low < high <= 1")
        at_least_one(self, "block_length", "steps", "batch_size", "gen_length", "logging_steps")


def check_examples(args: Any) -> None:
    """Raise ValueError unless either tasks or a file give the examples, and each task's share of them is above 0."""
    if bool(args.tasks) == (args.data_file is not None):
        raise ValueError("give either 'tasks' or 'data_file'")
    for task, share in args.tasks.items():
        if not share > 0:
            raise ValueError(f"'tasks': the share {share} of {task!r} must be positive; or leave out the task")
