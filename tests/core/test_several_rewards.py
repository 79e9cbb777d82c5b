"""Several reward functions whose advantages are summed (multi_objective_aggregation: normalize_then_sum)."""

from math import nan
from pathlib import Path

import pytest
import torch

from lfpo.config.errors import UserError
from lfpo.config.train import LFPOConfig
from lfpo.core.objective import sum_of_signals
from lfpo.objectives import make_objective
from lfpo.train.rl import LFPOTrainer


def test_advantages_of_each_function_are_weighted_and_summed_by_hand():
    group = torch.tensor([0, 0, 0, 1, 1, 1])
    parts = torch.tensor([[1, 0, 0, 1, 1, 1], [90, 30, nan, 20, 40, 60]], dtype=torch.float64).T
    peer = make_objective({"name": "diffu_grpo"})
    # Within groups: 2/3, -1/3, -1/3 and 0; 30, -30, none and -20, 0, 20.
    expected = [2 / 3 + 3, -1 / 3 - 3, -1 / 3, -2, 0, 2]
    assert sum_of_signals(peer, parts, [1.0, 0.1], group).tolist() == pytest.approx(expected)
    # LFPO: the advantage over the group's range, clipped at 0.8; r = 1/2 + A / 1.6. The second function agrees nowhere,
    # so its group of range 60 and the one of range 40 weigh alike.
    lfpo = make_objective({"name": "lfpo", "baseline": 1.0})
    first, second = torch.tensor([2 / 3, -1 / 3, -1 / 3, 0, 0, 0]), torch.tensor([0.5, -0.5, 0, -0.5, 0, 0.5])
    found = sum_of_signals(lfpo, parts, [1.0, 0.5], group)
    assert found.tolist() == pytest.approx((0.5 + (first + 0.5 * second) / 1.6).clamp(0, 1).tolist())
    # r stays in [0, 1], whatever the weights.
    assert sum_of_signals(lfpo, parts, [9.0, 9.0], group).tolist() == [1, 0, 0, 0, 0.5, 1]


def test_an_objective_without_advantages_takes_no_sum_of_them(tmp_path: Path):
    args = LFPOConfig(str(tmp_path / "run"), task="choice", objective={"name": "rejection"})
    args.multi_objective_aggregation = "normalize_then_sum"
    with pytest.raises(UserError, match="objective Rejection takes none of whole rollouts"):
        LFPOTrainer(args=args)
