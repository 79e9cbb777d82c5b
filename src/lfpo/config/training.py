"""What `lfpo train`, `lfpo sft` and `lfpo dpo` share."""

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from lfpo.config.build import check_fields, checked_new
from lfpo.config.checks import Count, CountOrZero, NotNegative, Positive, Seconds, ShareBelowOne, refuse
from lfpo.config.length import Length, run_length
from lfpo.config.models import LoraSettings, ModelName
from lfpo.config.other_names import SHARED

# transformers' names. All but adamw_torch are bitsandbytes'.
Optim = Literal["adamw_torch", "adamw_8bit", "paged_adamw_8bit", "paged_adamw_32bit"]
Tracker = Literal["tensorboard", "wandb", "trackio"]


@dataclass
class TrainingConfig:
    """What the configurations of `lfpo train`, `sft` and `dpo` share."""

    __new__ = checked_new
    REFUSED: ClassVar[dict[str, str]] = SHARED

    output_dir: str
    """The run's folder."""

    model: ModelName | None = None
    """The checkpoint to start from: a folder, a hub id, or one of the package's own small models: "embedded",
    "embedded-block", which attends block by block, "embedded-causal", which does so over a causal context, and
    "embedded-uniform", whose noise is uniform."""

    lora: LoraSettings | None = None
    """Train an adapter instead of all weights. The exported model is merged."""

    bf16: bool = True
    """Run the bodies of all forwards under bfloat16 autocast: on a GPU, and on a CPU where a product that is
    timed at start is faster so and weights are float32. A line at start says which."""

    fsdp: bool = False
    """Split weights, gradients and optimiser state over the ranks of `torchrun` (PyTorch's FSDP2). Without it every
    rank holds all of them. The result is the same."""

    fsdp_size: CountOrZero = 0
    """Ranks that one copy of the weights is split over (0: all). With the number of GPUs of a machine, weights are
    gathered within machines, and only gradients pass between them (HSDP); each machine then holds a copy."""

    gradient_checkpointing: bool = False
    """Keep only each layer's input for the backward pass; less memory, a third more compute."""

    optim: Optim = "adamw_torch"
    """adamw_torch, or bitsandbytes' adamw_8bit (8-bit moments, a quarter of the memory), paged_adamw_8bit or
    paged_adamw_32bit (moments move to CPU memory when the GPU is full)."""

    learning_rate: Positive | None = None
    """The optimiser's, after warm-up (None: the usual one for the number of parameters, see lfpo.train.rates)."""

    lr_scheduler_type: Literal["constant", "cosine", "linear"] = "constant"
    """How the learning rate goes on after warm-up: it stays, or falls to 0 at the last step."""

    warmup_steps: CountOrZero = 0
    """Optimiser steps over which the learning rate rises from 0."""

    weight_decay: NotNegative = 0.01
    """AdamW's."""

    adam_beta1: ShareBelowOne = 0.9
    """Decay of AdamW's first moment."""

    adam_beta2: ShareBelowOne = 0.99
    """Decay of AdamW's second moment."""

    max_grad_norm: NotNegative = 1.0
    """Gradients are scaled down to this norm (0: never)."""

    update_tokens: Count = 8192
    """Tokens in one pass of the update. Memory and speed only, never the result."""

    num_train_epochs: NotNegative = 0.0
    """Passes over the rows of a data set. As in transformers they count only where max_steps (`steps` of sft) is not
    given."""

    seed: int = 0
    """The key of all random choices."""

    threads: CountOrZero = 0
    """CPU threads of torch (0: torch's default)."""

    save_steps: Count = 10
    """Iterations (steps of sft and dpo) between two checkpoints."""

    save_total_limit: Count = 2
    """Checkpoints that are kept, the newest ones."""

    report_to: list[Tracker] = field(default_factory=list)
    """Trackers that get metrics and completions beside the run's files (see lfpo.runs.trackers)."""

    rank_timeout: Seconds = 300.0
    """Seconds without a sign of life after which a rank is lost and the others exit with code 75 (0: no limit)."""

    progress_timeout: Seconds = 7200.0
    """Seconds that a collective waits for a rank (the process group's timeout); above the longest time of rollouts,
    rewards or evaluation (0: no limit)."""

    # These are keys of some commands only.
    dtype = "float32"
    head_precision = "auto"
    load_in_4bit = False
    offload_reference = False

    def __post_init__(self) -> None:
        check_fields(self)
        whole, by_blocks = self.lora is None, self.optim != "adamw_torch"
        refuse(
            (
                whole and self.dtype == "bfloat16",
                "'dtype' bfloat16 needs 'lora': it rounds small steps of weights away",
            ),
            (whole and self.load_in_4bit, "'load_in_4bit' needs 'lora': 4-bit weights cannot be trained themselves"),
            (self.fsdp_size and not self.fsdp, "'fsdp_size' is for 'fsdp: true'"),
            (
                self.fsdp and self.load_in_4bit,
                "'load_in_4bit' does not work with 'fsdp', which would split blocks of one scale",
            ),
            (
                self.fsdp and whole and by_blocks,
                f"'optim' {self.optim} scales moments in blocks, which fsdp would split; use adamw_torch, or 'lora'",
            ),
        )


@dataclass
class PolicyConfig(TrainingConfig):
    """What the configurations of `lfpo train` and `dpo` share besides: how the weights of large models are kept."""

    model: ModelName = "embedded"
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Of the weights; bfloat16 needs lora, whose factors stay float32."""

    head_precision: Literal["auto", "float32", "tf32", "bfloat16"] = "auto"
    """Of all products with the head, in rollouts, losses and evaluation: float32 (exact), tf32 (inputs rounded to 10
    bits of mantissa; slow on a CPU) or bfloat16 (to 7 bits). Sums and logits are float32 always; the probabilities that
    rollouts draw from are float64 with float32, else float32. auto: float32 on a CPU; on a GPU tf32, or bfloat16 for
    `dtype` bfloat16."""

    load_in_4bit: bool = False
    """Keep the layers' matrices in bitsandbytes' NF4, an eighth of float32 (needs lora)."""


def examples_length(args: TrainingConfig, steps: int, *, batch: int, rows: int) -> Length:
    """The length of a run on so many distinct examples, 0 for those of tasks. steps: the key that says it, or UNSET.
    batch: examples of a step."""
    return run_length(steps, args.num_train_epochs, rows=rows, batch=batch, default=1000)


def moment_bytes(optim: Optim) -> float:
    """Bytes that both moments of a parameter take; in 8 bits, 256 numbers share a float32 scale (arXiv 2110.02861)."""
    return 2 * (1 + 4 / 256) if "8bit" in optim else 8
