"""The configuration of `lfpo dpo`."""

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from lfpo.base.checks import at_least_one, not_negative, positive
from lfpo.models.settings import LoraSettings
from lfpo.train.config import Optim, check_shared
from lfpo.train.sft_config import check_examples


@dataclass
class DPOConfig:
    """Configuration of `lfpo dpo`: preference training by VRPO, which is DPO on ELBOs (see lfpo.objectives.vrpo).

    model: the checkpoint to start from, which is also the base policy that completions are compared with.
    data_file: a JSONL file with `prompt`, `chosen` and `rejected`, TRL's preference format, as text or as messages; or
        tasks: procedural tasks and their share of the pairs, each a right and a flawed demonstration. Give one of them.
    eval_file: held-out pairs for data_file runs; tasks have their own. eval_size: number of held-out pairs.
    gen_length: completion length of data_file rows in tokens; tasks have their own.
    beta: the strength of the preference, of ELBOs over gen_length as in DARE: on ELBOs themselves, as LLaDA 1.5 writes
        it, it is beta / gen_length. mc_samples: masks of each completion, shared by the policy and the base.
    after_eos: also score the padding after a completion's end; otherwise it is masked.
    eval_masks: masks of each held-out completion.
    max_steps: optimiser steps. batch_size: pairs of each.
    lora, dtype, bf16, head_precision, load_in_4bit, fsdp, fsdp_size, optim, gradient_checkpointing, max_grad_norm: as
        in LFPOConfig.
    update_tokens: tokens in one pass; memory only, never the result, except that the masks of a pair stay together.
    logging_steps: steps between two lines of metrics, each of which holds its own step's.
    report_to, rank_timeout, progress_timeout: as in LFPOConfig.

    Defaults are DARE's for 8 billion parameters, which trains 10 epochs.
    `torchrun --nproc_per_node N -m lfpo dpo CONFIG` splits each batch over N ranks.
    """

    output_dir: str
    model: str = "embedded"
    data_file: str | None = None
    tasks: dict[str, float] = field(default_factory=dict)
    eval_file: str | None = None
    eval_size: int = 200
    gen_length: int = 256
    beta: float = 0.2
    mc_samples: int = 4
    after_eos: bool = False
    eval_masks: int = 8
    max_steps: int = 1000
    batch_size: int = 64
    lora: LoraSettings | None = None
    dtype: Literal["float32", "bfloat16"] = "float32"
    bf16: bool = True
    head_precision: Literal["auto", "float32", "tf32", "bfloat16"] = "auto"
    load_in_4bit: bool = False
    fsdp: bool = False
    fsdp_size: int = 0
    gradient_checkpointing: bool = False
    optim: Optim = "adamw_torch"
    learning_rate: float = 5e-7
    lr_scheduler_type: Literal["constant", "cosine", "linear"] = "constant"
    warmup_steps: int = 0
    weight_decay: float = 0.01
    adam_beta1: float = 0.9
    adam_beta2: float = 0.99
    max_grad_norm: float = 1.0
    update_tokens: int = 8192
    seed: int = 0
    threads: int = 0
    logging_steps: int = 1
    eval_steps: int = 50
    save_steps: int = 100
    save_total_limit: int = 2
    report_to: list[str] = field(default_factory=list)
    rank_timeout: float = 300.0
    progress_timeout: float = 7200.0

    # What `lfpo train` also offers: here the base policy stays on the GPU.
    offload_reference: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_shared(self)
        check_examples(self)
        if self.eval_file is not None and self.data_file is None:
            raise ValueError("'eval_file' goes with 'data_file'; tasks bring their own held-out pairs")
        positive(self, "beta")
        not_negative(self, "eval_size", "eval_steps")
        at_least_one(self, "gen_length", "mc_samples", "eval_masks", "max_steps", "batch_size", "logging_steps")
