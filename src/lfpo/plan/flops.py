"""Model FLOPs: the arithmetic that a method needs. Padding and recomputation are not counted."""

from typing import Any

import torch

from lfpo.core.structure import FULL, PolicyForward, Structure
from lfpo.core.trajectory import Trajectory
from lfpo.models import MaskedDiffusionLM
from lfpo.models.experts import active_weights
from lfpo.models.four_bit import original_shape

NEVER = 2**62  # instead of a step, where a position was not revealed
NO_PLACE = NEVER + 1  # where a row has no completion


def forward_flops(
    model: MaskedDiffusionLM,
    lengths: torch.Tensor,
    predicted: int,
    queries: torch.Tensor | None = None,
    structure: Structure = FULL,
    prompts: torch.Tensor | None = None,
) -> float:
    """FLOPs of one forward over rows of the given lengths [B], int64, with the head at `predicted` positions in all.

    queries [B]: tokens of each row that are run, where the others' keys and values are cached (None: all are run).
    structure: which tokens attend to which, where all are run. prompts [B]: prompt tokens of each row, int64, read in
        the doubled layout.
    """
    prompts = torch.zeros_like(lengths) if prompts is None else prompts
    body = sum(
        active_weights(model.backbone, name, original_shape(p).numel())
        for name, p in model.backbone.named_parameters()
        if "layers." in name and ("lora_" not in name or f".{model.adapter}." in name)  # it uses no adapter but its own
    )
    run = (structure.tokens(lengths, prompts) if queries is None else queries).double()
    pairs = structure.pairs(lengths, prompts) if queries is None else run * lengths
    return model_flops(model.backbone.config, body, float(run.sum()), float(pairs.sum()), predicted)


def model_flops(config: Any, weights: float, tokens: float, pairs: float, predicted: float) -> float:
    """FLOPs of running `tokens` tokens through a body of `weights` weights, and the head at `predicted` positions.

    config: transformers configuration. pairs: (token, key that it attends to) in a layer.
    Counts 2 for each weight of the body and token, 4 H E for each pair in a layer of H heads of width E, and 2 for each
    weight of the head and predicted position. Sliding windows count as full attention.
    """
    widths = (layer.num_attention_heads * head_dim(layer) for layer in layer_configs(config))
    attention = 4 * sum(widths) * pairs
    return 2 * weights * tokens + attention + 2 * config.vocab_size * config.hidden_size * predicted


def layer_configs(config: Any) -> list[Any]:
    """The configuration of each layer: in some models they differ in the number of heads and in their width."""
    differ, layers = getattr(config, "is_heterogeneous", False), range(config.num_hidden_layers)
    return [config.per_layer_config[layer] if differ else config for layer in layers]


def head_dim(config: Any) -> int:
    """Width of an attention head of a layer's configuration; in some models heads are not as wide as the states."""
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


def pass_flops(model: MaskedDiffusionLM, ran: PolicyForward) -> float:
    """FLOPs of predicting the targets of views, and of the backward pass if there is one: two forwards, or one with
    LoRA."""
    sizes = (ran.length_S, int(ran.targets))
    once = forward_flops(model, *sizes, structure=ran.structure, prompts=ran.prompt_S)
    if not ran.backward:
        return once
    return 3 * once if model.adapter is None else 2 * once  # frozen weights need no gradients


def rollout_flops(model: MaskedDiffusionLM, trajectory: Trajectory) -> float:
    """FLOPs of the forwards that sampled a trajectory; each predicts the masked positions of the active blocks. A model
    that attends block by block sees half of its completion on average. Where the sampler edits, each forward predicts
    all completion positions of the active block. One of a canvas predicts all of it, and its expected embeddings are
    one more product with the head."""
    t, lengths = trajectory, trajectory.prompt_mask.sum(-1) + trajectory.tokens.shape[1]
    if t.structure.block_length:
        lengths = t.prompt_mask.sum(-1) + (t.reveal_step >= 0).sum(-1) / 2
    if t.asks_about_all:
        return forward_flops(model, lengths, 2 * int(t.nfe.sum()) * t.sampler.block_length, t.queries)
    predicted = _predicted_with_edits(t) if t.sampler.edits else _predicted(t)
    guidance = 2 if t.sampler.cfg_scale else 1
    return forward_flops(model, lengths, guidance * predicted, t.queries)


def _predicted(t: Trajectory) -> int:
    """Masked positions of the active blocks, summed over the forwards of all rows: a position is predicted at each
    distinct step of its block up to its own, or at all of them if it is never revealed."""
    size, length = t.reveal_step.shape
    block = t.sampler.block_length
    # A row's first block may also hold the end of its prompt: its completion is moved right by as many columns.
    prompts = t.prompt_mask.sum(-1).tolist()
    offset_B = torch.tensor([t.structure.shared(n) for n in prompts], device=t.nfe.device)
    width = length + block - 1
    step_BC = t.reveal_step.new_full((size, width + -width % block), NO_PLACE)
    column_BC = torch.arange(length, device=step_BC.device) + offset_B[:, None]
    step_BC.scatter_(1, column_BC, t.reveal_step.masked_fill(t.reveal_step < 0, NEVER))
    own = step_BC.view(size, -1, block).sort(-1).values
    new = (own.diff(dim=-1, prepend=own[..., :1] - 1) > 0) & (own < NEVER)
    positions = (new.cumsum(-1) * (own < NO_PLACE)).sum()
    if t.from_context is not None:  # at the step that reveals a block's first token the others are not predicted
        positions -= ((t.reveal_step >= 0) & ~t.from_context).sum()
    return int(positions)


def _predicted_with_edits(t: Trajectory) -> int:
    """Completion positions of the active blocks, summed over the forwards of all rows. The first block of a row is the
    only one that holds prompt tokens, and the first forward of the next one reveals something."""
    assert t.structure.block_length
    later = (t.block_BC > t.block_BC[:, :1]) & (t.reveal_step >= 0)
    of_first_B = torch.minimum(t.nfe, t.reveal_step.masked_fill(~later, NEVER).amin(-1))
    prompt_B = t.prompt_mask.sum(-1) % t.structure.block_length
    return int((t.nfe * t.structure.block_length - prompt_B * of_first_B).sum())
