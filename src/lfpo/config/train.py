"""The configuration of `lfpo train`."""

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from lfpo.config.checks import Count, CountOrUnset, CountOrZero, NotNegative, ShareBelowOne, refuse
from lfpo.config.data import ProblemConfig
from lfpo.config.engine import EngineSettings
from lfpo.config.export import check_repo
from lfpo.config.length import UNSET, Length, run_length
from lfpo.config.objectives import ObjectiveSettings, all_settings
from lfpo.config.other_names import TRAINING
from lfpo.config.sampler import SamplerConfig
from lfpo.config.training import PolicyConfig

# The rules of lfpo.runs.health.
StopRule = Literal[
    "no_reward",
    "empty_completions",
    "groups_agree",
    "no_signal",
    "answers_alike",
    "reward_falls",
    "kl_runs_away",
    "entropy_runs_away",
    "threshold_slides",
    "accuracy_falls",
    "reward_rises_alone",
]


@dataclass
class LFPOConfig(ProblemConfig, PolicyConfig):
    """Configuration of RL training. Names are TRL's where TRL has the same thing."""

    filter_overlong_prompts: bool = False
    """Leave out training prompts that with gen_length exceed the model's context. Without it one such prompt is an
    error at start."""

    multi_objective_aggregation: Literal["sum_then_normalize", "normalize_then_sum"] = "sum_then_normalize"
    """How several rewards become one signal: the advantage of their weighted sum, or the weighted sum of each
    function's own advantages within the group, so that none is lost beside one that varies more (GDPO, arXiv
    2601.05242)."""

    environment: str | None = None
    """Dotted path of a class (`module:Class`) whose objects take turns with the model, with reset(row, seed) and
    step(text) -> (reply, reward, done), in place of reward functions."""

    max_turns: CountOrZero = 0
    """The most turns of an episode; goes with `environment`."""

    keep_going: bool = False
    """Begin to train although a reward function raised when it was called once at start."""

    max_steps: CountOrUnset = UNSET
    """Iterations of Algorithm 1: sample, update, move theta_old. The name is TRL's, which counts optimiser steps: an
    iteration has optimizer_steps_per_iteration of them in each of the objective's num_iterations passes. As in
    transformers they count where they are given (not -1), and else num_train_epochs; with neither the run has 40
    iterations."""

    prompts_per_iteration: Count = 16
    """Prompts of an iteration."""

    num_generations: Count = 8
    """Rollouts of each prompt (N)."""

    objective: ObjectiveSettings = field(default_factory=lambda: {"name": "lfpo"})
    """{name: ..., knob: ...}: an objective's name or dotted path, and its own knobs (see docs/objectives.md)."""

    sampler: SamplerConfig = field(default_factory=lambda: SamplerConfig(temperature=1.0))
    """How rollouts are denoised."""

    eval_samplers: dict[str, SamplerConfig] = field(
        default_factory=lambda: {"greedy": SamplerConfig(), "threshold": SamplerConfig(threshold=0.9)}
    )
    """Name -> sampler. Each is evaluated on eval_size held-out prompts before the first iteration, after every
    eval_steps iterations and after the last."""

    engine: EngineSettings = field(default_factory=EngineSettings)
    """Where rollouts are sampled: {name: local} in the trainer's processes, {name: ray, workers: 4, gpus_per_worker: 1}
    by workers beside it."""

    merge_lora: bool | None = None
    """For rollouts and evaluation, add the adapter to copies of the matrices, which take 2 bytes a weight under bf16. A
    forward then costs what it does without LoRA, and rounds base plus adapter to bfloat16 where it rounded their
    products. None: on a GPU, unless load_in_4bit, rollout_compile or `rollout_gather: layer` is set."""

    rollout_gather: Literal["model", "layer"] = "model"
    """With fsdp, what rollouts and evaluation gather on every rank: the whole model once, or each layer for every
    forward, which takes less memory and more traffic. The result is the same."""

    offload_reference: bool = False
    """Keep the layers of theta_old (and of the base policy) in CPU memory. Each is copied to the GPU for its forward in
    the update, all of them for rollouts. The result is the same."""

    optimizer_steps_per_iteration: Count = 4
    """Blocks that an iteration's rollouts are cut into, with an optimiser step after each."""

    ema_decay: ShareBelowOne = 0.0
    """alpha in theta_old <- alpha theta_old + (1 - alpha) theta, after each iteration."""

    average_decay: ShareBelowOne = 0.0
    """Evaluate and export an average of theta over the optimiser steps, with at most this decay, instead of theta (0:
    theta itself; see lfpo.train.average). Rollouts and updates do not depend on it."""

    weight_decay: NotNegative = 0.0

    rollout_tokens: Count = 16384
    """Tokens computed at once in rollouts and evaluation. Memory and speed only, never the result."""

    rollout_compile: bool = False
    """Run rollouts through torch.compile (for GPUs; compiling takes seconds to minutes)."""

    eval_steps: CountOrZero = 10
    """Iterations between two evaluations (0: none is made, nor before the first and after the last)."""

    eval_size: CountOrZero = 200
    """Held-out prompts of an evaluation."""

    metric_for_best_model: str | None = None
    """For callbacks such as transformers' EarlyStoppingCallback: a metric of the evaluation, SAMPLER/NAME or, of the
    first eval sampler, NAME. The weights that are exported are the last ones all the same."""

    greater_is_better: bool | None = None
    """Whether metric_for_best_model is one to raise (None: yes, unless its name ends in "loss")."""

    log_completions: bool = True
    """Write rollouts and evaluated completions into the run's folder."""

    stop_on: list[StopRule] = field(default_factory=list)
    """Rules of lfpo.runs.health that end the run, with a checkpoint, when they begin to hold. Each is also said in one
    line, whether it is listed or not; no_reward always ends the run."""

    push_to_hub: bool = False
    """Upload the trained model at the end, as `lfpo push` does, to hub_model_id."""

    hub_model_id: str | None = None
    """USER/NAME, the repository of push_to_hub."""

    hub_private_repo: bool = True
    """Whether a new repository is private."""

    REFUSED: ClassVar[dict[str, str]] = TRAINING
    ALIASES: ClassVar[dict[str, str]] = {"dataset": "data_file", "lr": "learning_rate"}

    def __post_init__(self) -> None:
        super().__post_init__()
        self.objective = all_settings({"name": "lfpo", **self.objective})
        self.check_data()
        if self.hub_model_id is not None:
            check_repo("hub_model_id", self.hub_model_id)
        slashed = [name for name in self.eval_samplers if "/" in name]  # it separates the parts of metrics' names
        by_layer, turns, engine = self.rollout_gather == "layer", self.environment is not None, self.engine
        offloads, compiled, merges = self.offload_reference, self.rollout_compile, self.merge_lora
        steps, rollouts = self.optimizer_steps_per_iteration, self.prompts_per_iteration * self.num_generations
        moves, whole = "a compiled forward needs its weights to stay where they are", "it needs whole weights"
        ahead = "does not work with 'environment', whose turns need the ones before"
        refuse(
            (not self.sampler.is_random, "sampler temperature 0 makes all rollouts of a prompt the same; raise it"),
            (slashed, f"'eval_samplers': {slashed} must be text without '/'"),
            # Keys that nothing reads without another one.
            (
                self.eval_file and not self.data_file,
                "'eval_file' goes with 'data_file'; a task brings its own test split",
            ),
            (self.push_to_hub and not self.hub_model_id, "'push_to_hub' goes with 'hub_model_id', USER/NAME"),
            (merges and self.lora is None, "'merge_lora' goes with 'lora'"),
            (by_layer and not self.fsdp, "'rollout_gather' layer goes with 'fsdp: true'"),
            (turns != bool(self.max_turns), "'environment' goes with 'max_turns', the most turns of an episode"),
            # Keys that exclude each other. Without these lines a run would fail only once it samples or updates.
            (merges and compiled, f"'merge_lora' does not work with 'rollout_compile': {moves}"),
            (by_layer and merges, f"'rollout_gather' layer does not work with 'merge_lora': {whole}"),
            (by_layer and compiled, f"'rollout_gather' layer does not work with 'rollout_compile': {whole}"),
            (
                offloads and self.lora,
                "'offload_reference' does not work with 'lora': the reference is an adapter, and small",
            ),
            (offloads and self.fsdp, "'offload_reference' does not work with 'fsdp': the reference is split already"),
            (offloads and compiled, f"'offload_reference' does not work with 'rollout_compile': {moves}"),
            (turns and engine.max_staleness, f"'engine.max_staleness' {ahead}"),
            (turns and engine.reward_workers, f"'engine.reward_workers' {ahead}"),
            (
                rollouts < steps,
                f"'optimizer_steps_per_iteration' {steps} splits {rollouts} rollouts; set it to at most {rollouts}",
            ),
        )

    def merges_lora(self, device: str) -> bool:
        """Whether rollouts run on copies with the adapter added. device: "cuda" or "cpu"."""
        if self.lora is None or self.merge_lora is not None:
            return bool(self.merge_lora)
        possible = not self.load_in_4bit and not self.rollout_compile and self.rollout_gather == "model"
        return device == "cuda" and possible

    def length(self, rows: int) -> Length:
        """The length of a run on so many distinct training rows, 0 for prompts that are made without end."""
        batch = self.prompts_per_iteration
        return run_length(self.max_steps, self.num_train_epochs, rows=rows, batch=batch, default=40)

    def evaluates_after(self, step: int) -> bool:
        """Whether an evaluation is due after `step` iterations (0: before the first)."""
        return bool(self.eval_steps and self.eval_samplers) and (step % self.eval_steps == 0 or step == self.max_steps)
