"""LLaDA's published sampling loop: whole padded rows, a forward at every step, logits at every position.

Benchmarks and tests compare the engine with it. Two of the engine's techniques can be switched on.
"""

from collections.abc import Sequence

import torch

from lfpo.core.forward import left_pad
from lfpo.models import MaskedDiffusionLM


@torch.no_grad()
def plain_rollout(
    model: MaskedDiffusionLM,
    prompts: Sequence[Sequence[int]],
    *,
    gen_length: int,
    block_length: int,
    steps: int,
    mask_padding: bool = True,
    skip_idle: bool = False,
    masked_logits: bool = False,
    cfg_scale: float = 0.0,
) -> tuple[torch.Tensor, int]:
    """Greedy low-confidence remasking of all prompts in one batch; returns tokens [B, gen_length] and forwards run.

    Differences from the published code: padding is masked, and the mask token is never chosen.
    mask_padding: False is as published: shorter prompts attend to their padding.
    skip_idle: no forward for steps that reveal nothing. masked_logits: run the head only at positions that a step can
        reveal. cfg_scale: unsupervised classifier-free guidance, with logits everywhere.
    """
    prompt_ids, prompt_mask = (x.to(model.device) for x in left_pad(prompts, model.pad_id))
    blank = torch.full((len(prompts), gen_length), model.mask_id, device=model.device)
    x = torch.cat([prompt_ids, blank], dim=1)
    attention = torch.cat([prompt_mask, torch.ones_like(blank)], dim=1) if mask_padding else None
    start, forwards = prompt_ids.shape[1], 0
    blocks = gen_length // block_length
    base, extra = divmod(block_length, steps // blocks)
    for block in range(blocks):
        end = start + (block + 1) * block_length
        for i in range(steps // blocks):
            count = base + (i < extra)
            if skip_idle and not count:
                continue
            forwards += 1
            masked = x == model.mask_id
            masked[:, end:] = False
            confidence = torch.full(x.shape, -torch.inf, dtype=torch.float64, device=model.device)
            guess = x.clone()
            if masked_logits and not cfg_scale:
                guess[masked], confidence[masked] = _best(model.head(model.hidden(x, attention)[masked]), model.mask_id)
            else:
                logits = model(x, attention)
                if cfg_scale:
                    unprompted = x.clone()
                    unprompted[:, :start] = model.mask_id
                    free = model(unprompted, attention)
                    logits = free + (cfg_scale + 1) * (logits - free)
                best, probability = _best(logits, model.mask_id)
                guess = torch.where(masked, best, x)
                confidence = torch.where(masked, probability, confidence)
            if count:
                chosen = confidence.topk(count, dim=-1).indices
                x.scatter_(1, chosen, guess.gather(1, chosen))
    return x[:, start:], forwards


def _best(logits: torch.Tensor, mask_id: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The most probable token that is not the mask, and its probability."""
    total = logits.logsumexp(-1)
    logits[..., mask_id] = -torch.inf
    best, index = logits.max(-1)
    return index, (best.double() - total).exp()
