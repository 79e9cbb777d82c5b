"""The configuration of `lfpo train`."""

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from lfpo.config.build import check_types, checked_new
from lfpo.config.checks import (
    Count,
    CountOrUnset,
    CountOrZero,
    NotNegative,
    Positive,
    Seconds,
    ShareBelowOne,
    check_ranges,
)
from lfpo.config.errors import nearest
from lfpo.config.export import check_repo
from lfpo.config.length import UNSET, Length, run_length
from lfpo.config.models import LoraSettings
from lfpo.config.other_names import SHARED, TRAINING
from lfpo.config.plugins import dotted
from lfpo.config.sampler import SamplerConfig
from lfpo.objectives import all_settings
from lfpo.runs.health import RULES
from lfpo.runs.trackers import check as check_trackers

# transformers' names. All but adamw_torch are bitsandbytes'.
Optim = Literal["adamw_torch", "adamw_8bit", "paged_adamw_8bit", "paged_adamw_32bit"]
# Name -> what makes an engine (lfpo.rollout.engine.Engine) from an LFPOConfig.
ENGINES = {"local": "lfpo.train.setup:local_engine", "ray": "lfpo.train.ray_engine:RayEngine"}


@dataclass(frozen=True)
class EngineSettings:
    """Where rollouts are sampled.

    name: `local`, in the trainer's own processes; `ray`, by workers beside it; or a dotted path of what makes an engine
        from an LFPOConfig (see docs/engines.md).
    prompts_per_unit: prompts whose rollouts are sampled together, as one unit of work. A unit always runs with the same
        shapes, so its trajectories are the same bits on like hardware, whoever runs it. 0: all prompts of a rank
        together for `local`, one for `ray`. An evaluation's units have as many completions.
    max_staleness: 0 samples each batch with the newest weights. k samples batch i with the weights after max(0, i - k)
        iterations, so that rollouts of the next k batches can go on while a batch is learned from.
    workers, gpus_per_worker: of the Ray engine. cpus_per_worker: cores that Ray reserves, and threads of each worker.
    address: of a running Ray cluster; without it $RAY_ADDRESS, or else a Ray of this machine that ends with the run.
    unit_timeout: seconds that a worker may take for a unit before it is stopped and started again (0: no limit).
    reward_workers: Ray workers that call the reward functions, with any engine (0: the trainer's processes call them).
    """

    name: str = "local"
    prompts_per_unit: CountOrZero = 0
    max_staleness: CountOrZero = 0
    workers: Count = 1
    gpus_per_worker: NotNegative = 0.0
    cpus_per_worker: Count = 1
    address: str | None = None
    unit_timeout: Seconds = 3600.0
    reward_workers: CountOrZero = 0

    def __post_init__(self) -> None:
        dotted(self.name, ENGINES, kind="engine")
        check_ranges(self)
        if self.name == "local":
            others = ["workers", "gpus_per_worker", "cpus_per_worker", "unit_timeout"]
            others += [] if self.reward_workers else ["address"]
            given = [name for name in others if getattr(self, name) != getattr(type(self), name)]
            if given:
                raise ValueError(
                    f"{given[0]!r} is for the engine 'ray', found 'local'; set 'name' to ray, or leave it out"
                )


@dataclass
class TrainingConfig:
    """What the configurations of `lfpo train`, `sft` and `dpo` share (LFPOConfig says what the keys mean)."""

    __new__ = checked_new
    REFUSED: ClassVar[dict[str, str]] = SHARED

    output_dir: str
    model: str | None = None
    lora: LoraSettings | None = None
    bf16: bool = True
    fsdp: bool = False
    fsdp_size: CountOrZero = 0
    gradient_checkpointing: bool = False
    optim: Optim = "adamw_torch"
    learning_rate: Positive = 3e-4
    lr_scheduler_type: Literal["constant", "cosine", "linear"] = "constant"
    warmup_steps: CountOrZero = 0
    weight_decay: NotNegative = 0.01
    adam_beta1: ShareBelowOne = 0.9
    adam_beta2: ShareBelowOne = 0.99
    max_grad_norm: NotNegative = 1.0
    update_tokens: Count = 8192
    num_train_epochs: NotNegative = 0.0
    seed: int = 0
    threads: CountOrZero = 0
    save_steps: Count = 10
    save_total_limit: Count = 2
    report_to: list[str] = field(default_factory=list)
    rank_timeout: Seconds = 300.0
    progress_timeout: Seconds = 7200.0

    # These are keys of some commands only.
    dtype = "float32"
    head_precision = "auto"
    load_in_4bit = False
    offload_reference = False

    def __post_init__(self) -> None:
        check_types(self)
        check_ranges(self)
        check_trackers(self.report_to)
        if self.dtype == "bfloat16" and self.lora is None:
            raise ValueError(
                "'dtype' bfloat16 needs 'lora': trained weights must be float32, bfloat16 rounds small steps away"
            )
        if self.load_in_4bit and self.lora is None:
            raise ValueError("'load_in_4bit' needs 'lora': 4-bit weights cannot be trained themselves")
        if self.fsdp_size and not self.fsdp:
            raise ValueError("'fsdp_size' is for 'fsdp: true'")
        if self.load_in_4bit and self.fsdp:
            raise ValueError(
                "'load_in_4bit' does not work with 'fsdp', which would split the blocks that share a scale; "
                "without fsdp every rank holds the small base"
            )
        if self.fsdp and self.lora is None and self.optim != "adamw_torch":
            raise ValueError(
                f"'optim' {self.optim} scales moments in blocks, which fsdp would split; with fsdp use "
                "adamw_torch, or train with 'lora'"
            )


@dataclass
class LFPOConfig(TrainingConfig):
    """Configuration of RL training. Names are TRL's where TRL has the same thing.

    output_dir: the run directory.
    model: checkpoint folder, hub id, or one of the package's own small models: "embedded", and "embedded-block", which
        attends block by block.
    task: a task's name or dotted path; or data_file: rows with a `prompt` column, scored by reward_funcs; or
        dataset_name: a data set of the hub, ORGANISATION/NAME, or a local folder that `datasets` reads, with
        dataset_config, dataset_train_split ("train[:1000]" takes a part) and dataset_test_split (None: no evaluation).
    columns: {question: prompt}: columns of these rows to rename. map_row: dotted path of a function that makes a row of
        a row, as a dict with `prompt` and the columns that reward_funcs take.
    reward_funcs: dotted paths of reward functions (`module.function`); without them the task's own reward is used.
    reward_weights: one weight a function; all 1 without it.
    reward_timeout: seconds that one function may take for a batch; past it, its rewards of that batch are None (0: no
        limit).
    reward_memory: GiB that one function may hold. It then runs in a child process, which is killed past this limit or
        past reward_timeout (0: it runs in the training process, without a limit).
    environment: dotted path of a class (`module:Class`) whose objects take turns with the model, with reset(row, seed)
        and step(text) -> (reply, reward, done), in place of reward functions. max_turns: the most turns of an episode.
        Here reward_timeout is for a rank's environments in one turn.
    keep_going: begin to train although a reward function raised when it was called once at start.
    eval_file: held-out rows for data_file runs; evaluation then reports the mean reward.
    filter_overlong_prompts: leave out training prompts that with gen_length exceed the model's context. Without it one
        such prompt is an error at start.

    max_steps: iterations of Algorithm 1 (sample, update, move theta_old). num_train_epochs: passes over the rows of a
        data set. As in transformers, max_steps counts where it is given (not -1), and else the epochs; with neither the
        run has 40 iterations.
    prompts_per_iteration, num_generations: prompts an iteration, and rollouts a prompt (N).
    objective: {name: ..., knob: ...}; the knobs are that objective's own (see lfpo.objectives).
    sampler: how rollouts are denoised. eval_samplers: name -> sampler; each is evaluated on eval_size held-out prompts
        before the first iteration, after every eval_steps iterations and after the last. Without evaluation:
        eval_steps 0.
    metric_for_best_model, greater_is_better: for callbacks such as transformers' EarlyStoppingCallback: a metric of the
        evaluation, SAMPLER/NAME or, of the first eval sampler, NAME. Without the second key it is one to raise, unless
        its name ends in "loss". The weights that are exported are the last ones all the same.
    engine: where rollouts are sampled: {name: local} in the trainer's processes, {name: ray, workers: 4,
        gpus_per_worker: 1} by workers beside it (see docs/engines.md and EngineSettings).
    lora: {r, lora_alpha, target_modules, experts}: train an adapter instead of all weights (see
        lfpo.config.models).
    dtype: of the weights; bfloat16 needs lora, whose factors stay float32. bf16: on a GPU, run the bodies of all
        forwards under bfloat16 autocast.
    head_precision: of all products with the head, in rollouts, losses and evaluation: float32 (exact), tf32 (inputs
        rounded to 10 bits of mantissa; slow on a CPU) or bfloat16 (to 7 bits). Sums and logits are float32 always; the
        probabilities that rollouts draw from are float64 with float32, else float32. auto: float32 on a CPU; on a GPU
        tf32, or bfloat16 for `dtype` bfloat16.
    merge_lora: for rollouts and evaluation, add the adapter to copies of the matrices, which take 2 bytes a weight
        under bf16. A forward then costs what it does without LoRA, and rounds base plus adapter to bfloat16 where it
        rounded their products. None: on a GPU, unless load_in_4bit, rollout_compile or `rollout_gather: layer` is set.
    load_in_4bit: keep the layers' matrices in bitsandbytes' NF4, an eighth of float32 (needs lora).
    fsdp: split weights, gradients and optimiser state over the ranks of `torchrun` (PyTorch's FSDP2). Without it every
        rank holds all of them. The result is the same.
    fsdp_size: ranks that one copy of the weights is split over (0: all). With the number of GPUs of a machine, weights
        are gathered within machines, and only gradients pass between them (HSDP); each machine then holds a copy.
    rollout_gather: with fsdp, what rollouts and evaluation gather on every rank: the whole model once, or each layer
        for every forward, which takes less memory and more traffic. The result is the same.
    rank_timeout: seconds without a sign of life after which a rank is lost and the others exit with code 75 (0: no
        limit). progress_timeout: seconds that a collective waits for a rank (the process group's timeout); above the
        longest time of rollouts, rewards or evaluation (0: no limit).
    offload_reference: keep the layers of theta_old (and of the base policy) in CPU memory. Each is copied to the GPU
        for its forward in the update, all of them for rollouts. The result is the same.
    optim: adamw_torch, or bitsandbytes' adamw_8bit (8-bit moments, a quarter of the memory), paged_adamw_8bit or
        paged_adamw_32bit (moments move to CPU memory when the GPU is full).
    gradient_checkpointing: keep only each layer's input for the backward pass; less memory, a third more compute.
    optimizer_steps_per_iteration: blocks that an iteration's rollouts are cut into, with an optimiser step after each.
    update_tokens, rollout_tokens: tokens computed at once. Memory and speed only, never the result.
    rollout_compile: run rollouts through torch.compile (for GPUs; compiling takes seconds to minutes).
    old_policy: theta_old in the loss, where engine.max_staleness is above 0: `reference`, the newest one, or `sampler`,
        the one that sampled the batch. A copy of each such version is kept in CPU memory until its last batch has been
        learned from. Without staleness they are the same.
    ema_decay: alpha in theta_old <- alpha theta_old + (1 - alpha) theta, after each iteration.
    average_decay: evaluate and export an average of theta over the optimiser steps, with at most this decay, instead of
        theta (0: theta itself; see lfpo.train.copies). Rollouts and updates do not depend on it.
    max_grad_norm: gradients are scaled down to this norm (0: never).
    threads: CPU threads of torch (0: torch's default).
    stop_on: rules of lfpo.runs.health that end the run, with a checkpoint, when they begin to hold: groups_agree,
        reward_falls, kl_runs_away, entropy_runs_away, threshold_slides. Each is also said in one line, whether it is
        listed or not; no_reward always ends the run.
    report_to: trackers that get metrics and completions beside the run's files: tensorboard, wandb, trackio (see
        lfpo.runs.trackers). log_completions: write rollouts and evaluated completions.
    push_to_hub: upload the trained model at the end, as `lfpo push` does, to hub_model_id (USER/NAME), a new repository
        being private if hub_private_repo.
    """

    model: str = "embedded"
    task: str | None = None
    data_file: str | None = None
    eval_file: str | None = None
    dataset_name: str | None = None
    dataset_config: str | None = None
    dataset_train_split: str = "train"
    dataset_test_split: str | None = None
    columns: dict[str, str] = field(default_factory=dict)
    map_row: str | None = None
    filter_overlong_prompts: bool = False
    reward_funcs: list[str] = field(default_factory=list)
    reward_weights: list[float] | None = None
    reward_timeout: Seconds = 1800.0
    reward_memory: NotNegative = 0.0
    environment: str | None = None
    max_turns: CountOrZero = 0
    keep_going: bool = False

    max_steps: CountOrUnset = UNSET
    prompts_per_iteration: Count = 16
    num_generations: Count = 8
    objective: dict[str, Any] = field(default_factory=lambda: {"name": "lfpo"})
    sampler: SamplerConfig = field(default_factory=lambda: SamplerConfig(temperature=1.0))
    eval_samplers: dict[str, SamplerConfig] = field(
        default_factory=lambda: {"greedy": SamplerConfig(), "threshold": SamplerConfig(threshold=0.9)}
    )
    engine: EngineSettings = field(default_factory=EngineSettings)
    dtype: Literal["float32", "bfloat16"] = "float32"
    merge_lora: bool | None = None
    load_in_4bit: bool = False
    rollout_gather: Literal["model", "layer"] = "model"
    offload_reference: bool = False
    optimizer_steps_per_iteration: Count = 4
    old_policy: Literal["reference", "sampler"] = "reference"
    ema_decay: ShareBelowOne = 0.0
    average_decay: ShareBelowOne = 0.0
    weight_decay: NotNegative = 0.0
    head_precision: Literal["auto", "float32", "tf32", "bfloat16"] = "auto"
    rollout_tokens: Count = 16384
    rollout_compile: bool = False

    eval_steps: CountOrZero = 10
    eval_size: CountOrZero = 200
    metric_for_best_model: str | None = None
    greater_is_better: bool | None = None
    log_completions: bool = True
    stop_on: list[str] = field(default_factory=list)
    push_to_hub: bool = False
    hub_model_id: str | None = None
    hub_private_repo: bool = True

    REFUSED: ClassVar[dict[str, str]] = TRAINING
    ALIASES: ClassVar[dict[str, str]] = {"dataset": "data_file", "lr": "learning_rate"}

    def __post_init__(self) -> None:
        super().__post_init__()
        self.objective = all_settings({"name": "lfpo", **self.objective})
        for rule in self.stop_on:
            if rule not in RULES:
                raise ValueError(f"'stop_on': {rule!r} is no rule{nearest(rule, RULES)}")
        for name in self.eval_samplers:
            if not name or "/" in name:
                raise ValueError(
                    f"'eval_samplers': the name {name!r} must be text without '/', which separates the parts of "
                    "metrics' names"
                )
        if not self.sampler.is_random:
            raise ValueError("sampler temperature 0 makes all rollouts of a prompt the same; set it above 0")
        if sum(given is not None for given in (self.task, self.data_file, self.dataset_name)) > 1:
            raise ValueError("give one of 'task', 'data_file' and 'dataset_name'")
        if self.task is not None and (self.columns or self.map_row):
            raise ValueError("'columns' and 'map_row' are for the rows of a data set; a task makes its own")
        if (self.task or self.data_file) and (self.dataset_config or self.dataset_test_split):
            raise ValueError("'dataset_config' and 'dataset_test_split' go with 'dataset_name'")
        if self.push_to_hub and self.hub_model_id is None:
            raise ValueError("'push_to_hub' needs 'hub_model_id': USER/NAME")
        if self.hub_model_id is not None:
            check_repo("hub_model_id", self.hub_model_id)
        if self.eval_file is not None and self.data_file is None:
            raise ValueError("'eval_file' goes with 'data_file'; a task brings its own test split")
        if self.merge_lora and self.lora is None:
            raise ValueError("'merge_lora' needs 'lora'")
        by_layer = self.rollout_gather == "layer"
        if by_layer and not self.fsdp:
            raise ValueError("'rollout_gather' layer is for 'fsdp: true'")
        moved = "a compiled forward needs its weights to stay where they are"
        for given, key, name, why in (
            (self.merge_lora, "'merge_lora'", "rollout_compile", moved),
            (by_layer, "'rollout_gather' layer", "merge_lora", "it needs whole weights"),
            (by_layer, "'rollout_gather' layer", "rollout_compile", "it needs whole weights"),
            (self.offload_reference, "'offload_reference'", "lora", "the reference is an adapter, and small"),
            (self.offload_reference, "'offload_reference'", "fsdp", "the reference is split over ranks already"),
            (self.offload_reference, "'offload_reference'", "rollout_compile", moved),
        ):
            if given and getattr(self, name):
                raise ValueError(f"{key} does not work with '{name}': {why}")
        if bool(self.environment) != bool(self.max_turns):
            raise ValueError("'environment' and 'max_turns', the most turns of an episode, go together")
        for name in ("max_staleness", "reward_workers"):
            if self.environment and getattr(self.engine, name):
                raise ValueError(f"'engine.{name}' does not work with 'environment', whose turns need the ones before")
        rollouts = self.prompts_per_iteration * self.num_generations
        if rollouts < self.optimizer_steps_per_iteration:
            raise ValueError(
                f"'optimizer_steps_per_iteration' {self.optimizer_steps_per_iteration} splits {rollouts} rollouts "
                f"(prompts_per_iteration x num_generations); set it to at most {rollouts}"
            )

    def merges_lora(self, device: str) -> bool:
        """Whether rollouts run on copies with the adapter added. device: "cuda" or "cpu"."""
        if self.lora is None or self.merge_lora is not None:
            return bool(self.merge_lora)
        whole = not self.load_in_4bit and not self.rollout_compile and self.rollout_gather == "model"
        return device == "cuda" and whole

    def length(self, rows: int) -> Length:
        """The length of a run on so many distinct training rows, 0 for prompts that are made without end."""
        batch, endless = self.prompts_per_iteration, f"task {self.task!r}"
        return run_length(self.max_steps, self.num_train_epochs, rows=rows, batch=batch, default=40, endless=endless)

    def evaluates_after(self, step: int) -> bool:
        """Whether an evaluation is due after `step` iterations (0: before the first)."""
        return bool(self.eval_steps and self.eval_samplers) and (step % self.eval_steps == 0 or step == self.max_steps)
