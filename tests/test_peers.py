"""Parity with the peers' own public codes: their losses and gradients, given the inputs they noised."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import peers
from lfpo.objectives.agrpo import AGRPO, logp_as_drawn
from lfpo.objectives.coupled_grpo import CoupledGRPO
from lfpo.objectives.diffu_grpo import DiffuGRPO
from lfpo.objectives.masks import masked_views
from lfpo.objectives.predictions import Predictions
from lfpo.objectives.spg import SPG
from lfpo.objectives.step_views import step_views
from lfpo.objectives.unigrpo import UniGRPO
from lfpo.objectives.views import Views, fully_masked
from lfpo.objectives.wd1 import WD1
from lfpo.train.algorithm import accumulate_gradients


def case(prefix: str) -> dict[str, Any]:
    (found,) = [value for name, value in peers.GOLDEN["cases"].items() if name.startswith(prefix)]
    return found


def check(objective: Any, views: Views, golden: dict[str, Any], *, shift: bool = False, signal: Any = None) -> None:
    """Loss and gradients to 1e-5, through the function that training calls, whole and split into small passes."""
    signal = peers.advantages() if signal is None else signal
    for tokens in (10**6, 1):
        peers.check(objective, peers.policies(shift=shift), views, signal, golden, tokens)


def check_noised(views: Views, golden: dict[str, Any]) -> None:
    assert views.input_ids.tolist() == [row for forward in golden["noised_inputs_cur"] for row in forward]


def test_diffu_grpo():
    golden, t = case("diffu_grpo"), peers.trajectory()
    views = fully_masked(t, peers.masks(golden)[0][:, :5])
    check_noised(views, golden)
    check(DiffuGRPO(beta=0.04, epsilon=0.5), views, golden)
    for policy, key in (("old", "old_logps"), ("base", "ref_logps")):
        logp = Predictions(views, peers.policies()).logp(policy)
        expected = torch.tensor(golden[key], dtype=torch.float64)[t.counted]
        torch.testing.assert_close(logp, expected, rtol=1e-5, atol=1e-5)


def test_coupled_grpo():
    golden, t = case("coupled_grpo"), peers.trajectory()
    noised = peers.masks(golden)[0].view(3, 4, 13)[:, :, 5:]
    assert noised[0].all() and torch.equal(noised[1], ~noised[2])
    # The ratio is not recorded; one draw serves the micro-batch, and the old log-probabilities determine it.
    objective = CoupledGRPO(beta=0.01, epsilon=0.5)
    ratio = solve_ratio(objective, t, noised[1], torch.tensor(golden["old_logps"], dtype=torch.float64))
    views = objective.masked_views(t, noised[1], torch.full((4,), ratio, dtype=torch.float64))
    assert views.input_ids.tolist() == golden["noised_inputs_cur"][0]
    check(objective, views, golden, shift=True)


def solve_ratio(objective: CoupledGRPO, t: Any, masked: torch.Tensor, old: torch.Tensor) -> float:
    views = objective.masked_views(t, masked, torch.full((4,), 0.5, dtype=torch.float64))
    logp = Predictions(views, peers.policies(shift=True)).logp("old")
    dense = torch.zeros(12, 13, dtype=torch.float64).index_put(tuple(views.target.nonzero().unbind(-1)), logp)
    whole, hidden = dense[:4, 5:], dense[4:8, 5:]
    rows = masked & t.counted
    return float((0.5 * hidden[rows] / (old[rows] - 0.5 * whole[rows])).median())


def test_spg():
    golden, t = case("spg"), peers.trajectory()
    objective = SPG(bound="mix", beta=1.5, mix=0.5, num_masks=2, block_length=4)
    masks = peers.masks(golden)[0].view(4, 2, 13).transpose(0, 1)
    views = masked_views(t, masks)
    check(objective, views, golden)


def test_unigrpo():
    golden, t = case("unigrpo"), peers.trajectory()
    objective = UniGRPO(beta=0.01, epsilon=0.2)
    views = objective.masked_views(t, peers.masks(golden)[0][:, 5:])
    check_noised(views, golden)
    assert views.target[:, 5:].int().tolist() == golden["loss_mask"]
    check(objective, views, golden)


def test_wd1():
    golden, t = case("wd1"), peers.trajectory()
    objective = WD1()
    signal = objective.weights(peers.advantages(), torch.zeros(4, dtype=torch.long))
    views = fully_masked(t, peers.masks(golden)[0][:, :5])
    check_noised(views, golden)
    check(objective, views, golden, signal=signal)


def agrpo_case() -> tuple[dict[str, Any], Any, torch.Tensor]:
    """The golden case, its trajectory, and the steps that the peer drew, [M, B]."""
    golden = case("agrpo")
    t = peers.trajectory(
        golden["completion_ids"], golden["unmask_steps"], temperature=0.6, top_k=40, remasking="random"
    )
    t.entropy = torch.tensor(golden["old_entropies"])
    hidden = peers.masks(golden)[:, :, 5:]
    # The step before which exactly these tokens were masked.
    steps = torch.tensor([[int(t.reveal_step[b][hidden[m, b]].min()) for b in range(4)] for m in range(2)])
    return golden, t, steps


def test_agrpo(monkeypatch):
    golden, t, steps = agrpo_case()
    objective = AGRPO(mc_samples=2, step_distribution="entropy", epsilon=0.2)
    rows = torch.arange(4).repeat(2)
    kept = torch.zeros(4, 8, peers.VOCAB, dtype=torch.bool)
    for b, row in enumerate(golden["sampling_mask_true"]):
        for k, ids in enumerate(row):
            kept[b, k, ids] = True

    def recorded(predictions: Predictions, policy: str) -> torch.Tensor:
        """Old log-probabilities and kept tokens as the golden file recorded them, not recomputed."""
        place = (predictions.views.row[predictions.view_T], predictions.column_T - 5)
        monkeypatch.setattr("lfpo.objectives.agrpo.kept_tokens", lambda *_: kept[place])
        old = torch.tensor(golden["old_logps"], dtype=torch.float64)[place]
        return old if policy == "old" else logp_as_drawn(predictions, policy)

    monkeypatch.setattr("lfpo.objectives.agrpo.logp_as_drawn", recorded)
    probability = torch.stack([objective.step_probabilities(t, b, torch.arange(4)) for b in range(4)])
    weight = 1 / 4 / probability[rows, steps.flatten()] / 2
    views = step_views(t, rows, steps.flatten(), weight_S=weight.double())
    check_noised(views, golden)
    models = peers.policies()
    for sample in (0, 1):  # the peer keeps the loss of the last sample and the gradient of all
        part = views.select(torch.arange(4) + 4 * sample)
        loss = accumulate_gradients(objective, models, part, peers.advantages(), update_tokens=20)[0]
    assert loss == pytest.approx(golden["last_mc_loss"], rel=1e-5)
    assert float(models["current"].s.grad) == pytest.approx(golden["grad_s"], rel=1e-4)
    expected = torch.tensor(golden["grad_a"], dtype=torch.float64)
    torch.testing.assert_close(models["current"].a.grad, expected, rtol=1e-5, atol=1e-6)
