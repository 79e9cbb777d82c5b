"""Preference training, `lfpo dpo`: each step draws pairs and masks and follows the gradient of VRPO's loss."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F

from lfpo.config.dpo import DPOConfig
from lfpo.config.errors import UserError
from lfpo.config.json import Json
from lfpo.config.sampler import Sampler
from lfpo.core import collectives
from lfpo.core.batch_metrics import means_of_sums
from lfpo.core.forward import left_pad
from lfpo.core.learner import accumulate_gradients
from lfpo.core.model import BASE, CURRENT
from lfpo.core.observer import Observer
from lfpo.core.passes import logp_at_targets
from lfpo.core.rng import key, python_rng
from lfpo.core.structure import PolicyForward
from lfpo.core.trajectory import Trajectory, of_completions
from lfpo.core.views import Views
from lfpo.models import MaskedDiffusionLM
from lfpo.models.mask_token import check_masks
from lfpo.models.policies import load_policies
from lfpo.objectives.vrpo import VRPO, elbos
from lfpo.plan.flops import pass_flops
from lfpo.prompts.examples import Preference, preference, task_pair
from lfpo.prompts.tasks import DataTask, Task, get_task
from lfpo.runs.context import Context
from lfpo.train.examples import (
    ExampleTrainer,
    Source,
    encode_example,
    of_data_set,
    own_examples,
    sampled_length,
    train_on_examples,
)
from lfpo.train.setup import check_ranks

# A pair's prompt and its two completions, chosen first, as token ids; completions end with EOS or fill gen_length.
Pair = tuple[list[int], list[int], list[int]]


def train_dpo(config: DPOConfig, **options: Any) -> Path:
    """Train; returns the final model's folder. options: resume and report, as of `train_on_examples`."""
    return train_on_examples(DPOTrainer, config, **options)


class DPOTrainer(ExampleTrainer):
    """What a run of `lfpo dpo` trains."""

    kind = "dpo"

    def __init__(self, config: DPOConfig):
        check_ranks(config, "dpo", "batch_size")
        self.policies, self.tokenizer = load_policies(config, None, None, needs_old=False, needs_base=True)
        model = self.policies[CURRENT].train()
        check_masks(model, "lfpo dpo")
        self.objective = VRPO(mc_samples=config.mc_samples, beta=config.beta, after_eos=config.after_eos)
        super().__init__(config, model, _pairs(config, self.tokenizer, model))
        self.state |= {"seconds": 0.0, "flops": 0.0}

    def run_iteration(self, step: int, context: Context) -> Json:
        """One optimiser step; metrics every logging_steps."""
        config, started, observer, passes = self.args, time.perf_counter(), Observer(), list[PolicyForward]()
        observer.passes, first = passes, self.first_of(step)
        numbers = [first + i for i in own_examples(config.batch_size)]
        pairs = {(config.seed, "pair", number): self.draw(number) for number in numbers}
        views, options = self._views(self.objective, pairs)
        # VRPO reads no rewards: it compares the two rows of a pair. The loop takes some for every objective.
        signal = torch.zeros(2 * len(pairs), dtype=torch.float64, device=self.model.device)
        loss, measures = accumulate_gradients(
            self.objective, self.policies, views, signal, observer=observer, **options
        )
        about_step = self.update(step, loss, context)
        self.state["seconds"] += time.perf_counter() - started
        self.state["flops"] += collectives.sum_number(sum(pass_flops(self.policies[ran.policy], ran) for ran in passes))
        sums, done = {name: value.tolist() for name, value in measures.items()}, step + 1
        means = means_of_sums(collectives.gather(sums))
        if done % config.logging_steps and done < self.total_steps:
            return {}
        metrics = {"step": done, **about_step, **means}
        spent = {"time/total": self.state["seconds"], "flops": self.state["flops"]}
        return metrics | {"skipped_updates": self.state["skipped"]} | spent

    @torch.no_grad()
    def evaluate(self, step: int, context: Context) -> dict[str, float]:
        """On held-out pairs, with the same masks each time: eval/preference_accuracy, the share of pairs whose chosen
        completion the policy gives the larger ELBO; eval/rewards/accuracies and eval/rewards/margins of the rewards
        beta (e - e_base), as TRL names them (0 before training); eval/loss."""
        config, totals, world = self.args, dict[str, float](), collectives.world()
        own_indices = own_examples(len(self.held_out))
        many = replace(self.objective, mc_samples=config.eval_masks)
        # With split weights forwards are collectives: a rank without pairs of its own runs some that do not count.
        for start in range(0, -(-len(self.held_out) // world) if config.fsdp else len(own_indices), config.batch_size):
            batch = own_indices[start : start + config.batch_size]
            views, options = self._views(many, {("held-out pair", i): self.held_out[i] for i in batch or (0,)})
            now, base = (
                elbos(views, logp_at_targets(self.policies, views, policy, observer=Observer(), **options))
                for policy in (CURRENT, BASE)
            )
            reward = config.beta * (now.double() - base.double())
            difference = reward[::2] - reward[1::2]
            for name, value in {
                "preference_accuracy": now[::2] > now[1::2],
                "rewards/accuracies": difference > 0,
                "rewards/margins": difference,
                "loss": -F.logsigmoid(difference),
            }.items():
                totals[name] = totals.get(name, 0.0) + float(value.sum()) * bool(batch)
        sums = collectives.gather(totals)
        return {f"eval/{name}": sum(part[name] for part in sums if part) / len(self.held_out) for name in sums[0]}

    def _views(self, objective: VRPO, pairs: Mapping[Any, Pair]) -> tuple[Views, Json]:
        """The masked views of pairs, and how passes through them are made. pairs: by the parts of their masks' key."""
        trajectory = as_trajectory(list(pairs.values()), self.model)
        seeds = [key(*purpose, side) for purpose in pairs for side in ("chosen", "rejected")]
        dummy = None
        if self.args.fsdp:  # a pass of the first pair that does not count (see with_dummy_passes)
            pair = trajectory.rows(torch.arange(2, device=trajectory.tokens.device))
            dummy = self.objective.mask_views(pair, torch.ones_like(pair.tokens, dtype=torch.bool)[None])
        views = objective.views(trajectory, torch.zeros(len(trajectory)), seeds, 0)
        return views, {"update_tokens": self.args.update_tokens, "dummy": dummy}


def as_trajectory(pairs: Sequence[Pair], model: MaskedDiffusionLM) -> Trajectory:
    """Pairs as 2 P rollouts, rows 2p and 2p + 1 of pair p, all revealed at one step; on the model's device. Where the
    model attends block by block, a row ends as a rollout would, with the block that holds its first EOS."""
    ids, mask = left_pad([prompt for prompt, *_ in pairs for _ in range(2)], model.pad_id)
    tokens = torch.tensor([side for _, *sides in pairs for side in sides])
    length = tokens.shape[1]
    revealed = torch.ones_like(tokens, dtype=torch.bool)
    if model.block_length is not None:
        ends = torch.tensor([sampled_length(prompt, side, model) for prompt, *sides in pairs for side in sides])
        tokens = F.pad(tokens, (0, model.block_length - 1), value=model.eos_id)
        revealed = torch.arange(tokens.shape[1]) < ends[:, None]
    trajectory = of_completions(
        ids,
        mask,
        tokens,
        revealed.long() - 1,
        sampler=Sampler(gen_length=length, block_length=length),
        mask_id=model.mask_id,
        eos_id=model.eos_id,
        structure=model.structure,
    )
    return trajectory.to(model.device)


def _pairs(config: DPOConfig, tokenizer: object, model: MaskedDiffusionLM) -> Source[Pair]:
    """The pairs of the configuration's data set or tasks."""

    def encode(pair: Preference, length: int, where: str) -> Pair:
        prompt, *completions = pair
        (ids, chosen), (_, rejected) = (
            encode_example(tokenizer, model, prompt, completion, length, where) for completion in completions
        )
        return ids, chosen, rejected

    if not config.tasks:
        return of_data_set(config, lambda row, where: encode(preference(row, where), config.gen_length, where))

    tasks: dict[str, Task] = {}
    for name in config.tasks:
        task = get_task(name)
        if isinstance(task, DataTask):
            raise UserError(f"task {name!r}: pairs are made from demonstrations of generated tasks; give 'data_file'")
        tasks[name] = task
    length = max(task.gen_length for task in tasks.values())

    def from_tasks(index: int, split: str = "train") -> Pair:
        rng = python_rng(config.seed, "pair", split, index)
        name = rng.choices(list(tasks), weights=list(config.tasks.values()))[0]
        return encode(task_pair(tasks[name], split, index, config.seed), length, f"task {name}")

    return from_tasks, [from_tasks(i, "test") for i in range(config.eval_size)], 0
