"""Parity with the peers' own public codes: their losses and gradients, given the inputs they noised."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from dtree_rpo import DTreeRPO
from torch.nn import functional as F

import peers
from lfpo.contrib.bgpo import BGPO
from lfpo.contrib.cj_grpo import CJGRPO
from lfpo.contrib.egspo import EGSPO
from lfpo.contrib.gdpo import GDPO
from lfpo.contrib.gdsd import GDSD
from lfpo.contrib.kept import kept
from lfpo.contrib.mdpo import MDPO
from lfpo.contrib.rldf import RLDF
from lfpo.contrib.stable_drl import StableDRL
from lfpo.contrib.wd1 import WD1
from lfpo.core.learner import accumulate_gradients
from lfpo.core.objective import Objective
from lfpo.core.passes import fully_masked
from lfpo.core.predictions import Predictions
from lfpo.core.trajectory import Trajectory
from lfpo.core.views import Views
from lfpo.objectives.agrpo import AGRPO, logp_as_drawn
from lfpo.objectives.coupled_grpo import CoupledGRPO
from lfpo.objectives.diffu_grpo import DiffuGRPO
from lfpo.objectives.espo import ESPO
from lfpo.objectives.justgrpo import JustGRPO
from lfpo.objectives.sequences import Sequences, elbo_views, gauss_legendre, masked_views
from lfpo.objectives.spg import SPG
from lfpo.objectives.step_views import step_means, step_views
from lfpo.objectives.unigrpo import UniGRPO
from lfpo.objectives.vrpo import VRPO, elbos

CASES: dict[str, dict[str, Any]] = peers.NEWER["cases"]


def cases(prefix: str) -> Any:
    found = [pytest.param(case, id=name) for name, case in CASES.items() if name.startswith(prefix)]
    return pytest.mark.parametrize("golden", found)


def first(prefix: str) -> dict[str, Any]:
    """The case of the older golden file whose name begins so."""
    (found,) = [value for name, value in peers.GOLDEN["cases"].items() if name.startswith(prefix)]
    return found


def check_shown(views: Views, golden: dict[str, Any]) -> None:
    """The views are the peer's noised inputs, but for those that mask nothing."""
    masked = [row for forward in golden["noised_inputs_cur"] for row in forward if peers.MASK in row]
    ours = [row[kept.bool()].tolist() for row, kept in zip(views.input_ids, views.attention_mask, strict=True)]
    assert sorted(ours) == sorted(masked)


def check(
    objective: Objective,
    views: Views,
    golden: dict[str, Any],
    *,
    model: Any = None,
    shift: bool = False,
    shown: bool = True,
    signal: torch.Tensor | None = None,
) -> None:
    """Loss and gradients to 1e-5, through the function that training calls, whole and split into small passes.

    Where the peer recorded no old log-probabilities it compared the policy with itself. shown: see check_shown.
    signal: the recorded advantages unless given.
    """
    if shown:
        check_shown(views, golden)
    if signal is None:
        signal = torch.tensor(golden.get("advantages", peers.NEWER["batch"]["advantages"]), dtype=torch.float64)
    for tokens in (10**6, 1):
        policies = peers.policies(model or peers.ClosedFormModel, shift=shift)
        if not any(golden.get(name) for name in golden if name.startswith("old_")):
            policies["old"] = (model or peers.ClosedFormModel)(*peers.NEWER["params"]["cur"], shift=shift)
        peers.check(objective, policies, views, signal, golden, tokens)


def check_sums(views: Views, policy: str, expected: Any, scale: float = 1.0) -> None:
    """The weighted sums over units that the peer recorded, in the order of units."""
    sequences = Sequences(views)
    found = scale * sequences.weighted(Predictions(views, peers.policies()).logp(policy))
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64).flatten(), rtol=1e-5, atol=1e-5)


def clip_of(golden: dict[str, Any]) -> dict[str, Any]:
    hyper = golden["hyper"]
    return {"epsilon": hyper["eps_low"], "epsilon_high": hyper["eps_high"]}


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


def test_wd1():
    golden, t = first("wd1"), peers.trajectory()
    objective = WD1()
    signal = objective.weights(peers.advantages(), torch.zeros(4, dtype=torch.long))
    views = fully_masked(t, peers.masks(golden)[0][:, :5])
    check(objective, views, golden, signal=signal)


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


@cases("gdsd")
def test_gdsd(golden: dict[str, Any]):
    hyper = golden["hyper"]
    objective = GDSD(
        mc_samples=hyper["num_mc"], psi=hyper["psi"], beta=hyper["beta"], tlc=hyper["weighted"], **clip_of(golden)
    )
    masks = peers.masks(golden).view(2, hyper["num_mc"], 4, 13)[:, :, :, 5:]
    assert torch.equal(masks[1], ~masks[0])
    views = objective.mask_views(peers.trajectory(), masks[0])
    check_sums(views, "base", golden["ref_score"])
    check(objective, views, golden)


@cases("rldf")
def test_rldf(golden: dict[str, Any]):
    hyper = golden["hyper"]
    objective = RLDF(
        states=hyper["mask_num"],
        temperature=hyper["sample_temperature"],
        threshold=hyper["low_prob_threshold"],
        aggregation=hyper["loss_norm"],
        beta=hyper["beta"],
        kl=hyper["kl_type"],
    )
    t = peers.trajectory(reveal_step=golden["reveal_step"])
    t.confidence = torch.tensor(golden["token_probs"])
    for score, law in zip(objective.step_scores(t), golden["step_probabilities"], strict=True):
        torch.testing.assert_close(score.softmax(0), torch.tensor(law, dtype=torch.float64), rtol=1e-5, atol=1e-6)
    views = objective.state_views(t, torch.tensor(golden["steps"]))
    policies = peers.policies()
    kept = objective.before_passes(views, lambda v, policy: Predictions(v, policies).logp(policy)).target
    assert int(kept.sum()) == golden["positions_in_loss"]
    check(objective, views, golden)


@cases("justgrpo")
def test_justgrpo(golden: dict[str, Any]):
    objective = JustGRPO(epsilon=golden["hyper"]["eps"])
    signal = torch.tensor(golden["advantages"])
    check(objective, objective.views(peers.trajectory(block_length=1), signal, [0, 1, 2, 3], 0), golden)


class Attending(peers.ClosedFormModel):
    """The closed-form model of rows that end early: positions that are not attended to do not exist."""

    def hidden(self, ids: torch.Tensor, attention: torch.Tensor | None = None) -> torch.Tensor:
        assert attention is not None
        width = ids.shape[1]
        rows = [
            F.pad(super(Attending, self).hidden(row[None, : int(own.sum())]), (0, 0, 0, width - int(own.sum())))
            for row, own in zip(ids, attention, strict=True)
        ]
        return torch.cat(rows)


def ending_early(golden: dict[str, Any], views_of: Callable[[Trajectory, torch.Tensor], Views]) -> Views:
    """Views of rollouts that end where the golden case says: what comes after is neither revealed nor attended to."""
    valid, t = torch.tensor(golden["valid"]).bool(), peers.trajectory()
    t.reveal_step = t.reveal_step.masked_fill(~valid, -1)
    views = views_of(t, torch.tensor(golden["masked"]).bool().transpose(0, 1))
    return dataclasses.replace(views, attention_mask=F.pad(valid.long(), (5, 0), value=1)[views.row])


@cases("bgpo")
def test_bgpo(golden: dict[str, Any]):
    hyper = golden["hyper"]
    objective = BGPO(mc_samples=hyper["mc_num"], dual_clip=hyper["dual_clip"], **clip_of(golden))
    views = ending_early(golden, lambda t, masked: elbo_views(t, masked, after_eos=True))
    check(objective, views, golden, model=Attending)


@cases("cj_grpo")
def test_cj_grpo(golden: dict[str, Any]):
    hyper = golden["hyper"]
    if "authors" in next(name for name, value in CASES.items() if value is golden):
        objective = CJGRPO(epsilon=hyper["eps"], beta=hyper["beta"])
    else:
        objective = CJGRPO(beta=hyper["kl_coef"], dual_clip=hyper["dual_clip"], **clip_of(golden))
    t = peers.trajectory(reveal_step=golden["reveal_step"])
    views = objective.views(t, peers.advantages(), [0, 1, 2, 3], 0)
    # The peer also runs rows that have no step any more.
    assert all(
        row in golden["noised_inputs_cur"][step]
        for row, step in zip(views.input_ids.tolist(), views.state.tolist(), strict=True)
    )
    check(objective, views, golden, shown=False)


@cases("gdpo")
def test_gdpo(golden: dict[str, Any]):
    hyper = golden["hyper"]
    objective = GDPO(nodes=len(golden["points"]), epsilon=hyper["eps"], beta=hyper["beta"])
    for found, expected in zip(gauss_legendre(objective.nodes), (golden["points"], golden["weights"]), strict=True):
        torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), rtol=1e-9, atol=1e-12)
    views = objective.mask_views(peers.trajectory(), peers.masks(golden)[:, :, 5:])
    check_sums(views, "old", golden["old_elbo"])
    check(objective, views, golden)
    drawn = objective.views(peers.trajectory(), peers.advantages(), [0, 1, 2, 3], 0)
    assert sorted(drawn.target.sum(-1).tolist()) == sorted(views.target.sum(-1).tolist())


@cases("egspo")
def test_egspo(golden: dict[str, Any]):
    hyper = golden["hyper"]
    objective = EGSPO(
        beta=hyper["beta"], exact_kl=hyper["exact_kl"], aggregation=hyper["aggregation"], **clip_of(golden)
    )
    t = peers.trajectory(reveal_step=golden["reveal_step"])
    views = step_views(t, torch.arange(4), torch.tensor(golden["steps"]), after_eos=True)
    check_sums(views, "old", golden["old_logp"])
    check(objective, views, golden)


@cases("stabledrl")
def test_stable_drl(golden: dict[str, Any]):
    hyper = golden["hyper"]
    objective = StableDRL(
        clip=hyper["clip_iw"], beta=hyper["eubo_beta"], mix=hyper["mix"], num_masks=hyper["num_t"], p_mask=0.0
    )
    inputs = [golden[f"noised_inputs_{name}"][0] for name in ("cur", "old")]
    masks = (torch.tensor(inputs) == peers.MASK).view(2, 4, hyper["num_t"], 13).transpose(1, 2).flatten(0, 1)
    views = masked_views(peers.trajectory(), masks)
    old = views.select((views.state >= hyper["num_t"]).nonzero().flatten())
    bound = Sequences(old).lower_bound(Predictions(old, peers.policies()).logp("old"))
    torch.testing.assert_close(bound, torch.tensor(golden["old_elbo"], dtype=torch.float64), rtol=1e-5, atol=1e-6)
    check(objective, views, golden, shown=False)


@cases("mdpo")
def test_mdpo(golden: dict[str, Any]):
    hyper = golden["hyper"]
    objective = MDPO(steps=9, epsilon=hyper["eps"], beta=hyper["beta"])
    rewards = torch.tensor(golden["step_rewards"], dtype=torch.float64)
    signal = objective.step_advantages(rewards, torch.zeros(4, dtype=torch.long))
    torch.testing.assert_close(signal, torch.tensor(golden["step_advantages"], dtype=torch.float64), rtol=1e-5, atol=0)
    [step] = [
        i for i, column in enumerate(signal.T.tolist()) if column == pytest.approx(golden["advantages"], abs=1e-5)
    ]
    hidden = peers.masks(golden)[0][:, 5:]  # the state before the step; all that it hides is revealed later
    t = peers.trajectory(reveal_step=hidden.long().tolist(), temperature=hyper["temperature"])
    confidence = torch.tensor(golden["confidence"], dtype=torch.float64)[:, None].expand(-1, 5, -1)
    known = kept(t, torch.ones(4, 5, dtype=torch.long), t.tokens[:, None].expand(-1, 5, -1), confidence)
    only = torch.zeros_like(signal)
    only[:, step] = signal[:, step]
    known = dataclasses.replace(known, advantage=only)
    check(objective, objective.views(known, peers.advantages(), [0, 1, 2, 3], 0), golden)


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
