"""Tokens drawn from hidden states, a bounded number of positions at a time."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from lfpo.models import MaskedDiffusionLM
from lfpo.rollout.reveal import kept_tokens
from lfpo.rollout.sampler import SamplerConfig

# Logits held at once: 128 MiB in float64, and a few tensors of that size. Pieces under 32 MiB come from glibc's heap,
# which fragments: at 2**21 the same rollout took ten times the memory.
CHUNK_ELEMENTS = 2**24


@dataclass(frozen=True)
class Drawn:
    """What is drawn at T positions, each [T].

    confidence: probability of the drawn token at temperature 1. entropy: of that distribution, in nats.
    score: what Dream's `alg` ranks positions by; the confidence without one. All but the token are float64.
    """

    token: torch.Tensor
    confidence: torch.Tensor
    entropy: torch.Tensor
    score: torch.Tensor


def draw(
    model: MaskedDiffusionLM, hidden_TD: list[torch.Tensor], sampler: SamplerConfig, uniform_T: torch.Tensor
) -> Drawn:
    """Draw a token at each of T positions; the mask token is never drawn.

    hidden_TD: hidden states, with guidance followed by those without the prompt. uniform_T: float64 in [0, 1), the only
    randomness. Memory is bounded by CHUNK_ELEMENTS: the logits of all positions never exist together.
    """
    size = max(1, CHUNK_ELEMENTS // model.vocab_size)
    parts = []
    for start in range(0, len(uniform_T), size):
        piece = slice(start, start + size)
        logits = model.head(hidden_TD[0][piece])
        if sampler.cfg_scale:
            unguided = model.head(hidden_TD[1][piece]).double()
            logits = unguided + (sampler.cfg_scale + 1) * (logits - unguided)
        parts.append(draw_from_logits(logits, sampler, model.mask_id, uniform_T[piece]))
    names = ("token", "confidence", "entropy", "score")
    return Drawn(*(torch.cat([getattr(p, n) for p in parts]) for n in names))


def draw_from_logits(logits_TV: torch.Tensor, sampler: SamplerConfig, mask_id: int, uniform_T: torch.Tensor) -> Drawn:
    """The same from logits [T, V]. Large tensors are reused where they are not needed any more."""
    logp = logits_TV.log_softmax(-1, dtype=torch.float64)
    entropy = -logp.exp().mul_(logp).sum(-1)
    logp[:, mask_id] = -torch.inf
    scores = logp
    if sampler.temperature > 0:
        scores = scores / sampler.temperature
    if (sampler.temperature > 0 or sampler.alg) and (sampler.top_k is not None or sampler.top_p is not None):
        scores = scores.masked_fill(~kept_tokens(scores, sampler.top_k, sampler.top_p), -torch.inf)
    token = scores.argmax(-1) if sampler.temperature == 0 else inverse_cdf(scores, uniform_T)
    confidence = logp.gather(1, token[:, None]).squeeze(1).exp()
    score = confidence if sampler.alg in (None, "origin") else dream_score(scores, token, sampler.alg)
    return Drawn(token, confidence, entropy, score)


def inverse_cdf(scores_TV: torch.Tensor, uniform_T: torch.Tensor) -> torch.Tensor:
    """A draw from softmax(scores) at each position, by where a uniform number falls among the summed probabilities.

    The same distribution as the published argmax over logits plus Gumbel noise, with one random number for V.
    """
    cdf = scores_TV.softmax(-1).cumsum_(-1)
    total = cdf[:, -1:]
    # Below the total even when rounding would reach it; so the first sum above it belongs to a token that can be drawn.
    place = torch.minimum(uniform_T[:, None] * total, torch.nextafter(total, torch.zeros_like(total)))
    # Clamped for logits that are not finite: an index past the end would take a GPU's whole process down.
    return torch.searchsorted(cdf, place, right=True).squeeze(1).clamp(max=cdf.shape[1] - 1)


def dream_score(scores_TV: torch.Tensor, token_T: torch.Tensor, alg: str) -> torch.Tensor:
    """What Dream ranks positions by, from the distribution that tokens are drawn from, [T]."""
    probability = scores_TV.softmax(-1)
    if alg == "maskgit_plus":
        return probability.gather(1, token_T[:, None]).squeeze(1)
    if alg == "topk_margin":
        first, second = probability.topk(2, dim=-1).values.unbind(-1)
        return first - second
    return (probability * (probability + 1e-10).log()).sum(-1)
