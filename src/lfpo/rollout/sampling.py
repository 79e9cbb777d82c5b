"""Rollouts as a sampler's settings ask for them: lfpo.core.denoise with the reveal rule, the forwards and the hooks
that they need."""

import functools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from lfpo.config.errors import UserError
from lfpo.config.reveal import own_rule
from lfpo.config.sampler import SamplerConfig
from lfpo.core.denoise import Finished, Forwarded, denoise
from lfpo.core.encoding import misfit
from lfpo.core.engine import Request
from lfpo.core.forward import Forward, Hook, completion_columns, sampling_structure
from lfpo.core.model import MaskedDiffusionLM
from lfpo.core.reveal import Rule
from lfpo.core.rollouts import LocalEngine
from lfpo.core.trajectory import Trajectory
from lfpo.rollout.cached import ApproximateCache, DoubledForward, StoredBlocks
from lfpo.rollout.canvas import denoise_canvases
from lfpo.rollout.edits import EditRecord
from lfpo.rollout.kept import KeptPredictions
from lfpo.rollout.reveal import RULES

DEFAULT_LENGTH = 128  # completion length in tokens if the sampler gives none


def rollout(
    model: MaskedDiffusionLM,
    prompts: Sequence[Sequence[int]],
    sampler: SamplerConfig,
    seeds: Sequence[int],
    *,
    rollout_tokens: int = 16384,
    hook: Hook | None = None,
    finished: Finished | None = None,
    forwarded: Forwarded | None = None,
    compiled: bool = False,
    keep_steps: Sequence[int] = (),
    store_blocks: bool = True,
) -> Trajectory:
    """Denoise one completion for each of B prompts.

    prompts: B lists of token ids, of any lengths.
    seeds: B integers; row i's noise is a function of seeds[i].
    rollout_tokens: tokens of one forward, so rows x length run at once. With a cache a row's forward is its window,
        and keys and values of at most CACHED times rollout_tokens are held (see lfpo.core.forward). It bounds memory
        and never changes a result beyond rounding.
    hook: called after each forward, before the rows change (see lfpo.core.forward.Hook).
    finished: called with rows as they are finished: their indices, ascending, and their trajectory.
    forwarded: called after each forward with the number of its rows, long before the first of them is finished.
    compiled: run forwards through torch.compile, padded to few shapes. Worth it on a GPU and in long runs.
    store_blocks: a model that attends block by block computes a block against the stored keys and values of the blocks
        before it, which is exact. False computes whole rows, for measuring what that saves.
    keep_steps: scheduled steps whose whole predictions the trajectory keeps (see lfpo.rollout.kept). They change no
        token, but the head then runs at all masked positions, not at those of the active block alone.

    Returns a trajectory of B rows in the order of the prompts, on the model's device; P is the longest prompt's length,
    C = sampler.gen_length (DEFAULT_LENGTH if None).
    Raises UserError where there are no prompts or one does not fit the model, for a reveal rule that reveals nothing,
    and for keep_steps with a cache or a model that attends block by block.
    """
    sampler = sampler.fitted("sampler", DEFAULT_LENGTH, model.block_length)
    check_context(sampler, model)
    if not prompts:
        raise UserError("no prompts to sample from; give at least one")
    for number, prompt in enumerate(prompts):
        if reason := misfit(prompt, model, sampler.gen_length or 0):
            raise UserError(f"prompt {number}: {reason}")
    request = Request(prompts, seeds, sampler, keep_steps=keep_steps)
    limits = {"rollout_tokens": rollout_tokens, "compiled": compiled}
    observers = {"finished": finished, "forwarded": forwarded}
    return run_unit(model, request, hook=hook, store_blocks=store_blocks, **limits, **observers)


def run_unit(
    model: MaskedDiffusionLM, unit: Request, *, hook: Hook | None = None, store_blocks: bool = True, **options: Any
) -> Trajectory:
    """The trajectories of a request whose rows are sampled together and fit the model. options: further arguments
    of `rollout`."""
    check_context(unit.sampler, model)
    if model.uniform:
        return _canvases(model, unit, hook=hook, **options)
    sampler, rule = unit.sampler, find_rule(unit.sampler.rule_name)
    if not (sampler.gen_length and sampler.block_length and (sampler.steps or rule.schedule is None)):
        sampler = sampler.fitted("sampler", DEFAULT_LENGTH, model.block_length)
    make_forward: Callable[..., Forward] = Forward
    stores = bool(model.block_length) and store_blocks
    if stores:
        make_forward = StoredBlocks
    elif sampling_structure(sampler, model).causal:
        make_forward = DoubledForward
    elif sampler.cache != "none":
        make_forward = ApproximateCache

    hooks = [] if hook is None else [hook]
    if unit.keep_steps or sampler.edits:
        shape = (len(unit.prompts), completion_columns(sampler, model))
        like = torch.empty(shape, dtype=torch.long, device=model.device)
        hooks += [KeptPredictions(unit.keep_steps, like, sampler, model)] if unit.keep_steps else []
        hooks += [EditRecord(like)] if sampler.edits else []
    run = partial(
        denoise, make_forward=make_forward, hooks=hooks, whole_completion=bool(unit.keep_steps), stores=stores
    )
    return run(model, unit.prompts, sampler, unit.seeds, rule, **options)


def _canvases(
    model: MaskedDiffusionLM, unit: Request, *, hook: Hook | None, compiled: bool = False, **options: Any
) -> Trajectory:
    """`run_unit` where noise is uniform. Raises UserError for what needs tokens that are revealed once."""
    for name, value in (("rollout_compile", compiled), ("keep_steps", unit.keep_steps), ("hook", hook)):
        if value:
            raise UserError(f"{name}: {model.family.name} models revise their tokens, which does not go with it")
    sampler = unit.sampler.fitted("sampler", DEFAULT_LENGTH, model.block_length)
    return denoise_canvases(model, unit.prompts, sampler, unit.seeds, **options)


def check_context(sampler: SamplerConfig, model: MaskedDiffusionLM, where: str = "sampler") -> None:
    """Raise UserError, beginning with `where`, for settings that go with a causal context only, or not with one."""
    if model.uniform != (sampler.rule_name == "canvas"):
        what = "are sampled by the rule 'canvas' alone" if model.uniform else "fill in masks, and 'canvas' has none"
        advice = "set it to canvas" if model.uniform else "take another rule"
        raise UserError(f"{where}.rule: {model.family.name} models {what}; {advice}")
    causal = bool(model.block_length) and model.causal_context
    if sampler.first_token is not None and not causal:
        raise UserError(
            f"{where}: first_token {sampler.first_token!r} is for models with a causal context, and "
            f"{model.family.name} models have none; leave it out"
        )
    if sampler.edits and causal:
        raise UserError(
            f"{where}: editing_threshold {sampler.editing_threshold} is LLaDA2.1's, and {model.family.name} models "
            "were not trained to revise tokens; leave it out"
        )


def as_it_is(model: MaskedDiffusionLM, rollout_tokens: int = 16384) -> LocalEngine:
    """An engine that samples from a model in this process, without getting it ready."""
    engine = LocalEngine(run_unit, rollout_tokens=rollout_tokens)
    engine.update(0, model)
    return engine


@functools.cache
def find_rule(name: str) -> Rule:
    """The reveal rule of this name or dotted path (SamplerConfig.rule_name); a plain function becomes `Rule(function)`.

    Raises UserError for an unknown name, a path that leads nowhere, or an object that is neither.
    """
    rule = RULES.get(name) or own_rule(name)
    return rule if isinstance(rule, Rule) else Rule(rule)
