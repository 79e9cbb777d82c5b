"""The configuration of `lfpo train`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from lfpo.base.checks import at_least_one, time_limits
from lfpo.models.lora import LoraSettings
from lfpo.rollout.sampler import SamplerConfig
from lfpo.runs.trackers import check as check_trackers
from lfpo.train.optim import Optim


def _default_eval_samplers() -> dict[str, SamplerConfig]:
    return {"greedy": SamplerConfig(), "threshold": SamplerConfig(threshold=0.9)}


@dataclass
class LFPOConfig:
    """Configuration of RL training. Names are TRL's where TRL has the same thing.

    output_dir: the run directory.
    model: checkpoint folder, hub id, or "embedded" (the package's own small model).
    task: a task's name or dotted path; or data_file: JSONL with a `prompt` column, scored by reward_funcs.
    reward_funcs: dotted paths of reward functions (`module.function`); a task's own reward is used when left out.
    reward_weights: one a function (all 1 when left out).
    reward_timeout: seconds that one function may take for a batch before its rewards of that batch are given up
        (0: any time).
    reward_memory: GiB that one function may hold. It then runs in a child process of its own, which is killed past
        this or past reward_timeout, whatever it is at (0: it runs in the training process, without a bound).
    eval_file: held-out JSONL for data_file runs; eval then reports the mean reward.

    max_steps: iterations of Algorithm 1 (sample, update, move the reference).
    prompts_per_iteration, num_generations: B prompts and N rollouts each, an iteration.
    objective: {name: ..., knob: ...}; the knobs are that objective's own (see lfpo.objectives).
    sampler: how rollouts are denoised. eval_samplers: name -> sampler, each evaluated.
    lora: {r, lora_alpha, target_modules}, to train an adapter instead of all weights (see lfpo.models.lora).
    dtype: of the weights; bfloat16 goes with lora, whose factors stay float32. bf16: on a GPU all forwards' bodies run
        in bfloat16 under autocast, in updates, rollouts and evaluation alike; heads and losses in the weights' dtype.
    load_in_4bit: the layers' matrices under the adapter in bitsandbytes' NF4, an eighth of float32 (with lora).
    fsdp: split weights, gradients and optimiser state over the processes of `torchrun` (PyTorch's FSDP2); without it
        each process holds all of them. What is learned is the same.
    rank_timeout: seconds that one of several processes may give no sign of life before the others end and name it (0:
        any time). progress_timeout: seconds in which a living one must come to the next exchange, likewise; above the
        longest time of rollouts, rewards or evaluation.
    offload_reference: keep the layers of theta_old (and of the base policy of KL terms) in CPU memory: each is brought
        over for its own forward in the update, all of them for the rollouts. What is learned is the same.
    optim: adamw_torch, or bitsandbytes' adamw_8bit (moments in 8 bits, a quarter of the memory), paged_adamw_8bit or
        paged_adamw_32bit (moments leave a full GPU for CPU memory).
    gradient_checkpointing: keep only each layer's input for the backward pass; less memory, a third more work.
    optimizer_steps_per_iteration: M blocks, a step after each (decides what is learned).
    update_tokens, rollout_tokens: tokens computed at once (memory and speed only, never the result).
    padding_free: rows of the update end to end, each attending to itself alone, in place of rows padded to the longest
        of a pass; on a GPU in bfloat16 by torch's flash attention for that. Memory and speed only.
    rollout_compile: run rollouts through torch.compile (a GPU's; seconds to minutes of compiling at first).
    ema_decay: alpha, theta_old <- alpha theta_old + (1 - alpha) theta after each iteration.
    max_grad_norm: gradients are scaled down to this norm (0: never).
    threads: CPU threads for torch (0: leave as it is).
    report_to: trackers that get the metrics beside metrics.jsonl: tensorboard, wandb, trackio (see lfpo.runs.trackers).
    """

    output_dir: str
    model: str = "embedded"
    task: str | None = None
    data_file: str | None = None
    eval_file: str | None = None
    reward_funcs: list[str] = field(default_factory=list)
    reward_weights: list[float] | None = None
    reward_timeout: float = 1800.0
    reward_memory: float = 0.0

    max_steps: int = 40
    prompts_per_iteration: int = 16
    num_generations: int = 8
    objective: dict[str, Any] = field(default_factory=lambda: {"name": "lfpo"})
    sampler: SamplerConfig = field(default_factory=lambda: SamplerConfig(temperature=1.0))
    eval_samplers: dict[str, SamplerConfig] = field(default_factory=_default_eval_samplers)
    lora: LoraSettings | None = None
    dtype: Literal["float32", "bfloat16"] = "float32"
    load_in_4bit: bool = False
    fsdp: bool = False
    rank_timeout: float = 300.0
    progress_timeout: float = 7200.0
    offload_reference: bool = False
    gradient_checkpointing: bool = False
    optimizer_steps_per_iteration: int = 4
    ema_decay: float = 0.0

    optim: Optim = "adamw_torch"
    learning_rate: float = 3e-4
    lr_scheduler_type: Literal["constant", "cosine", "linear"] = "constant"
    warmup_steps: int = 0
    weight_decay: float = 0.0
    adam_beta1: float = 0.9
    adam_beta2: float = 0.99
    max_grad_norm: float = 1.0
    bf16: bool = True
    update_tokens: int = 8192
    padding_free: bool = False
    rollout_tokens: int = 16384
    rollout_compile: bool = False

    seed: int = 0
    threads: int = 0
    eval_steps: int = 10
    eval_size: int = 200
    save_steps: int = 10
    save_total_limit: int = 2
    log_completions: bool = True
    report_to: list[str] = field(default_factory=list)

    ALIASES: ClassVar[dict[str, str]] = {"dataset": "data_file", "lr": "learning_rate"}

    def __post_init__(self) -> None:
        self.objective = {"name": "lfpo", **self.objective}
        check_trackers(self.report_to)
        if self.sampler.temperature == 0 and self.sampler.remasking != "random":
            raise ValueError("sampler temperature 0 makes all rollouts of a prompt alike; set it above 0")
        at_least_one(self, "max_steps", "prompts_per_iteration", "num_generations", "optimizer_steps_per_iteration")
        at_least_one(
            self, "update_tokens", "rollout_tokens", "eval_steps", "eval_size", "save_steps", "save_total_limit"
        )
        if self.task is not None and self.data_file is not None:
            raise ValueError("give either 'task' or 'data_file', not both")
        if self.eval_file is not None and self.data_file is None:
            raise ValueError("'eval_file' goes with 'data_file'; a task brings its own test split")
        if self.dtype == "bfloat16" and self.lora is None:
            raise ValueError(
                "'dtype' bfloat16 goes with 'lora': trained weights must be float32, or rounding swallows small steps"
            )
        if self.load_in_4bit and self.lora is None:
            raise ValueError(
                "'load_in_4bit' goes with 'lora': weights of 4 bits are too coarse to be trained themselves"
            )
        if self.load_in_4bit and self.fsdp:
            raise ValueError(
                "'load_in_4bit' does not go with 'fsdp', which would split the blocks that share a scale; without fsdp "
                "each process holds the small base whole"
            )
        if self.fsdp and self.lora is None and self.optim != "adamw_torch":
            raise ValueError(
                f"'optim' {self.optim} scales moments in blocks that fsdp's split would cut; with fsdp take "
                "adamw_torch, whose moments are split, or train with 'lora'"
            )
        for name, why in (
            ("lora", "the reference is an adapter on the same weights, and small"),
            ("fsdp", "the reference is split over the processes already"),
            ("rollout_compile", "a compiled forward must find its weights where they were"),
        ):
            if self.offload_reference and getattr(self, name):
                raise ValueError(f"'offload_reference' does not go with '{name}': {why}")
        if not 0 <= self.ema_decay < 1:
            raise ValueError(f"'ema_decay' {self.ema_decay} must be at least 0 and below 1")
        time_limits(self, "reward_timeout", "rank_timeout", "progress_timeout")
        if not self.reward_memory >= 0:
            raise ValueError(f"'reward_memory' {self.reward_memory} must be GiB, or 0 for no bound")
        if self.learning_rate <= 0:
            raise ValueError(f"'learning_rate' {self.learning_rate} must be positive")
        if self.prompts_per_iteration * self.num_generations < self.optimizer_steps_per_iteration:
            raise ValueError("'optimizer_steps_per_iteration' is larger than the number of rollouts to split")
