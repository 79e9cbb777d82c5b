"""The scored rollouts of one iteration: this rank's, what is known of those of all ranks, and those of one step."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import torch

from lfpo.config.json import Json
from lfpo.core.observer import Observer
from lfpo.core.scoring import Rewards, Row
from lfpo.core.trajectory import Trajectory


class Turn(NamedTuple):
    """A row of a trajectory. rollout: the number of its rollout among the rank's. row: the data row, its prompt being
    what the model read. seed: of its random choices. text: what the model wrote. number, reply: in an episode, the
    turn's number from 1, and the environment's reply, "" if it failed."""

    rollout: int
    row: Row
    seed: int
    text: str
    number: int = 0
    reply: str = ""

    @property
    def note(self) -> Json:
        """What the row's record says about its turn."""
        return {"turn": self.number, "reply": self.reply} if self.number else {}


@dataclass(frozen=True)
class ScoredRollouts:
    """What a source of rollouts gives: this rank's B rows, scored.

    turns [B]: what a row is. trajectory [B rows]: on the policy's device. rewards: of the rank's rollouts, on the CPU.
    version: of the weights that sampled them: the number of iterations that these had been trained for.
    By metric name: metrics, the same on all ranks; times, seconds, reported as the maximum over ranks; sums, (sum,
    count), reported as the mean over ranks; totals, reported as the sum over ranks.
    """

    turns: list[Turn]
    trajectory: Trajectory
    rewards: Rewards
    version: int
    metrics: dict[str, float] = field(default_factory=dict)
    times: dict[str, float] = field(default_factory=dict)
    sums: dict[str, tuple[float, int]] = field(default_factory=dict)
    totals: dict[str, float] = field(default_factory=dict)


class RolloutSource(Protocol):
    def roll(self, iteration: int, observer: Observer) -> ScoredRollouts:
        """This rank's scored rollouts of an iteration, a group for each of its prompts. A collective."""
        ...


@dataclass(frozen=True)
class Batch:
    """This rank's B rollouts of one iteration, and what it knows of all R rollouts on all ranks.

    A rollout has a row, or with an environment one for each of its turns; B counts rows.

    turns, trajectory, rewards, version: see ScoredRollouts.
    rollout_B: int64 [B], on the CPU: the number of each row's rollout among all R.
    reward_R, group_R [R]: reward (float64) and prompt number (int64) of every rollout on every rank, on the CPU. A NaN
        is neutral: nothing is learned from that rollout (see lfpo.core.objective.signal_of).
    parts_RK: float64 [R, K], on the CPU, what each of K reward functions gave every rollout; NaN where it gave none.
    failed: reward function -> why it failed, on any rank. metrics: of all R rollouts, under TRL's names.
    """

    turns: list[Turn]
    trajectory: Trajectory
    rewards: Rewards
    rollout_B: torch.Tensor
    reward_R: torch.Tensor
    parts_RK: torch.Tensor
    group_R: torch.Tensor
    failed: dict[str, str]
    metrics: dict[str, float]
    version: int


@dataclass(frozen=True)
class Update:
    """One optimiser step: the rollouts of a block in one inner iteration.

    block: numbers of its rollouts among all R of the batch, int64. number, of: which of the iteration's steps it is,
        from 0.
    """

    iteration: int
    inner: int
    block: torch.Tensor
    number: int
    of: int
