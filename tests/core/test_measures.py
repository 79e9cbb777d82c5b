"""What losses report: values worked out by hand, and that they add up over passes and cost no forward."""

from math import log
from typing import Any

import pytest
import torch

from letters import Table, rollouts
from lfpo.core.measures import Measures, measure_targets, sum_and_count
from lfpo.core.model import CURRENT, OLD
from lfpo.core.passes import fully_masked
from lfpo.core.predictions import Predictions
from lfpo.objectives.policy_gradient import ratio_measures


def means(measures: Measures) -> dict[str, float]:
    return {name: float(value[0] / value[1]) for name, value in measures.items()}


def test_targets_by_hand():
    """One good rollout "a", one bad "b", one target each (letters a, b and EOS)."""
    tables: Any = {CURRENT: Table({"_": "211"}), OLD: Table({"_": "112"})}
    predictions = Predictions(fully_masked(rollouts(["a", "b"])), tables)
    predictions.hidden(CURRENT)
    predictions.hidden(OLD)
    r_T = torch.tensor([1.0, 0.0], dtype=torch.float64)
    found = means(measure_targets(predictions, r_T, neutral=0.5, beta=0.5))
    # theta has odds 2:1:1, theta_old 1:1:2. ln p = ln 1/2, ln 1/4, ln 1/4; ln p - ln p_old = ln 2, 0, -ln 2.
    assert found == pytest.approx(
        {
            "entropy/targets": 0.5 * log(2) + 0.5 * log(4),
            "kl/old": 0.5 * log(2) - 0.25 * log(2),
            "p_target/good": 0.5,
            "p_target/bad": 0.25,
            "p_target_old/good": 0.25,
            "p_target_old/bad": 0.25,
            "negatives/saturated": 0.0,
        },
        rel=1e-6,
    )


def test_a_large_vocabulary_is_measured_at_every_eighth_target(monkeypatch: pytest.MonkeyPatch):
    """Twenty targets, of which those of rollouts 0, 8 and 16 are measured."""
    monkeypatch.setattr("lfpo.core.measures.LARGE_VOCABULARY", 3)
    tables: Any = {CURRENT: Table({"_": "211"})}
    predictions = Predictions(fully_masked(rollouts(["a"] * 8 + ["b"] * 12)), tables)
    predictions.hidden(CURRENT)
    good_T = (torch.arange(20) == 0).double() + (torch.arange(20) == 8).double()
    found = measure_targets(predictions, good_T, neutral=0.5)
    assert found["entropy/targets"][1] == 3
    assert found["p_target/good"].tolist() == [0.5 + 0.25, 2.0]
    assert found["p_target/bad"].tolist() == [0.25, 1.0]


@pytest.mark.parametrize(("beta", "saturated"), [(0.5, 0.0), (1.0, 1.0)])
def test_a_negative_is_saturated_when_pi_minus_is_nearly_sure_of_its_token(beta: float, saturated: float):
    """theta has odds 1:1:1, theta_old 1:9:1, so pi- gives b 9^(1 + beta): 27 of 29 at beta 1/2, 81 of 83 at 1."""
    tables: Any = {CURRENT: Table({"_": "111"}), OLD: Table({"_": "191"})}
    predictions = Predictions(fully_masked(rollouts(["b"])), tables)
    predictions.hidden(CURRENT)
    predictions.hidden(OLD)
    found = measure_targets(predictions, torch.zeros(1, dtype=torch.float64), neutral=0.5, beta=beta)
    assert found["negatives/saturated"].tolist() == [saturated, 1.0]


def test_ratios_by_hand():
    ratio = torch.tensor([2.0, 2.0, 0.5, 0.5, 1.0])
    advantage = torch.tensor([1.0, -1.0, 1.0, -1.0, 1.0])
    found = ratio_measures(ratio, advantage, 0.8, 1.2)
    assert found["ratio/mean"].tolist() == [6.0, 5.0]
    assert found["ratio/clipped"].tolist() == [2.0, 5.0]  # 2 with a positive advantage, 1/2 with a negative one
    where = torch.tensor([True, False, False, False, True])
    assert ratio_measures(ratio, advantage, 0.8, 1.2, where)["ratio/clipped"].tolist() == [1.0, 2.0]
    assert sum_and_count(torch.tensor([torch.nan, 1.0]), torch.tensor([False, True])).tolist() == [1.0, 1.0]
