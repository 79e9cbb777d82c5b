"""SLIM-RL, EBPO and Mask-Aware policy gradients: losses by hand on three letters, and what they draw."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from letters import rollouts
from lfpo.objectives.masks import gauss_legendre
from lfpo.objectives.slim_rl import SLIMRL
from test_newer_objectives import HALF, LN2, masks
from test_objective_views import check_rate, hidden, views_of
from test_objectives import GOOD_BAD, loss_of

DOUBLE = 1 - LN2  # k3 where the other policy gives a token twice the probability


@pytest.mark.parametrize(
    ("kl", "of_half", "of_double"), [("k1", LN2, -LN2), ("k2", LN2**2 / 2, LN2**2 / 2), ("k3", HALF, DOUBLE)]
)
def test_slim_rl_by_hand(kl: Any, of_half: float, of_double: float):
    """Three masks of abe and of be; the last hides nothing of the first. Weights are 5/18, 8/18 and 5/18."""
    t = rollouts(["abe", "bee"])
    objective = SLIMRL(nodes=3, epsilon=0.1, beta=0.3, kl=kl)
    views = objective.mask_views(t, masks(["_be", "_e_"], ["___", "b__"], ["abe", "___"]))
    current = {"_be": "211 111 111", "___": "112 121 112", "_e_": "121 111 111", "b__": "111 121 111"}
    old = {"_be": "112 111 111", "___": "211 121 112", "_e_": "112 111 111", "b__": "111 112 111"}
    # Ratios 2 (clipped), and 1/2 of one of three tokens (clipping would help, so it does not apply).
    good = 5 / 18 * -1.1 + 8 / 18 * -(2 ** (-1 / 3))
    # Ratios 2 (not clipped: it hurts), 1/2 (clipped at 0.9) and 1.
    bad = 5 / 18 * 0.5 * 2 + 8 / 18 * 0.5 * 0.9 + 5 / 18 * 0.5
    divergence = 5 / 18 * 2 * of_half + 8 / 18 * 2 * of_double
    loss = loss_of(objective, views, GOOD_BAD, current=current, old=old)
    assert loss == pytest.approx((good + bad + 0.3 * divergence / 3) / 5, rel=1e-6)


def test_slim_rl_s_probabilities_fall_over_blocks_and_keep_their_mean():
    assert SLIMRL(spread=0.2).probabilities(0.5, 3).tolist() == pytest.approx([0.6, 0.5, 0.4])
    # Five blocks: cosines 1, 1/sqrt(2), 0, ...
    root = 0.1 / math.sqrt(2)
    expected = [0.4, 0.3 + root, 0.3, 0.3 - root, 0.2]
    assert SLIMRL(spread=0.2).probabilities(0.3, 5).tolist() == pytest.approx(expected)
    # No probability leaves (0, 1).
    assert SLIMRL(spread=0.2).probabilities(0.05, 2).tolist() == pytest.approx([0.1, 0.0], abs=1e-6)
    assert SLIMRL(spread=0.2).probabilities(0.95, 2).tolist() == pytest.approx([1.0, 0.9], abs=1e-6)
    assert SLIMRL().probabilities(0.3, 1).tolist() == [0.3]


def test_slim_rl_hides_tokens_with_these_probabilities_and_one_at_least():
    size, objective = 3000, SLIMRL(nodes=3, spread=0.2)
    views = views_of(objective, rollouts(["ababab"] * size, block_length=2))
    levels = gauss_legendre(3)[0].tolist()
    for node, level in enumerate(levels):
        mask = hidden(views.select((views.state == node).nonzero().flatten()), 2)
        assert len(mask) == size and bool(mask.any(-1).all())
        p = objective.probabilities(level, 3).repeat_interleave(2)
        forced = float((1 - p).prod()) / 6  # one of the six is hidden where none would be
        for column, rate in enumerate((p + forced).tolist()):
            check_rate(mask[:, column, None], rate)


def test_slim_rl_leaves_out_prompts_too_easy_or_too_hard():
    """Means 1/2, 1 and 0. A rollout at its group's mean keeps its KL term."""
    rewards, group = torch.tensor([1, 0, 0.5, 1, 1, 0, 0]).double(), torch.tensor([0, 0, 0, 1, 1, 2, 2])
    signal = SLIMRL().signal(rewards, group)
    assert signal.tolist() == pytest.approx([0.5, -0.5, 0, 0, 0, 0, 0]) and 0 < signal[2] < 1e-9
    t = rollouts(["abab"] * 7)
    assert SLIMRL().views(t, signal, range(7), 0).row.unique().tolist() == [0, 1, 2]
