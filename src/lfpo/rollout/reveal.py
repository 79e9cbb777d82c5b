"""Which positions a denoising step reveals: the schedules, the reveal rules and the sets that tokens are drawn from.

Pure functions of scores and counts; `rollout.py` calls them. "Eligible" positions are the masked ones of a row's active
block.
"""

from __future__ import annotations

import torch


def reveal_counts(block_length: int, steps: int, schedule: str, eps: float = 1e-3) -> torch.Tensor:
    """How many tokens each of a block's `steps` reveals, [steps], summing to block_length.

    "llada": block_length // steps each, and one more in each of the first block_length % steps.
    "uniform": after step s, floor((s + 1) * block_length / steps) are revealed.
    "dream": int(masked * (1 - t_next / t)) along t = 1 .. eps, and what is left at the last step.
    """
    step = torch.arange(steps)
    if schedule == "llada":
        return block_length // steps + (step < block_length % steps).long()
    if schedule == "uniform":
        done = (step + 1) * block_length // steps
        return torch.diff(done, prepend=torch.zeros(1, dtype=done.dtype))
    time = torch.linspace(1, eps, steps + 1)  # float32, as Dream has it: the rounding decides some counts
    counts, masked = [], block_length
    for i in range(steps):
        k = int(masked * (1 - time[i + 1] / time[i])) if i < steps - 1 else masked
        counts.append(k)
        masked -= k
    return torch.tensor(counts)


def origin_steps(uniform: torch.Tensor, steps: int, eps: float) -> torch.Tensor:
    """The step at which Dream's "origin" reveals each position, from one uniform number in [0, 1) for each.

    It reveals a masked position with probability 1 - t_next / t at each step, and all at the last one; so a position is
    still masked after step i with probability t_(i + 1) = 1 - (i + 1)(1 - eps) / steps, whatever happens to others.
    """
    return ((1 - uniform) / (1 - eps) * steps).long().clamp(max=steps - 1)


def top_k_per_row(score_BC: torch.Tensor, eligible_BC: torch.Tensor, k_B: torch.Tensor) -> torch.Tensor:
    """The k_B[b] eligible positions of each row with the highest score, as a bool mask; ties go to the left."""
    rank = _ranked(score_BC, eligible_BC)[1]
    return eligible_BC & (rank < k_B[:, None])


def above_threshold(confidence_BC: torch.Tensor, eligible_BC: torch.Tensor, threshold: float) -> torch.Tensor:
    """Eligible positions at or above the threshold, and always each row's most confident one."""
    rank = _ranked(confidence_BC, eligible_BC)[1]
    return eligible_BC & ((confidence_BC >= threshold) | (rank == 0))


def within_factor(confidence_BC: torch.Tensor, eligible_BC: torch.Tensor, factor: float) -> torch.Tensor:
    """The longest run of the most confident eligible positions whose n-th has confidence >= 1 - factor / (n + 1).

    The first is always revealed.
    """
    order, rank = _ranked(confidence_BC, eligible_BC)
    ordered = confidence_BC.gather(1, order)
    n = torch.arange(1, ordered.shape[1] + 1, device=ordered.device)
    fails = ordered < 1 - factor / (n + 1)
    fails[:, 0] = False
    return eligible_BC & (rank < _before_first(fails)[:, None])


def within_entropy(entropy_BC: torch.Tensor, eligible_BC: torch.Tensor, bound: float) -> torch.Tensor:
    """The n least uncertain eligible positions: the most whose entropies, without the largest, sum to at most bound."""
    order, rank = _ranked(-entropy_BC, eligible_BC)
    ordered = entropy_BC.gather(1, order)
    others = ordered.cumsum(-1) - ordered  # ascending, so the n-th is the largest; 0 for the first
    return eligible_BC & (rank < _before_first(others > bound)[:, None])


def _ranked(score_BC: torch.Tensor, eligible_BC: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Columns from the best eligible one to the worst, then the others; and each column's place in that order."""
    score = score_BC.masked_fill(~eligible_BC, -torch.inf)
    order = score.argsort(dim=-1, descending=True, stable=True)
    place = torch.arange(order.shape[1], device=order.device).expand_as(order)
    return order, torch.empty_like(order).scatter_(1, order, place)


def _before_first(true_BC: torch.Tensor) -> torch.Tensor:
    """How many columns stand before the first True one, [B]; all of them where there is none."""
    return (true_BC.int().cumsum(-1) == 0).sum(-1)


def kept_tokens(scores_TV: torch.Tensor, top_k: int | None, top_p: float | None) -> torch.Tensor:
    """Which tokens top-k and nucleus sampling leave at each position, a bool mask [T, V].

    scores_TV: logits over temperature, -inf for tokens that are never drawn. Nucleus: the most probable tokens until
    their sum reaches top_p, the one that crosses it included. With both, a token must pass both. Tokens as probable as
    the k-th are all kept.
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
