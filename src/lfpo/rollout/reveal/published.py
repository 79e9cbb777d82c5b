"""Published reveal rules beside those of LLaDA and SDAR. Dream's (arXiv 2508.15487) and that of Mask-Aware policy
gradients (2607.15200) follow a schedule. Fast-dLLM's (2505.22618), EB-Sampler's (2505.24857), SDAR's dynamic one and
SLIM-RL's (2607.00208) decide by the confidence of what was drawn how many positions a step reveals."""

from collections.abc import Sequence

import torch

from lfpo.config.sampler import Sampler
from lfpo.core.reveal import ranked
from lfpo.core.rng import uniform
from lfpo.core.rule import PLAN, Proposal, Reveal


def best(score_AC: torch.Tensor, eligible_AC: torch.Tensor, count_A: torch.Tensor) -> torch.Tensor:
    """The count_A[a] eligible positions of each row with the highest score, [A, C] bool; ties go to the left."""
    return eligible_AC & (ranked(score_AC, eligible_AC)[1] < count_A[:, None])


def before_first(true_AC: torch.Tensor) -> torch.Tensor:
    """How many columns come before the first True one, [A, 1] int64; C in a row without one."""
    return (true_AC.int().cumsum(-1) == 0).sum(-1, keepdim=True)


def dream(step: Proposal) -> Reveal:
    """The positions with the best scores; with alg_temp, drawn by softmax(score / alg_temp) without replacement.

    Ties go to the left. With top_p they are common: all positions whose nucleus is one token score exactly 1. Dream's
    code ranks them by torch.topk, which leaves the order of ties open.
    """
    return _drawn(step, step.score)


def plackett_luce(step: Proposal) -> Reveal:
    """Positions drawn without replacement, in proportion to c^(1 / alg_temp), with c the drawn token's confidence.

    Of the two forms of the public code, both off in its recipes, one is `alg: maskgit_plus`; this is the other, which
    takes the most probable token's probability for c.
    """
    return _drawn(step, step.confidence.clamp(min=1e-300).log())


def _drawn(step: Proposal, score: torch.Tensor) -> Reveal:
    """The schedule's count of positions with the best scores, or drawn by them at alg_temp."""
    if step.sampler.alg_temp:
        # The k highest of score / alg_temp + Gumbel noise are k draws without replacement.
        score = score / step.sampler.alg_temp - (-step.noise().clamp(min=1e-300).log()).log()
    at_step, count = step.next_scheduled()
    return Reveal(best(score, step.eligible, count), at_step)


def margin(p_TV: torch.Tensor, token_T: torch.Tensor) -> torch.Tensor:
    """Rule.score: the probability of the most probable token minus that of the second."""
    first, second = p_TV.topk(2, dim=-1).values.unbind(-1)
    return first - second


def negative_entropy(p_TV: torch.Tensor, token_T: torch.Tensor) -> torch.Tensor:
    """Rule.score: minus the entropy in nats, with the small constant of Dream's code."""
    return (p_TV * (p_TV + 1e-10).log()).sum(-1)


# Dream's "origin": each position by itself, with the schedule's probability.


def origin(step: Proposal) -> Reveal:
    """All positions whose step comes next. Each position's step depends on the row's seed only."""
    steps = len(step.counts)
    due = origin_steps(step.fixed_noise(), steps, step.sampler.eps).masked_fill(~step.eligible, steps)
    at_step = due.amin(-1)
    return Reveal(step.eligible & (due == at_step[:, None]), at_step)


def origin_steps(uniform: torch.Tensor, steps: int, eps: float) -> torch.Tensor:
    """The step of the block that reveals each position, int64, from uniform numbers in [0, 1); any shape.

    Dream reveals a masked position with probability 1 - t_next / t at each step, and all at the last one. So it is
    still masked after step i with probability t_(i + 1) = 1 - (i + 1)(1 - eps) / steps, independently of the others.
    """
    return ((1 - uniform) / (1 - eps) * steps).long().clamp(max=steps - 1)


def origin_plan(
    sampler: Sampler, counts: Sequence[int], seeds: Sequence[int], sizes: Sequence[Sequence[int]]
) -> list[list[list[int]]]:
    """Rule.plan: positions of a block that share a step are revealed together; noise is the same on every device."""
    noise = uniform(torch.tensor(list(seeds))[:, None], PLAN, torch.arange(max(sum(row) for row in sizes)))
    due = origin_steps(noise, len(counts), sampler.eps)
    rows = [own[: sum(row)].split(list(row)) for own, row in zip(due, sizes, strict=True)]
    return [[block.unique(return_counts=True)[1].tolist() for block in row] for row in rows]


# The rules that set their own pace.


def threshold_leftmost(step: Proposal) -> Reveal:
    """Positions with confidence >= threshold; in a row without any, the leftmost eligible one.

    In Fork-dLLM (arXiv 2609.39859), training on rollouts of `threshold` collapsed, and on these it did not.
    """
    above = step.eligible & (step.confidence >= step.sampler.threshold)
    first = step.eligible & (step.eligible.cumsum(-1) == 1)
    return Reveal(above | (first & ~above.any(-1, keepdim=True)))


def factor(step: Proposal) -> Reveal:
    """The n most confident positions, for the largest n whose n-th has confidence >= 1 - factor / (n + 1).

    At least one. Fast-dLLM's code also reveals the next position, which fails this test.
    """
    order, rank = ranked(step.confidence, step.eligible)
    n = order.new_ones(order.shape[1]).cumsum(0)
    fails = step.confidence.gather(1, order) < 1 - step.sampler.factor / (n + 1)
    fails[:, 0] = False
    return Reveal(step.eligible & (rank < before_first(fails)))


def entropy_bound(step: Proposal) -> Reveal:
    """The n positions of least entropy, for the largest n whose entropies, without the largest, sum to at most
    entropy_bound."""
    order, rank = ranked(-step.entropy, step.eligible)
    ordered = step.entropy.gather(1, order)
    others = ordered.cumsum(-1) - ordered  # ascending, so the n-th is the largest; 0 for the first
    return Reveal(step.eligible & (rank < before_first(others > step.sampler.entropy_bound)))


def dynamic(step: Proposal) -> Reveal:
    """All positions whose score exceeds the threshold; where these are fewer than the schedule's count (at least 1), so
    many of the best.

    With editing_threshold also LLaDA2.1's token editing: a revealed token is replaced where another one is drawn whose
    score exceeds that threshold. A block is complete after a forward that began without masks and edits nothing, or
    after max_post_steps forwards that began without masks.
    """
    above = step.eligible & (step.score > step.sampler.threshold)
    positions = above | best(step.score, step.eligible, _quota(step))
    if step.revealed is None:
        return Reveal(positions)
    edits = step.revealed.editable & (step.token != step.revealed.shown)
    edits &= step.score > step.sampler.editing_threshold
    post_step = step.revealed.post_step
    unfinished = (post_step < step.sampler.max_post_steps) & ((post_step == 0) | edits.any(-1))
    return Reveal(positions, edits=edits, unfinished=unfinished)


def tau_budget(step: Proposal) -> Reveal:
    """SLIM-RL's decoder: of the positions whose score exceeds the threshold, the n best, for the largest n whose risks
    1 - score sum to at most 1 - threshold; the schedule's count (at least 1) of the best where that is more."""
    sure = step.eligible & (step.score > step.sampler.threshold)
    order, rank = ranked(step.score, sure)
    risk = (1 - step.score).gather(1, order).cumsum(-1).gather(1, rank)  # of a position and of those before it
    within = sure & (risk <= 1 - step.sampler.threshold)
    return Reveal(within | best(step.score, step.eligible, _quota(step)))


def _quota(step: Proposal) -> torch.Tensor:
    """The schedule's count at the current step of the block, at least 1; [A] int64."""
    return step.counts[step.block_step.clamp(max=len(step.counts) - 1)].clamp(min=1)
