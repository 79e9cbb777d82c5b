"""Checks against what the peers' own public codes returned (tests/goldens/peers.json, peers2.json)."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import peers
from lfpo.core.objective import Objective
from lfpo.core.predictions import Predictions
from lfpo.core.trajectory import Trajectory
from lfpo.core.views import Views
from lfpo.objectives.sequences import Sequences

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
