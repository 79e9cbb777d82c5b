"""Tokens drawn from logits."""

from typing import NamedTuple

import torch

from lfpo.config.sampler import Sampler
from lfpo.core.rule import Score


class Drawn(NamedTuple):
    """What is drawn at T positions, on the model's device.

    token [T] int64: the drawn tokens.
    confidence [T] float64: probability of the drawn token at temperature 1.
    entropy [T] float64: entropy in nats of the distribution at temperature 1.
    rule_confidence [T] float64: what reveal rules take for the confidence: the same, or over a causal context the
        probability without the mask token's share, as in that family's samplers.
    score [T] float64: the reveal rule's score (see Rule); the rule_confidence if the rule has none.
    """

    token: torch.Tensor
    confidence: torch.Tensor
    entropy: torch.Tensor
    rule_confidence: torch.Tensor
    score: torch.Tensor


def draw_from_logits(
    logits_TV: torch.Tensor,
    sampler: Sampler,
    mask_id: int,
    uniform_T: torch.Tensor,
    score: Score | None = None,
    dtype: torch.dtype = torch.float64,
    without_mask: bool = False,
) -> Drawn:
    """Draw from logits [T, V] of any float dtype, with probabilities in `dtype`; see `draw`. Works in place where it
    can, to bound memory."""
    logp = logits_TV.log_softmax(-1, dtype=dtype)
    entropy = -logp.exp().mul_(logp).sum(-1)
    logp[:, mask_id] = -torch.inf
    scores = logp
    if sampler.temperature > 0:
        scores = scores / sampler.temperature
    if (sampler.temperature > 0 or score) and (sampler.top_k is not None or sampler.top_p is not None):
        scores = scores.masked_fill(~kept_tokens(scores, sampler.top_k, sampler.top_p), -torch.inf)
    token = scores.argmax(-1) if sampler.temperature == 0 else inverse_cdf(scores, uniform_T)
    confidence = logp.gather(1, token[:, None]).squeeze(1).exp()
    rule_confidence = confidence / logp.logsumexp(-1).exp() if without_mask else confidence
    scored = score(scores.softmax(-1), token) if score else rule_confidence
    return Drawn(token, confidence.double(), entropy.double(), rule_confidence.double(), scored.double())


def guided(logits: torch.Tensor, blind: torch.Tensor, cfg_scale: float) -> torch.Tensor:
    """Logits with classifier-free guidance (arXiv 2207.12598) at LLaDA's scale, where 0 is none: away from the `blind`
    ones, which did not see the prompt."""
    return blind + (cfg_scale + 1) * (logits - blind)


def inverse_cdf(scores_TV: torch.Tensor, uniform_T: torch.Tensor) -> torch.Tensor:
    """Draw from softmax(scores_TV) at each position by inverse transform sampling, [T] int64.

    The same distribution as LLaDA's argmax over logits plus Gumbel noise, with one random number instead of V.
    """
    cdf = scores_TV.softmax(-1).cumsum_(-1)
    total = cdf[:, -1:]
    # Strictly below the total, whatever the rounding: the first sum above it then belongs to a token with probability.
    place = torch.minimum(uniform_T[:, None].to(total.dtype) * total, torch.nextafter(total, torch.zeros_like(total)))
    # Clamped in case logits are not finite: an index out of range would abort the process on a GPU.
    return torch.searchsorted(cdf, place, right=True).squeeze(1).clamp(max=cdf.shape[1] - 1)


def kept_tokens(scores_TV: torch.Tensor, top_k: int | None, top_p: float | None) -> torch.Tensor:
    """The tokens that top-k and nucleus sampling keep at each position, [T, V] bool.

    scores_TV: logits over temperature, -inf for tokens that are never drawn.
    top_k: keep the k most probable tokens, and all that are as probable as the k-th.
    top_p: keep the most probable tokens until their probabilities sum to top_p, the one that crosses it included.
    With both, a token must pass both.
    """
    keep = scores_TV > -torch.inf
    if top_k is not None and top_k < scores_TV.shape[1]:
        keep &= scores_TV >= scores_TV.topk(top_k, dim=-1).values[:, -1:]
    if top_p is not None and top_p < 1:
        ordered, index = scores_TV.sort(dim=-1, descending=True, stable=True)
        probability = ordered.softmax(-1)
        before = probability.cumsum(-1) - probability
        keep &= torch.zeros_like(keep).scatter_(1, index, before < top_p)
    return keep
