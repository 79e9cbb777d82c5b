"""What one iteration of a recipe computes: the sampler's forwards, the objective's views, targets and policies."""

from dataclasses import dataclass
from importlib import import_module

import torch

from lfpo.config.json import Json
from lfpo.config.sampler import Sampler
from lfpo.config.train import LFPOConfig
from lfpo.core.learner import optimizer_blocks
from lfpo.core.model import BASE, CURRENT, OLD
from lfpo.core.objective import Objective
from lfpo.core.predictions import Predictions
from lfpo.core.schedule import reveal_schedule
from lfpo.core.structure import FULL, Structure
from lfpo.core.trajectory import Trajectory, of_completions
from lfpo.core.views import Views
from lfpo.models import init_model
from lfpo.models.layouts import LAYOUTS
from lfpo.plan.model import by_value

TOY: Json = {"d_model": 4, "n_layers": 1, "n_heads": 1, "mlp_hidden_size": 4, "vocab_size": 16, "init_std": 0.5}
TOY |= {"mask_token_id": 15, "eos_token_id": 14, "pad_token_id": 14}
TOY_ROLLOUTS = 8  # random masks have other sizes in each; the work is their mean

# Reveal rules that are a family's own sampler -> the module with its toy rollouts.
OWN_PLANS = {"canvas": "lfpo.contrib.canvases.plan"}


@dataclass(frozen=True)
class Work:
    """What an objective computes in one pass through the batch."""

    views: float  # of one rollout
    targets: float  # of one rollout
    most_targets: int  # of one view
    unit: int  # views that must share a pass
    before: float  # views of one rollout that run without gradients before the pass
    others: int  # policies beside CURRENT whose predictions the loss uses


@by_value
def count(objective: Objective, sampler: Sampler, *, structure: Structure = FULL, group: int = 1) -> Work:
    """The work of an objective on rollouts that do not stop early, counted by running it on toy rollouts.

    sampler: with its lengths set. structure: the model's, while it samples. group: rollouts of a prompt.
    """
    size = group if objective.whole_groups else TOY_ROLLOUTS
    trajectory = _toy(objective, sampler, structure, size)
    reward = torch.arange(size, dtype=torch.float64)  # they differ, so that there are advantages
    signal = objective.signal(reward, torch.zeros(size).long())
    views, before = objective.views(trajectory.in_rounds(), torch.ones_like(signal), list(range(size)), 0), [0]
    if own := OWN_PLANS.get(sampler.rule_name):
        views, more = import_module(own).noised(views, list(range(size)), TOY["vocab_size"])
        before.append(more)
    model = init_model({**LAYOUTS["llada-8b"], **TOY, "block_length": structure.block_length}, seed=0)
    policies = {CURRENT: model, OLD: model.frozen_copy(), BASE: model.frozen_copy()}
    most_targets = int(views.target.sum(-1).max())

    def logp(views: Views, policy: str) -> torch.Tensor:
        before.append(len(views))
        return Predictions(views, policies).logp(policy)

    with torch.no_grad():
        views = objective.before_passes(views, logp)
    unit = int(views.unit.unique(return_counts=True)[1].max())
    predictions = Predictions(views.select((views.unit == views.unit[0]).nonzero().flatten()), policies)
    objective.loss(predictions, signal)
    others = len(set(predictions.used) - {CURRENT})
    return Work(len(views) / size, float(views.target.sum()) / size, most_targets, unit, sum(before) / size, others)


def fullest_rank(args: LFPOConfig, objective: Objective, ranks: int) -> list[int]:
    """The most rollouts that one rank has in each optimiser step of an iteration; the other ranks wait for it."""
    shares = torch.arange(args.prompts_per_iteration).tensor_split(ranks)  # as lfpo.core.collectives.own_indices
    prompts = torch.tensor([len(share) for share in shares])
    rank_R = torch.arange(ranks).repeat_interleave(prompts * args.num_generations)
    return [
        int(rank_R[block].bincount(minlength=ranks).amax()) for block in optimizer_blocks(args, objective, iteration=0)
    ]


def sampling_work(
    sampler: Sampler, prompt_length: int, shift: bool, *, structure: Structure = FULL, group: int = 1
) -> tuple[int, float]:
    """Forwards of one rollout that does not stop early, and all tokens that run for it. Forwards that only store a
    finished block are not among the first.

    shift: the family's logit shift. The other arguments are those of `count`.
    """
    if sampler.rule_name == "canvas":
        canvases, size = sampler.gen_length // sampler.block_length, sampler.block_length
        forwards = canvases * sampler.canvas.max_denoising_steps
        return forwards, prompt_length + (forwards + canvases - 1) * size  # and each finished canvas is read
    steps = int((_revealed(sampler, structure) > 0).sum())  # of a block
    if structure.block_length is not None:
        size = sampler.block_length
        blocks = sampler.gen_length // size
        forwards = steps * blocks
        forwards += blocks * sampler.max_post_steps if sampler.edits else 0
        # The first forward runs the prompt and the first block, once for all rollouts of the prompt. The others run a
        # block each, and so do those that store each finished block but the last. Over a causal context the first runs
        # the prompt alone, and where the context predicts first tokens, those that store a block are among the others.
        if not structure.causal:
            return forwards, (prompt_length + size) / group + (forwards - 1 + blocks - 1) * size
        stores = blocks - 1 if sampler.first_token == "masked" else -1
        return forwards, prompt_length / group + (forwards + stores) * size
    # Every forward runs the whole row, or with a cache those that renew it; the others run the window.
    row, tokens = prompt_length + sampler.gen_length, 0
    starts = range(0, sampler.gen_length, sampler.block_length)
    for start in starts:
        renewals = steps
        if sampler.cache != "none":
            renewals = 1 if sampler.cache_refresh is None else -(-steps // sampler.cache_refresh)
        window = sampler.block_length if sampler.cache == "dual" else sampler.gen_length - start
        tokens += renewals * row + (steps - renewals) * (window + int(shift))
    passes = 2 if sampler.cfg_scale else 1
    return passes * steps * len(starts), passes * tokens


def _revealed(sampler: Sampler, structure: Structure) -> torch.Tensor:
    """Tokens that each step of a block reveals, by the sampler's schedule, or one where it has none; where the causal
    context predicts it, the first token alone comes first."""
    counts, size = reveal_schedule(sampler), sampler.block_length
    counts = counts if len(counts) else torch.ones(size, dtype=torch.long)
    if not structure.causal or sampler.first_token == "masked":
        return counts
    done = counts.cumsum(0).clamp(max=size - 1)  # the last step finds one less
    return torch.cat([torch.ones(1, dtype=torch.long), done.diff(prepend=torch.zeros(1, dtype=torch.long))])


def _toy(objective: Objective, sampler: Sampler, structure: Structure, size: int) -> Trajectory:
    """`size` rollouts, with a prompt of one token or one block, revealed from left to right."""
    counts, blocks = _revealed(sampler, structure), sampler.gen_length // sampler.block_length
    own = OWN_PLANS.get(sampler.rule_name)
    if own is not None:
        counts = import_module(own).step_counts(sampler)
    steps = torch.arange(len(counts) * blocks).repeat_interleave(counts.repeat(blocks))
    prompt = torch.ones(size, structure.block_length or 1, dtype=torch.long)
    tokens = torch.ones(size, sampler.gen_length, dtype=torch.long)
    trajectory = of_completions(
        prompt,
        prompt,
        tokens,
        steps.repeat(size, 1),
        sampler=sampler,
        mask_id=TOY["mask_token_id"],
        eos_id=TOY["eos_token_id"],
        structure=structure,
        scheduled_steps=torch.full((size,), len(counts) * blocks),
    )
    if own is not None:
        trajectory = import_module(own).toy(trajectory)
    return objective.planned(trajectory)
