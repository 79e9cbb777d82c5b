"""A lower bound of log p(answer | prompt) under a masked diffusion model, as in LLaDA's evaluation.

Mask l of the answer's L tokens, l uniform on 1..L, and sum the log-probabilities of the masked tokens with weight L/l.
The expectation over l and the masks is a lower bound of the log-likelihood (arXiv 2502.09992, Eq. 6), and equal to it
for an answer of one token.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional as F

from lfpo.base.batching import pack_by_tokens
from lfpo.base.errors import UserError
from lfpo.base.rng import uniform
from lfpo.eval.settings import LikelihoodConfig
from lfpo.models import MaskedDiffusionLM
from lfpo.objectives.ops.chunked import in_chunks

# Purposes of random numbers.
COUNTS, MASKS = range(2)


@dataclass(frozen=True)
class Pair:
    """prompt, answer: token ids, at least one each. seed: keys the noise."""

    prompt: list[int]
    answer: list[int]
    seed: int


@dataclass(frozen=True)
class Bound:
    """logp: the estimate in nats. nfe: forwards. exact: whether every way of masking was computed."""

    logp: float
    nfe: int
    exact: bool


def maskings(length: int, seed: int, mc_num: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Masked tokens of each noised copy, bool [M, L], and the weight of its sum of log-probabilities, float64 [M].

    With at most mc_num ways of masking, the copies are all of them, weighted by probability, and the result is exact.
    Otherwise there are mc_num copies, whose counts l are evenly spaced over 1..L from a random start, so that each
    count is equally likely in each copy.
    """
    if 2**length - 1 <= mc_num:
        ways = [way for way in itertools.product((False, True), repeat=length) if any(way)]
        masked = torch.tensor(ways)
        weights = [1 / (sum(way) * math.comb(length, sum(way))) for way in ways]
        return masked, torch.tensor(weights, dtype=torch.float64)
    key, copy = torch.tensor(seed), torch.arange(mc_num)
    place = (uniform(key, COUNTS, 0) + copy.double() / mc_num) % 1
    count = (place * length).long().clamp(max=length - 1) + 1
    noise = uniform(key, MASKS, copy[:, None], torch.arange(length))
    masked = torch.argsort(noise, dim=-1, stable=True).argsort(-1) < count[:, None]
    return masked, length / count.double() / mc_num


@torch.no_grad()
def likelihood_bounds(
    model: MaskedDiffusionLM, pairs: Sequence[Pair], config: LikelihoodConfig, *, tokens: int = 16384
) -> list[Bound]:
    """The bound of each pair. tokens: rows x length in one forward; it changes results by rounding only.

    Raises UserError for a model that attends block by block.
    """
    if model.block_length is not None:
        raise UserError(
            f"model {model.source or model.family.name} attends in blocks of {model.block_length} tokens, and scoring "
            "by likelihood knows only full attention; evaluate it on tasks that are sampled"
        )
    was_training = model.training
    model.eval()
    plans = [maskings(len(pair.answer), pair.seed, config.mc_num) for pair in pairs]
    copies = [(i, m) for i, (masked, _) in enumerate(plans) for m in range(len(masked))]
    total = torch.zeros(len(pairs), dtype=torch.float64)
    for pack in pack_by_tokens([len(pairs[i].prompt) + len(pairs[i].answer) for i, _ in copies], tokens):
        chosen = [copies[k] for k in pack]
        summed = _masked_logp(
            model, [pairs[i] for i, _ in chosen], [plans[i][0][m] for i, m in chosen], config.cfg_scale
        )
        weight = torch.stack([plans[i][1][m] for i, m in chosen])
        total.index_add_(0, torch.tensor([i for i, _ in chosen]), weight * summed)
    model.train(was_training)
    forwards = 2 if config.cfg_scale else 1
    return [
        Bound(float(logp), forwards * len(masked), 2 ** len(pair.answer) - 1 <= config.mc_num)
        for logp, (masked, _), pair in zip(total, plans, pairs, strict=True)
    ]


def _masked_logp(
    model: MaskedDiffusionLM, rows: Sequence[Pair], masked: Sequence[torch.Tensor], cfg_scale: float
) -> torch.Tensor:
    """The sum of log-probabilities of each row's masked answer tokens, float64 [B]. Rows are padded on the right."""
    width = max(len(r.prompt) + len(r.answer) for r in rows)
    clean = torch.full((len(rows), width), model.pad_id)
    attention = torch.zeros_like(clean)
    prompt, target = torch.zeros_like(clean, dtype=torch.bool), torch.zeros_like(clean, dtype=torch.bool)
    for b, row in enumerate(rows):
        start, end = len(row.prompt), len(row.prompt) + len(row.answer)
        clean[b, :end] = torch.tensor(row.prompt + row.answer)
        attention[b, :end] = 1
        prompt[b, :start] = True
        target[b, start:end] = masked[b]
    clean, attention, prompt, target = (x.to(model.device) for x in (clean, attention, prompt, target))
    noised = clean.masked_fill(target, model.mask_id)
    hidden = [model.hidden(noised, attention)[target], clean[target]]
    if cfg_scale:
        hidden.append(model.hidden(noised.masked_fill(prompt, model.mask_id), attention)[target])

    def logp(hidden_TD: torch.Tensor, labels_T: torch.Tensor, blind_TD: torch.Tensor | None = None) -> torch.Tensor:
        logits = model.head(hidden_TD)
        if blind_TD is not None:
            blind = model.head(blind_TD)
            logits = blind + (cfg_scale + 1) * (logits - blind)
        return -F.cross_entropy(logits, labels_T, reduction="none")

    logp_T = in_chunks(logp, hidden, model.vocab_size).double().cpu()
    return torch.zeros(len(rows), dtype=torch.float64).index_add_(0, target.nonzero()[:, 0].cpu(), logp_T)
