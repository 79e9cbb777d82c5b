"""What several tests of training set up: an optimiser step's parts with differing policies, and a short run on rows."""

import copy
import dataclasses
import functools
import tempfile
from pathlib import Path
from typing import Any

import torch

import tiny
from lfpo.config.build import build
from lfpo.config.sampler import SamplerConfig
from lfpo.config.train import LFPOConfig
from lfpo.contrib.kept import KeptTrajectory
from lfpo.contrib.mdpo import MDPO
from lfpo.core.completions import tensor_fields
from lfpo.core.engine import Variant
from lfpo.core.model import BASE, CURRENT, OLD
from lfpo.core.objective import Objective
from lfpo.core.trajectory import Trajectory
from lfpo.core.views import Views
from lfpo.models import load_model
from lfpo.objectives import make_objective
from lfpo.rollout.sampling import rollout
from lfpo.train.rl import LFPOTrainer

# lfpo-paper: states that the sampler visited, one pass, the whole mean subtracted, equal weights.
LFPO_PAPER: dict[str, Any] = {"name": "lfpo", "states": "stratified", "timesteps": 4, "num_iterations": 1}
LFPO_PAPER |= {"baseline": 1.0, "deviation": "batch", "clip": 1.0, "target_weight": "equal"}
# The default in its fewest steps, for tests of what surrounds the update.
ONE_PASS: dict[str, Any] = {"name": "lfpo", "num_iterations": 1}
KNOBS: dict[str, dict[str, Any]] = {
    "lfpo": {"timesteps": 3},
    "diffu_grpo": {"p_mask_prompt": 0.5},
    "spg": {"block_length": 4, "num_masks": 3},
    "agrpo": {"mc_samples": 3, "beta": 0.1},
    "trace_rl": {"shrink": 2},
    "rejection": {"masks": 3},
    "slim_rl": {"epsilon": 0.5},
    "ebpo": {"mc_samples": 3, "beta": 0.1},
    "mask_aware": {"mc_samples": 3, "epsilon": 0.5, "epsilon_high": 0.5},
    "gdsd": {"epsilon": 0.5},
    "rldf": {"states": 3, "threshold": 0.01},
    "bgpo": {"mc_samples": 3},
    "egspo": {"steps": 3},
    "mdpo": {"steps": 3},
    "stable_drl": {"block_length": 4, "num_masks": 3, "shared_masks": True},
}


@functools.cache
def policies_of(family: str) -> dict[str, Any]:
    """Three policies that differ, of the tiny checkpoint of a family, in float64. All tests share them."""
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = tiny.WRITERS[family](Path(folder) / family)
        models: dict[str, Any] = {CURRENT: load_model(checkpoint, dtype=torch.float64)}
    for seed, other in enumerate((OLD, BASE)):
        models[other] = copy.deepcopy(models[CURRENT])
        g = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for p in models[other].parameters():
                p.add_(0.02 * torch.randn(p.shape, generator=g, dtype=p.dtype))
    return models


def step_of(family: str, name: str, **knobs: Any) -> tuple[Objective, dict[str, Any], Views, torch.Tensor]:
    """An objective, three policies that differ, its views of four rollouts, and the signal of each; float64.

    No policy is frozen: nothing but the objective keeps gradients away from the old one and the base. A test that
    changes weights must copy the policy first.
    """
    models = dict(policies_of(family))
    for model in models.values():
        model.zero_grad()
    objective = make_objective({"name": name, **KNOBS.get(name, {}), **knobs})
    t = rewarded(objective, _rolled_once(family, objective.variant(SHORT)))
    rewards = torch.tensor([1.0, 0.0, 1.0, 0.5], dtype=torch.float64)
    group = torch.tensor([0, 0, 1, 1])
    signal = objective.signal(rewards, group)
    return objective, models, objective.views(t, signal, [1, 2, 3, 4], 0), signal


SHORT = SamplerConfig(gen_length=8, temperature=0.8, top_k=100, steps=4).for_length(8)


@functools.cache
def _rolled_once(family: str, variant: Variant | None) -> Trajectory:
    """Rollouts of the old policy. No objective changes them."""
    prompts = [[5, 6, 7], [5, 6, 7], [9, 10, 11, 12, 13], [9, 10, 11, 12, 13]]
    return rollout(policies_of(family)[OLD], prompts, SHORT, [1, 2, 3, 4], variant=variant)


def rolled(objective: Objective, model: Any, prompts: list[list[int]]) -> Trajectory:
    """Four rollouts that an objective can use."""
    return rewarded(objective, rollout(model, prompts, SHORT, [1, 2, 3, 4], variant=objective.variant(SHORT)))


def rewarded(objective: Objective, t: Trajectory) -> Trajectory:
    """Four rollouts of two prompts, their kept predictions rewarded where the objective needs that."""
    if not isinstance(objective, MDPO):
        return t
    assert isinstance(t, KeptTrajectory)
    of_states = torch.tensor([[0.0, 0, 1, 1], [0, 1, 0, 0], [1, 0, 1, 1], [0, 0, 0, 0.5]], dtype=torch.float64)
    return dataclasses.replace(t, advantage=objective.step_advantages(of_states, torch.tensor([0, 0, 1, 1])))


def same(a: Trajectory, b: Trajectory) -> bool:
    """Whether two trajectories hold the same bits."""
    return all(torch.equal(value, tensor_fields(b)[name]) for name, value in tensor_fields(a).items())


def trained_on_rows(checkpoint: Path, task: str, output: Path, **sizes: int) -> list[dict[str, Any]]:
    """Train a tiny checkpoint, given a chat template, on a task's local rows; the lines of metrics with a reward."""
    tiny.with_chat_template(checkpoint)
    args = LFPOConfig(
        output_dir=str(output),
        task=task,
        prompts_per_iteration=2,
        optimizer_steps_per_iteration=1,
        objective=ONE_PASS,
        sampler=SamplerConfig(gen_length=8, temperature=1.0),
        eval_samplers={"greedy": SamplerConfig(gen_length=8)},
        **sizes,
    )
    trainer = LFPOTrainer(str(checkpoint), args=args)
    trainer.train()
    return [row for row in trainer.run.read_metrics() if "reward" in row]


def choice_config(folder: Path, model: Path | str, **settings: Any) -> LFPOConfig:
    """A short training of `choice` by a reward that any model gets some of, with a checkpoint each iteration."""
    values: dict[str, Any] = {"output_dir": str(folder), "model": str(model), "task": "choice"}
    values |= {"prompts_per_iteration": 2, "num_generations": 4, "optimizer_steps_per_iteration": 2, "eval_size": 2}
    values |= {"save_steps": 1, "learning_rate": 1e-2, "reward_funcs": ["reward_samples.even_tokens"]}
    values |= {"objective": ONE_PASS}
    return build(LFPOConfig, values | settings)


def whole_and_resumed(folder: Path, model: Path, steps: int, **settings: Any) -> tuple[LFPOTrainer, LFPOTrainer]:
    """Trainers of `choice_config` after a run in one go, and after one that was resumed from its first iteration."""
    settings = {"eval_steps": 0, **settings}
    whole = LFPOTrainer(args=choice_config(folder / "whole", model, max_steps=steps, **settings))
    whole.train()
    LFPOTrainer(args=choice_config(folder / "parts", model, max_steps=1, **settings)).train()
    resumed = LFPOTrainer(args=choice_config(folder / "parts", model, max_steps=steps, **settings))
    resumed.train(resume=True)
    return whole, resumed
