"""Published sampling procedures, written out plainly: whole rows, every step, no shortcuts.

One row at a time, because the procedures do not handle padding. Confidences are computed in float64, as in the
engine, so that ties are broken alike; the mask token is never drawn.
"""

from typing import Any

import torch

from benchmarks.plain import plain_rollout
from lfpo.models import MaskedDiffusionLM


def generate(model: MaskedDiffusionLM, prompt: list[int], **settings: Any) -> list[int]:
    """LLaDA's greedy low-confidence remasking of one row: the plain loop of the benchmarks."""
    return plain_rollout(model, [prompt], **settings)[0][0].tolist()


@torch.no_grad()
def dream_generate(
    model: MaskedDiffusionLM,
    prompt: list[int],
    *,
    steps: int,
    gen_length: int,
    alg: str,
    eps: float = 1e-3,
    top_k: int | None = None,
    top_p: float | None = None,
) -> tuple[list[int], list[int]]:
    """Dream's sampler at temperature 0 and alg_temp 0: tokens, and the step that revealed each.

    Ties go to the left. Dream's own code takes them from torch.topk, which leaves their order open.
    """
    start = len(prompt)
    x = torch.tensor(prompt + [model.mask_id] * gen_length)
    reveal = [-1] * gen_length
    time = torch.linspace(1, eps, steps + 1)
    for i in range(steps):
        masked = (x == model.mask_id).nonzero().flatten()
        logits = model(x[None])[0, masked].double()
        logits[:, model.mask_id] = -torch.inf
        if top_k is not None:
            logits[logits < logits.topk(top_k).values[:, -1:]] = -torch.inf
        if top_p is not None:
            ordered, index = logits.sort(-1, descending=True)
            drop = ordered.softmax(-1).cumsum(-1) > top_p
            drop = torch.cat([torch.zeros_like(drop[:, :1]), drop[:, :-1]], 1)
            logits[torch.zeros_like(drop).scatter(1, index, drop)] = -torch.inf
        p = logits.softmax(-1)
        confidence, guess = p.max(-1)
        if alg == "topk_margin":
            ordered = p.sort(-1, descending=True).values
            confidence = ordered[:, 0] - ordered[:, 1]
        elif alg == "entropy":
            confidence = (p * torch.log(p + 1e-10)).sum(-1)
        t, s = time[i], time[i + 1]
        count = int(len(masked) * (1 - s / t)) if i < steps - 1 else len(masked)
        for j in confidence.sort(descending=True, stable=True).indices[:count].tolist():
            x[masked[j]] = guess[j]
            reveal[int(masked[j]) - start] = i
    return x[start:].tolist(), reveal


@torch.no_grad()
def cached_generate(
    model: MaskedDiffusionLM,
    prompt: list[int],
    *,
    gen_length: int,
    block_length: int,
    dual: bool,
    refresh: int | None = None,
) -> tuple[list[int], list[int], list[float]]:
    """The cached samplers, greedy and one token a step, without a cache: tokens, reveal steps, confidences.

    A forward runs two copies of the row at once: the state when the cache was filled, and after it the window as it is
    now. The old state attends to itself only, so its keys and values are those of the cache, in every layer. The window
    attends to itself and to the old state's tokens outside the window.
    """
    start, length = len(prompt), len(prompt) + gen_length
    x = torch.tensor([prompt + [model.mask_id] * gen_length])
    old = x.clone()
    reveal, sure = [-1] * gen_length, [0.0] * gen_length
    for step in range(gen_length):
        block, i = divmod(step, block_length)
        begin = start + block * block_length
        end = begin + block_length
        if i % (refresh or block_length) == 0:
            old = x.clone()
            hidden = model.hidden(x)[:, begin:end]
        else:
            first, last = begin - int(model.family.shift), end if dual else length
            window = torch.arange(first, last)
            sees = torch.zeros(length + len(window), length + len(window), dtype=torch.bool)
            sees[:length, :length] = True
            sees[length:] = True
            sees[length:, first:last] = False
            hidden = model.backbone.model(
                input_ids=torch.cat([old, x[:, window]], dim=1),
                attention_mask=sees[None, None],
                position_ids=torch.cat([torch.arange(length), window])[None],
                use_cache=False,
            ).last_hidden_state[:, length : length + block_length]
        p = model.head(hidden)[0].double().softmax(-1)
        p[:, model.mask_id] = 0
        confidence, guess = p.max(-1)
        confidence[x[0, begin:end] != model.mask_id] = -1
        best = int(confidence.argmax())
        at = begin - start + best
        x[0, begin + best] = guess[best]
        reveal[at], sure[at] = step, float(confidence[best])
    return x[0, start:].tolist(), reveal, sure
