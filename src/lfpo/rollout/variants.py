"""What rollouts may need beside plain denoising: caches, blocks, causal contexts, edits, and the
confidence stop."""

import dataclasses

import torch

from lfpo.config.errors import UserError
from lfpo.config.json import Json
from lfpo.config.sampler import Sampler
from lfpo.core.engine import Request
from lfpo.core.forward import Forward, completion_columns
from lfpo.core.hooks import Hook
from lfpo.core.model import MaskedDiffusionLM
from lfpo.core.rule import Rule
from lfpo.rollout.cached import ApproximateCache, DoubledForward, StoredBlocks
from lfpo.rollout.edits import EditRecord
from lfpo.rollout.reveal.early_stop import stopping_early

# Reveal rules that are a family's own sampler (MaskedDiffusionLM.own_rule): no mask is filled in.
OWN_RULES = {"canvas"}


def variant(
    model: MaskedDiffusionLM,
    unit: Request,
    sampler: Sampler,
    rule: Rule,
    hook: Hook | None,
    *,
    store_blocks: bool,
) -> Json:
    """Arguments of lfpo.core.denoise for a request. sampler: its sampler, with lengths filled in. rule: its reveal
    rule. hook, store_blocks: see lfpo.rollout.sampling.rollout. Raises UserError for settings that do not go with the
    model."""
    check_context(sampler, model)
    causal, forward_type = model.sampling_structure(sampler.block_length).causal, Forward
    if model.block_length and store_blocks:
        forward_type = StoredBlocks
    elif causal:
        forward_type = DoubledForward
    elif sampler.cache != "none":
        forward_type = ApproximateCache
    if causal:  # what a forward reveals is not known before it
        rule = dataclasses.replace(rule, plan=None)
    if sampler.stops_at_confidence:
        rule = stopping_early(rule)

    hooks = [] if hook is None else [hook]
    if sampler.edits:
        shape = (len(unit.prompts), completion_columns(sampler, model))
        like = torch.empty(shape, dtype=torch.long, device=model.device)
        hooks.append(EditRecord(like))
    arguments: Json = {"rule": rule, "forward_type": forward_type, "hooks": hooks}
    if unit.variant is None:
        return arguments
    return unit.variant(model, dataclasses.replace(unit, sampler=sampler), arguments)


def check_context(sampler: Sampler, model: MaskedDiffusionLM, where: str = "sampler") -> None:
    """Raise UserError, beginning with `where`, for settings that do not go with how the model attends."""
    rule, own = sampler.rule_name, model.own_rule
    if own is not None and rule != own:
        raise UserError(
            f"{where}.rule: {model.family.name} models are sampled by the rule {own!r} alone; set it to {own}"
        )
    if own is None and rule in OWN_RULES:
        raise UserError(
            f"{where}.rule: {model.family.name} models fill in masks, and {rule!r} has none; take another rule"
        )
    if sampler.cache != "none" and "sliding_attention" in (getattr(model.backbone.config, "layer_types", None) or ()):
        raise UserError(
            f"{where}: cache {sampler.cache!r} is for models whose layers attend to all tokens, and those of "
            f"{model.family.name} models also attend within windows; leave it out"
        )
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
