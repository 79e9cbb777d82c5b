"""What a loss reports beside its value: sums and counts, so that they add up over passes and ranks."""

import torch

from lfpo.core.fused import CHUNK_ELEMENTS
from lfpo.core.model import BASE, CURRENT, OLD
from lfpo.core.predictions import Predictions

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
        states = zip(compared, hidden_TD, strict=True)
        logp = {policy: predictions.policies[policy].head(h).float().log_softmax(-1) for policy, h in states}
        logp_TV, good_T, bad_T = logp[CURRENT], r_T > neutral, r_T < neutral
        p_TV = logp_TV.exp()
        chunk_measures = {"entropy/targets": sum_and_count(-(p_TV * logp_TV).sum(-1))}
        for policy in compared[1:]:
            chunk_measures[f"kl/{policy}"] = sum_and_count((p_TV * (logp_TV - logp[policy])).sum(-1))
        for name, policy in (("p_target", CURRENT), ("p_target_old", OLD)):
            if policy in logp:
                p_T = _of(y_T, logp[policy]).exp()
                chunk_measures |= {f"{name}/good": sum_and_count(p_T, good_T), f"{name}/bad": sum_and_count(p_T, bad_T)}
        if OLD in logp and beta is not None:
            minus_T = _of(y_T, torch.lerp(logp[OLD], logp_TV, -beta).softmax(-1))
            chunk_measures["negatives/saturated"] = sum_and_count((minus_T > SATURATED).float(), bad_T)
        add_measures(measures, chunk_measures)
    return measures


def _of(y_T: torch.Tensor, value_TV: torch.Tensor) -> torch.Tensor:
    """The values of the target tokens, [T]."""
    return value_TV.gather(1, y_T[:, None]).squeeze(1)


def add_measures(total: Measures, addends: Measures) -> None:
    """Add sums and counts to those of the same name, in place."""
    for name, value in addends.items():
        total[name] = total[name] + value if name in total else value
