"""Parity of the objectives of lfpo.contrib with their own public codes: losses and gradients."""

import dataclasses
from typing import Any

import pytest
import torch

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
from lfpo.core.passes import fully_masked
from lfpo.core.predictions import Predictions
from lfpo.objectives.sequences import Sequences, elbo_views, gauss_legendre, masked_views
from lfpo.objectives.step_views import step_views
from peer_checks import CASES, Attending, cases, check, check_sums, clip_of, ending_early, first


def test_wd1():
    golden, t = first("wd1"), peers.trajectory()
    objective = WD1()
    signal = objective.weights(peers.advantages(), torch.zeros(4, dtype=torch.long))
    views = fully_masked(t, peers.masks(golden)[0][:, :5])
    check(objective, views, golden, signal=signal)


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
