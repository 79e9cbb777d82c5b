"""Model FLOPs: the arithmetic that a method needs. Padding and recomputation are not counted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from lfpo.models import MaskedDiffusionLM
from lfpo.models.experts import active_weights
from lfpo.models.four_bit import original_shape
from lfpo.models.structure import FULL, Structure
from lfpo.objectives.views import Views
from lfpo.rollout.trajectory import Trajectory

NO_PLACE = -2  # instead of a step, where a row has no completion


@dataclass
class Meter:
    """Adds up model FLOPs."""

    flops: float = 0.0


def forward_flops(
    model: MaskedDiffusionLM,
    lengths: torch.Tensor,
    predicted: int,
    queries: torch.Tensor | None = None,
    structure: Structure = FULL,
) -> float:
    """FLOPs of one forward over rows of the given lengths [B], int64, with the head at `predicted` positions in all.

    queries [B]: tokens of each row that are run, where the others' keys and values are cached (None: all are run).
    structure: which tokens attend to which, where all are run.
    """
    layers = [(name, p) for name, p in model.backbone.named_parameters() if "layers." in name]
    body = sum(
        active_weights(model.backbone, name, original_shape(p).numel()) for name, p in layers if _runs(model, name)
    )
    run = (structure.tokens(lengths) if queries is None else queries).double()
    pairs = structure.pairs(lengths) if queries is None else run * lengths
    return model_flops(model.backbone.config, body, float(run.sum()), float(pairs.sum()), predicted)


def model_flops(config: Any, weights: float, tokens: float, pairs: float, predicted: float) -> float:
    """FLOPs of running `tokens` tokens through a body of `weights` weights, and the head at `predicted` positions.

    config: transformers configuration. pairs: (token, key that it attends to) in a layer.
    Counts 2 for each weight of the body and token, 4 H E for each pair in a layer of H heads of width E, and 2 for each
    weight of the head and predicted position.
    """
    width = config.num_attention_heads * head_dim(config)  # in some models not the hidden size
    attention = 4 * config.num_hidden_layers * width * pairs
    return 2 * weights * tokens + attention + 2 * config.vocab_size * config.hidden_size * predicted


def head_dim(config: Any) -> int:
    """Width of an attention head of a transformers configuration."""
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


def update_flops(model: MaskedDiffusionLM, views: Views, *, backward: bool) -> float:
    """FLOPs of predicting the targets of `views`, and of the backward pass if there is one: two forwards, or one with
    LoRA."""
    lengths, targets = views.attention_mask.sum(-1), int(views.target.sum())
    once = forward_flops(model, lengths, targets, structure=views.structure)
    if not backward:
        return once
    return 3 * once if model.adapter is None else 2 * once  # frozen weights need no gradients


def _runs(model: MaskedDiffusionLM, name: str) -> bool:
    """Whether this policy's forward uses a parameter: it uses no adapter but its own."""
    return "lora_" not in name or f".{model.adapter}." in name


def rollout_flops(model: MaskedDiffusionLM, trajectory: Trajectory) -> float:
    """FLOPs of the forwards that sampled a trajectory; each predicts the masked positions of the active blocks.

    A model that attends block by block sees half of its completion on average. Where the sampler edits, each forward
    predicts all completion positions of the active block.
    """
    t, lengths = trajectory, trajectory.prompt_mask.sum(-1) + trajectory.tokens.shape[1]
    if t.structure.block_length:
        lengths = t.prompt_mask.sum(-1) + (t.reveal_step >= 0).sum(-1) / 2
    predicted = _predicted_with_edits(t) if t.sampler.edits else _predicted(t)
    guidance = 2 if t.sampler.cfg_scale else 1
    return forward_flops(model, lengths, guidance * predicted, t.queries)


def _predicted(t: Trajectory) -> int:
    """Masked positions of the active blocks, summed over the forwards of all rows."""
    steps_BC = t.reveal_step
    block = t.sampler.block_length or steps_BC.shape[1]
    if t.structure.block_length:
        steps_BC = _in_blocks(steps_BC, t.prompt_mask.sum(-1) % block, block)
    predicted = 0
    for start in range(0, steps_BC.shape[1], block):
        # A position is predicted at each distinct step of its block up to its own, or at all if it is never revealed.
        steps = steps_BC[:, start : start + block]
        own = steps.masked_fill(steps < 0, torch.iinfo(steps.dtype).max)
        earlier = steps[:, None, :] <= own[:, :, None]
        first = torch.ones_like(earlier).tril(-1) & (steps[:, None, :] == steps[:, :, None])
        distinct = ~first.any(-1)  # the first position of each step
        predicted += int(
            (earlier & distinct[:, None, :] & (steps >= 0)[:, None, :] & (steps > NO_PLACE)[:, :, None]).sum()
        )
    return predicted


def _predicted_with_edits(t: Trajectory) -> int:
    """Completion positions of the active blocks, summed over the forwards of all rows. The first block of a row is the
    only one that holds prompt tokens, and the first forward of the next one reveals something."""
    assert t.structure.block_length
    block_BC, never = t.block_BC, torch.iinfo(torch.long).max
    later = (block_BC > block_BC[:, :1]) & (t.reveal_step >= 0)
    of_first_B = torch.minimum(t.nfe, t.reveal_step.masked_fill(~later, never).amin(-1))
    prompt_B = t.prompt_mask.sum(-1) % t.structure.block_length
    return int((t.nfe * t.structure.block_length - prompt_B * of_first_B).sum())


def _in_blocks(step_BC: torch.Tensor, offset_B: torch.Tensor, block: int) -> torch.Tensor:
    """reveal_step with each row moved right by its prompt tokens in the first block, so that column n belongs to block
    n // block of every row; NO_PLACE elsewhere."""
    width = step_BC.shape[1] + block - 1
    moved = step_BC.new_full((len(step_BC), width + -width % block), NO_PLACE)
    return moved.scatter_(1, torch.arange(step_BC.shape[1], device=step_BC.device) + offset_B[:, None], step_BC)
