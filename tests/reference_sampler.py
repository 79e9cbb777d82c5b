"""The published LLaDA sampling procedure, transcribed plainly: whole rows, every step, no shortcuts.

One row at a time, because the procedure has no notion of padding. The confidence is computed in float64, as in the
engine, so that ties are broken alike; the mask token is never drawn.
"""

from __future__ import annotations

import torch

from lfpo.models import MaskedDiffusionLM


@torch.no_grad()
def generate(
    model: MaskedDiffusionLM,
    prompt: list[int],
    *,
    steps: int,
    gen_length: int,
    block_length: int,
    cfg_scale: float = 0.0,
    on_step=None,
) -> list[int]:
    """Greedy low-confidence remasking. on_step(step, completion) is called before every scheduled step."""
    start = len(prompt)
    x = torch.tensor([prompt + [model.mask_id] * gen_length])
    blocks = gen_length // block_length
    per_block = steps // blocks
    step = 0
    for block in range(blocks):
        base, extra = divmod(block_length, per_block)
        for i in range(per_block):
            if on_step is not None:
                on_step(step, x[0, start:].clone())
            step += 1
            is_mask = x == model.mask_id
            logits = model(x)
            if cfg_scale > 0:
                blank = x.clone()
                blank[:, :start] = model.mask_id
                free = model(blank)
                logits = free + (cfg_scale + 1) * (logits - free)
            drawable = logits.clone()
            drawable[..., model.mask_id] = -torch.inf
            guess = drawable.argmax(-1)
            probability = logits.double().softmax(-1).gather(-1, guess[..., None])[..., 0]
            probability[:, start + (block + 1) * block_length :] = -torch.inf
            probability[~is_mask] = -torch.inf
            count = base + (i < extra)
            if count:
                chosen = probability[0].topk(count).indices
                x[0, chosen] = guess[0, chosen]
    return x[0, start:].tolist()
