"""What a loss reports beside its value: sums and counts, so that they add up over passes and ranks."""

import contextlib
import math
from collections.abc import Iterator
from typing import Any

import torch

from lfpo.base import distributed
from lfpo.models import MaskedDiffusionLM
from lfpo.models.experts import base_layer, routers
from lfpo.models.roles import BASE, CURRENT, OLD
from lfpo.objectives.ops.fused import CHUNK_ELEMENTS
from lfpo.objectives.predictions import Predictions

# Name -> [sum, count], a float64 tensor of two numbers on the loss's device. metrics.jsonl gets sum / count.
Measures = dict[str, torch.Tensor]

SATURATED = 0.95
# Where a vocabulary has this many tokens, one of EVERY targets is measured: each costs two products with a head.
LARGE_VOCABULARY, EVERY = 4096, 8


def sum_and_count(values: torch.Tensor, where: torch.Tensor | None = None) -> torch.Tensor:
    """[sum, count] of the values where `where` is True (all of them without it), float64 [2]."""
    where = torch.ones_like(values, dtype=torch.bool) if where is None else where
    total = values.detach().double().masked_fill(~where, 0.0).sum()
    return torch.stack([total, where.sum().double()])


@torch.no_grad()
def measure_targets(
    predictions: Predictions, signal_T: torch.Tensor, *, neutral: float = 0.0, beta: float | None = None
) -> Measures:
    """Measures at the T targets of one pass, or at every eighth of them with a large vocabulary. No policy runs for
    them: compares only policies that the loss has already run.

    entropy/targets: entropy of theta's prediction, in nats.
    kl/old, kl/base: KL(theta || theta_old) and KL(theta || base), exact over the vocabulary, in nats.
    p_target/good, p_target/bad: probability of the target token under theta, for rollouts whose signal is above and
        below `neutral`; p_target_old/good, p_target_old/bad: under theta_old.
    negatives/saturated (LFPO, given its beta): share of the targets of bad rollouts with pi-(y) > 0.95.
    """
    compared = [CURRENT, *(policy for policy in (OLD, BASE) if policy in predictions.used)]
    vocab_size = predictions.policies[CURRENT].vocab_size
    sampled = slice(None, None, EVERY if vocab_size >= LARGE_VOCABULARY else 1)
    rows = [predictions.labels_T, signal_T, *map(predictions.hidden, compared)]
    # A quarter of the logits that a loss holds at once: here each policy has logits and probabilities.
    size = max(1, CHUNK_ELEMENTS.get(signal_T.device.type, CHUNK_ELEMENTS["cpu"]) // 4 // vocab_size)
    measures: Measures = {}
    for y_T, r_T, *hidden_TD in zip(*(x[sampled].split(size) for x in rows), strict=True):
        logp = {
            policy: predictions.policies[policy].head(h).float().log_softmax(-1)
            for policy, h in zip(compared, hidden_TD, strict=True)
        }
        logp_TV, good_T, bad_T = logp[CURRENT], r_T > neutral, r_T < neutral
        p_TV = logp_TV.exp()
        found = {"entropy/targets": sum_and_count(-(p_TV * logp_TV).sum(-1))}
        for policy in compared[1:]:
            found[f"kl/{policy}"] = sum_and_count((p_TV * (logp_TV - logp[policy])).sum(-1))
        for name, policy in (("p_target", CURRENT), ("p_target_old", OLD)):
            if policy in logp:
                p_T = _of(y_T, logp[policy]).exp()
                found |= {f"{name}/good": sum_and_count(p_T, good_T), f"{name}/bad": sum_and_count(p_T, bad_T)}
        if OLD in logp and beta is not None:
            minus_T = _of(y_T, torch.lerp(logp[OLD], logp_TV, -beta).softmax(-1))
            found["negatives/saturated"] = sum_and_count((minus_T > SATURATED).float(), bad_T)
        add_measures(measures, found)
    return measures


def _of(y_T: torch.Tensor, value_TV: torch.Tensor) -> torch.Tensor:
    """The values of the target tokens, [T]."""
    return value_TV.gather(1, y_T[:, None]).squeeze(1)


def ratio_measures(
    ratio: torch.Tensor, advantage: torch.Tensor, low: float, high: float, where: torch.Tensor | None = None
) -> Measures:
    """ratio/mean: mean of a policy gradient's ratios. ratio/clipped: share of them that the clip to [low, high] takes
    out of the gradient (above `high` with a positive advantage, below `low` with a negative one).

    ratio, advantage: of any common shape; where: which of them count (all without it).
    """
    clipped = ((ratio > high) & (advantage > 0)) | ((ratio < low) & (advantage < 0))
    return {"ratio/mean": sum_and_count(ratio, where), "ratio/clipped": sum_and_count(clipped.double(), where)}


def means_over_ranks(measures: Measures) -> dict[str, float]:
    """Sum over count of each measure, over all ranks. A collective."""
    return distributed.means_over_ranks({name: value.tolist() for name, value in measures.items()})


def add_measures(total: Measures, more: Measures) -> None:
    """Add sums and counts to those of the same name, in place."""
    for name, value in more.items():
        total[name] = total[name] + value if name in total else value


@contextlib.contextmanager
def watched_routers(model: MaskedDiffusionLM) -> Iterator[Measures]:
    """How evenly routers use the experts of a mixture: measures of the forwards with gradients in the block, padding
    counted; none for a model without experts.

    router/entropy: of a token's scores over the experts, as a share of the highest possible one, mean over tokens and
        layers. Near 0 the router always prefers the same experts for a token.
    router/max_load: tokens of a layer's busiest expert, divided by those that it had if all were used evenly, mean over
        layers and passes. 1 is even; E / k (experts, chosen ones) is one set of experts for all tokens.
    """
    measures: Measures = {}

    def look(router: Any, _: Any, output: Any) -> None:
        if not torch.is_grad_enabled():
            return
        logits_TE = (output[0] if isinstance(output, tuple) else output).detach().float()
        sigmoid = hasattr(router, "e_score_correction_bias")
        scores_TE = logits_TE.sigmoid() if sigmoid else logits_TE.softmax(-1)
        share_TE = scores_TE / scores_TE.sum(-1, keepdim=True)
        entropy_T = torch.special.entr(share_TE).sum(-1) / math.log(share_TE.shape[1])
        add_measures(measures, {"router/entropy": sum_and_count(entropy_T)})

    def count(experts: Any, arguments: tuple[torch.Tensor, ...]) -> None:
        if torch.is_grad_enabled():
            chosen, total = arguments[1].flatten(), len(experts.gate_up_proj)
            busiest = torch.bincount(chosen, minlength=total).max() * total / len(chosen)
            add_measures(measures, {"router/max_load": sum_and_count(busiest[None])})

    found = routers(model.backbone) if isinstance(model, MaskedDiffusionLM) else []
    hooks = [router.register_forward_hook(look) for router in found]
    if found:
        layers = [layer.mlp for layer in model.backbone.model.layers if hasattr(layer.mlp, "experts")]
        hooks += [base_layer(mlp.experts).register_forward_pre_hook(count) for mlp in layers]
    try:
        yield measures
    finally:
        for hook in hooks:
            hook.remove()
