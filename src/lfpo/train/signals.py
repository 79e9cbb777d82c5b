"""From rewards to what the loss takes instead of them: the one place where a rollout without a reward is left out."""

from __future__ import annotations

import torch

from lfpo.config.errors import CannotGoOn, UserError
from lfpo.objectives.objective import Objective

LARGEST = torch.finfo(torch.float32).max  # losses are computed in float32


def signal_of(objective: Objective, reward_R: torch.Tensor, group_R: torch.Tensor) -> torch.Tensor:
    """`objective.signal` of the scored rollouts, and its neutral value for the others; float64 [R] or [R, M].

    reward_R: float64 [R], NaN where a rollout has no reward, or [R, M] where an objective takes those of kept
        predictions; then all of a rollout's must be there. group_R: as for `signal`.
    The objective sees the scored rollouts alone, their groups numbered anew without gaps, so no objective has to know
    of NaN. A rollout that is alone in its group has nothing to be compared with: it is neutral too, unless the
    objective does not compare. The same on all ranks. Raises CannotGoOn for a signal that float32 cannot hold.
    """
    scored = ~reward_R.isnan()
    scored = scored if scored.dim() == 1 else scored.all(dim=1)
    if objective.compares and not scored.all():
        alone = group_R[scored].bincount(minlength=int(group_R.max()) + 1) == 1
        scored &= ~alone[group_R]
    if not scored.any():
        return torch.full_like(reward_R, objective.neutral)
    groups = group_R[scored].unique(return_inverse=True)[1]
    try:
        some = objective.signal(reward_R[scored], groups)
    except UserError as error:
        raise CannotGoOn(str(error)) from error  # all ranks have the same rewards
    wrong = ~(some.abs() <= LARGEST)
    if wrong.any():
        at = wrong if wrong.dim() == 1 else wrong.any(dim=1)
        reward = float(reward_R[scored][at].flatten()[0])
        raise CannotGoOn(
            f"objective {type(objective).__name__}: the signal of a rollout with reward {reward:g} is beyond the range "
            f"of float32; {objective.reward_advice}"
        )
    signal = some.new_full((len(reward_R), *some.shape[1:]), objective.neutral)
    signal[scored] = some
    return signal


def check_range(objective: Objective, reward_R: torch.Tensor) -> None:
    """Raise CannotGoOn where a reward lies outside of what the objective says it needs. NaN is no reward."""
    lowest, highest = objective.reward_range
    for value in reward_R[(reward_R < lowest) | (reward_R > highest)].tolist()[:1]:
        need = f"from {lowest:g} to {highest:g}" if highest < float("inf") else f"of at least {lowest:g}"
        if (lowest, highest) == (0.0, float("inf")):
            need = "that are not negative"
        raise CannotGoOn(
            f"objective {type(objective).__name__} needs rewards {need}, and a rollout of the first scored batch has "
            f"{value:g}; {objective.reward_advice}"
        )


def share_with_signal(objective: Objective, signal_R: torch.Tensor) -> float:
    """The share of rollouts whose signal is not neutral, in any of their states."""
    away = (signal_R - objective.neutral).abs() > 1e-9
    return float((away if away.dim() == 1 else away.any(dim=1)).double().mean())
