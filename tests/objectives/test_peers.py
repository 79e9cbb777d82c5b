"""Parity with the peers' own public codes: their losses and gradients, given the inputs they noised."""

import dataclasses
from typing import Any

import pytest
import torch
from dtree_rpo import DTreeRPO

import peers
from lfpo.core.learner import accumulate_gradients
from lfpo.core.passes import fully_masked
from lfpo.core.predictions import Predictions
from lfpo.objectives.agrpo import AGRPO, logp_as_drawn
from lfpo.objectives.coupled_grpo import CoupledGRPO
from lfpo.objectives.diffu_grpo import DiffuGRPO
from lfpo.objectives.espo import ESPO
from lfpo.objectives.justgrpo import JustGRPO
from lfpo.objectives.sequences import masked_views
from lfpo.objectives.spg import SPG
from lfpo.objectives.step_views import step_means, step_views
from lfpo.objectives.unigrpo import UniGRPO
from lfpo.objectives.vrpo import VRPO, elbos
from peer_checks import Attending, cases, check, check_shown, check_sums, clip_of, ending_early, first


def test_diffu_grpo():
    golden, t = first("diffu_grpo"), peers.trajectory()
    views = fully_masked(t, peers.masks(golden)[0][:, :5])
    check(DiffuGRPO(beta=0.04, epsilon=0.5), views, golden)
    for policy, key in (("old", "old_logps"), ("base", "ref_logps")):
        logp = Predictions(views, peers.policies()).logp(policy)
        expected = torch.tensor(golden[key], dtype=torch.float64)[t.until_eos]
        torch.testing.assert_close(logp, expected, rtol=1e-5, atol=1e-5)


def test_coupled_grpo():
    golden, t = first("coupled_grpo"), peers.trajectory()
    noised = peers.masks(golden)[0].view(3, 4, 13)[:, :, 5:]
    assert noised[0].all() and torch.equal(noised[1], ~noised[2])
    # The ratio is not recorded; one draw serves the micro-batch, and the old log-probabilities determine it.
    objective = CoupledGRPO(beta=0.01, epsilon=0.5)
    ratio = solve_ratio(objective, t, noised[1], torch.tensor(golden["old_logps"], dtype=torch.float64))
    views = objective.masked_views(t, noised[1], torch.full((4,), ratio, dtype=torch.float64))
    assert views.input_ids.tolist() == golden["noised_inputs_cur"][0]
    check(objective, views, golden, shift=True, shown=False)


def solve_ratio(objective: CoupledGRPO, t: Any, masked: torch.Tensor, old: torch.Tensor) -> float:
    views = objective.masked_views(t, masked, torch.full((4,), 0.5, dtype=torch.float64))
    logp = Predictions(views, peers.policies(shift=True)).logp("old")
    dense = torch.zeros(12, 13, dtype=torch.float64).index_put(tuple(views.target.nonzero().unbind(-1)), logp)
    whole, hidden = dense[:4, 5:], dense[4:8, 5:]
    rows = masked & t.until_eos
    return float((0.5 * hidden[rows] / (old[rows] - 0.5 * whole[rows])).median())


def test_spg():
    golden, t = first("spg"), peers.trajectory()
    objective = SPG(bound="mix", beta=1.5, mix=0.5, num_masks=2, block_length=4)
    check(objective, masked_views(t, peers.masks(golden)[0].view(4, 2, 13).transpose(0, 1)), golden)


def test_unigrpo():
    golden, t = first("unigrpo"), peers.trajectory()
    objective = UniGRPO(beta=0.01, epsilon=0.2)
    views = objective.masked_views(t, peers.masks(golden)[0][:, 5:])
    assert views.target[:, 5:].int().tolist() == golden["loss_mask"]
    check(objective, views, golden)


def test_agrpo(monkeypatch):
    golden = first("agrpo")
    sampler = {"temperature": 0.6, "top_k": 40, "remasking": "random"}
    t = peers.trajectory(golden["completion_ids"], golden["unmask_steps"], **sampler)
    t.entropy = torch.tensor(golden["old_entropies"])
    hidden = peers.masks(golden)[:, :, 5:]
    # The step before which exactly these tokens were masked [M, B].
    steps = torch.tensor([[int(t.reveal_step[b][hidden[m, b]].min()) for b in range(4)] for m in range(2)])
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
    probability = torch.stack([objective.step_probabilities(entropy_N) for entropy_N in step_means(t, t.entropy)])
    weight = 1 / 4 / probability[rows, steps.flatten()] / 2
    views = step_views(t, rows, steps.flatten(), weight_S=weight.double())
    check_shown(views, golden)
    models = peers.policies()
    for sample in (0, 1):  # the peer keeps the loss of the last sample and the gradient of all
        part = views.select(torch.arange(4) + 4 * sample)
        loss = accumulate_gradients(objective, models, part, peers.advantages(), update_tokens=20)[0]
    assert loss == pytest.approx(golden["last_mc_loss"], rel=1e-5)
    assert float(models["current"].s.grad) == pytest.approx(golden["grad_s"], rel=1e-4)
    expected = torch.tensor(golden["grad_a"], dtype=torch.float64)
    torch.testing.assert_close(models["current"].a.grad, expected, rtol=1e-5, atol=1e-6)


@cases("espo")
def test_espo(golden: dict[str, Any]):
    hyper = golden["hyper"]
    objective = ESPO(mc_samples=hyper["num_mc"], beta=hyper["beta"], **clip_of(golden))
    masks = peers.masks(golden)[:, :, 5:]
    assert torch.equal(masks[1::2], ~masks[::2])
    views = objective.mask_views(peers.trajectory(), masks[::2])
    check_sums(views, "old", golden["old_elbo"], 1 / hyper["num_mc"])
    check_sums(views, "base", golden["ref_elbo"], 1 / hyper["num_mc"])
    check(objective, views, golden)


@cases("justgrpo")
def test_justgrpo(golden: dict[str, Any]):
    objective = JustGRPO(epsilon=golden["hyper"]["eps"])
    signal = torch.tensor(golden["advantages"])
    check(objective, objective.views(peers.trajectory(block_length=1), signal, [0, 1, 2, 3], 0), golden)


@cases("dtreerpo")
def test_dtree_rpo(golden: dict[str, Any]):
    """Parents are at step 1, children at step 2; what neither shows is revealed later."""
    hyper = golden["hyper"]
    schedule = {"growth": hyper["gamma"], "tau_max": hyper["tau_max"], "decay": hyper["beta_tau"]}
    objective = DTreeRPO(epsilon=hyper["eps"], beta=hyper["beta"], lambda_max=hyper["lambda_max"], **schedule)
    if not hyper["distil"]:
        objective = dataclasses.replace(objective, lambda_max=0.0)
    objective = objective.at_progress(hyper["step"] / hyper["max_steps"])
    parent, child = (torch.tensor(golden[f"{name}_ids"])[:, 5:] for name in ("parent", "child"))
    t = peers.trajectory(child.tolist(), ((parent == peers.MASK).long() + (child == peers.MASK).long()).tolist())
    t.prompt_ids = torch.tensor(golden["parent_ids"])[:, :5]
    signal = torch.tensor(golden["advantages"], dtype=torch.float64)
    groups, ones = torch.tensor(golden["group_ids"]), torch.ones(4, dtype=torch.long)
    views = objective.edge_views(t, signal, torch.arange(4), 0 * ones, groups, ones, 2 * ones)
    once = golden | {"noised_inputs_cur": golden["noised_inputs_cur"][:1]}  # the peer runs the parents again for D
    check(objective, views, once, signal=signal)


@cases("vrpo")
def test_vrpo(golden: dict[str, Any]):
    objective = VRPO(mc_samples=golden["hyper"]["mc_num"], beta=golden["hyper"]["beta"], after_eos=True)
    views = ending_early(golden, objective.mask_views)
    found = elbos(views, Predictions(views, peers.policies(Attending)).logp("base"))
    torch.testing.assert_close(found, torch.tensor(golden["ref_elbo_over_C"], dtype=torch.float64), rtol=1e-5, atol=0)
    check(objective, views, golden, model=Attending)
