"""A lower bound of log p(answer | prompt) under a masked diffusion model, as in LLaDA's evaluation.

Mask l of the answer's L tokens, l uniform on 1..L, and sum the log-probabilities of the masked tokens with weight L/l.
The expectation over l and the masks is a lower bound of the log-likelihood (arXiv 2502.09992, Eq. 6), and equal to it
for an answer of one token.

In a model that attends block by block, the bound is the sum of the bounds of the answer's blocks, each after the clean
blocks before it (arXiv 2503.09573). One doubled forward masks tokens of every block. Blocks count from the start
of the prompt, over a causal context from that of the answer; there a block's first token is masked as the others are.
Tokens of the last block past the answer's end are masked and not scored, as the sampler shows them.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional as F

from lfpo.config.errors import UserError
from lfpo.core.doubled import noised_hidden, training_structure
from lfpo.core.draw import guided
from lfpo.core.encoding import unusable
from lfpo.core.fused import in_chunks
from lfpo.core.rng import key, uniform
from lfpo.core.structure import Structure
from lfpo.core.views import pack_by_tokens
from lfpo.eval.evaluate import check_finite
from lfpo.models import MaskedDiffusionLM
from lfpo.models.mask_token import check_masks

# Purposes of random numbers.
COUNTS, MASKS = range(2)


@dataclass(frozen=True)
class Pair:
    """prompt, answer: token ids, at least one each. seed: keys the noise."""

    prompt: list[int]
    answer: list[int]
    seed: int


def text_pair(context: str, continuation: str, tokenizer: Any, model: MaskedDiffusionLM, seed: int) -> Pair:
    """A context and a continuation as tokens. Both are encoded as one text, which is split at the length of the
    context alone; spaces at the context's end belong to the continuation, as in lm-evaluation-harness.

    The noise is keyed by (seed, context), so the options of a problem share it. Raises UserError for an empty
    continuation, a text longer than the model's context, and a mask token.
    """
    check_masks(model, "the likelihood bound")
    prompt = tokenizer.encode(context.rstrip(), add_special_tokens=False)
    answer = tokenizer.encode(context + continuation, add_special_tokens=False)[len(prompt) :]
    prompt = prompt or [first_token(tokenizer, model)]
    quoted = f"context {context[:60]!r}"
    if not answer:
        raise UserError(f"{quoted}: the continuation {continuation[:60]!r} has no tokens")
    if len(prompt) + len(answer) > model.max_length:
        raise UserError(
            f"{quoted}: {len(prompt)} tokens and {len(answer)} of its continuation exceed the model's context of "
            f"{model.max_length}; use fewer examples"
        )
    if reason := unusable(prompt + answer, model):
        raise UserError(f"{quoted}: the text or its continuation cannot be used: {reason}")
    return Pair(prompt, answer, key(seed, "likelihood", context))


def first_token(tokenizer: Any, model: MaskedDiffusionLM) -> int:
    """The prompt of a text without context: BOS, or EOS where the tokenizer has no BOS."""
    return model.eos_id if tokenizer.bos_token_id is None else int(tokenizer.bos_token_id)


def maskings(length: int, seed: int, mc_num: int, start: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Masked tokens of each noised copy, bool [M, L], and the weight of its sum of log-probabilities, float64 [M].

    With at most mc_num ways of masking, the copies are all of them, weighted by probability, and the result is exact.
    Otherwise there are mc_num copies, whose counts l are evenly spaced over 1..L from a random start, so that each
    count is equally likely in each copy.
    start: the place of the L tokens in the answer; keys their noise, with `seed`.
    """
    if 2**length - 1 <= mc_num:
        ways = [way for way in itertools.product((False, True), repeat=length) if any(way)]
        masked = torch.tensor(ways)
        weights = [1 / (sum(way) * math.comb(length, sum(way))) for way in ways]
        return masked, torch.tensor(weights, dtype=torch.float64)
    noise_key, copy = torch.tensor(seed), torch.arange(mc_num)
    place = (uniform(noise_key, COUNTS, start) + copy.double() / mc_num) % 1
    count = (place * length).long().clamp(max=length - 1) + 1
    noise = uniform(noise_key, MASKS, copy[:, None], start + torch.arange(length))
    masked = torch.argsort(noise, dim=-1, stable=True).argsort(-1) < count[:, None]
    return masked, length / count.double() / mc_num


def block_maskings(pair: Pair, mc_num: int, structure: Structure) -> tuple[torch.Tensor, torch.Tensor]:
    """The maskings of each block of an answer, side by side: masked tokens of each noised copy, bool [M, L], and the
    weights of their log-probabilities, float64 [M, L]. A block with fewer ways than others has no mask in the last
    copies."""
    length, block = len(pair.answer), structure.block_length or len(pair.answer)
    ends = [*range(block - structure.shared(len(pair.prompt)), length, block), length]
    of_blocks = [maskings(b - a, pair.seed, mc_num, a) for a, b in itertools.pairwise([0, *ends])]
    copies = max(len(weights) for _, weights in of_blocks)
    padded = [F.pad(masked, (0, 0, 0, copies - len(masked))) for masked, _ in of_blocks]
    weights = [F.pad(each, (0, copies - len(each)))[:, None].expand(-1, masked.shape[1]) for masked, each in of_blocks]
    return torch.cat(padded, dim=1), torch.cat(weights, dim=1)


@torch.no_grad()
def likelihood_bounds(
    model: MaskedDiffusionLM,
    pairs: Sequence[Pair],
    *,
    mc_num: int = 128,
    cfg_scale: float = 0.0,
    tokens: int = 16384,
    forwarded: Callable[[int], None] = lambda rows: None,
) -> list[float]:
    """The bound of each pair, in nats.

    mc_num: noised copies of each answer; an answer with at most that many ways of masking is computed exactly.
    cfg_scale: guidance against the masked prompt, as in generation; above 0 it doubles the forwards.
    tokens: rows x length in one forward; it changes results by rounding only. forwarded: called after each forward with
        the number of its rows. Raises UserError as lfpo.eval.evaluate.check_finite.
    """
    was_training = model.training
    model.eval()
    copies = [
        (i, masked, weights)
        for i, pair in enumerate(pairs)
        for masked, weights in zip(*block_maskings(pair, mc_num, model.structure), strict=True)
    ]
    total = torch.zeros(len(pairs), dtype=torch.float64)
    widths = torch.tensor([_width(model, pair) for pair in pairs])
    prompts = torch.tensor([len(pair.prompt) for pair in pairs])
    lengths = training_structure(model).tokens(widths, prompts).tolist()
    for pack in pack_by_tokens([lengths[i] for i, *_ in copies], tokens):
        index, masked, weights = zip(*(copies[k] for k in pack), strict=True)
        summed = _weighted_logp(model, [pairs[i] for i in index], masked, weights, cfg_scale)
        total.index_add_(0, torch.tensor(index), summed)
        forwarded(len(index))
    model.train(was_training)
    check_finite(total, model)
    return total.tolist()


def _width(model: MaskedDiffusionLM, pair: Pair) -> int:
    """Tokens of a pair, with those that fill its last block."""
    in_blocks = model.structure.shared(len(pair.prompt)) + len(pair.answer)
    return len(pair.prompt) + len(pair.answer) + -in_blocks % (model.block_length or 1)


def _weighted_logp(
    model: MaskedDiffusionLM,
    rows: Sequence[Pair],
    masked: Sequence[torch.Tensor],
    weights: Sequence[torch.Tensor],
    cfg_scale: float,
) -> torch.Tensor:
    """The weighted sum of log-probabilities of each row's masked answer tokens, float64 [B]. Rows are padded on the
    right.

    masked: bool, weights: float64, both of each row's answer tokens.
    """
    clean = torch.full((len(rows), max(_width(model, row) for row in rows)), model.mask_id)
    attention = torch.zeros_like(clean)
    prompt, target = torch.zeros_like(clean, dtype=torch.bool), torch.zeros_like(clean, dtype=torch.bool)
    for b, row in enumerate(rows):
        start, end = len(row.prompt), len(row.prompt) + len(row.answer)
        clean[b, :end] = torch.tensor(row.prompt + row.answer)
        attention[b, : _width(model, row)] = 1
        prompt[b, :start] = True
        target[b, start:end] = masked[b]
    clean, attention, prompt, target = (x.to(model.device) for x in (clean, attention, prompt, target))
    noised = clean.masked_fill(target, model.mask_id)

    def hidden_of(hidden_tokens_BL: torch.Tensor) -> torch.Tensor:
        """States of the targets, where the tokens `hidden_tokens_BL` of both halves are masked."""
        shown, before = (x.masked_fill(hidden_tokens_BL, model.mask_id) for x in (noised, clean))
        states, _ = noised_hidden(model, shown, before, attention, prompt.sum(-1), structure=training_structure(model))
        return states[target[:, -states.shape[1] :]]

    hidden = [hidden_of(torch.zeros_like(prompt)), clean[target]]
    if cfg_scale:
        hidden.append(hidden_of(prompt))

    def logp(hidden_TD: torch.Tensor, labels_T: torch.Tensor, blind_TD: torch.Tensor | None = None) -> torch.Tensor:
        logits = model.head(hidden_TD)
        if blind_TD is not None:
            logits = guided(logits, model.head(blind_TD), cfg_scale)
        return -F.cross_entropy(logits, labels_T, reduction="none")

    logp_T = in_chunks(logp, hidden, model.vocab_size).double().cpu()
    logp_T *= torch.cat([weight[mask] for weight, mask in zip(weights, masked, strict=True)])
    return torch.zeros(len(rows), dtype=torch.float64).index_add_(0, target.nonzero()[:, 0].cpu(), logp_T)
