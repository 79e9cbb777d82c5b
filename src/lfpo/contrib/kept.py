"""Whole predictions kept at chosen steps of a rollout: what the completion would be if it ended there.

`KeepPredictions` is a variant of a request (lfpo.core.engine.Request.variant), `KeptTrajectory` what comes of it, and
`WithPredictions` the source of rollouts that rewards the predictions.
"""

import dataclasses
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from lfpo.config.json import Json
from lfpo.core import collectives
from lfpo.core.active_rows import ActiveRows
from lfpo.core.batch import RolloutSource, ScoredRollouts
from lfpo.core.completions import decode_completions
from lfpo.core.engine import Request
from lfpo.core.forward import Forward, completion_columns
from lfpo.core.hooks import DrawnTokens, Hook
from lfpo.core.observer import Observer
from lfpo.core.trajectory import Trajectory
from lfpo.models import MaskedDiffusionLM
from lfpo.prompts.tasks import Row
from lfpo.rewards import Rewards


@dataclass
class KeptTrajectory(Trajectory):
    """Rollouts with the whole predictions of M scheduled steps.

    predicted_at [B, M] int64: the steps. predicted_tokens [B, M, C] int64: the predictions. predicted_confidence
    [B, M, C] float32: the probability at temperature 1 of what was drawn at masked positions, 0 elsewhere.
    advantage [B, M] float64: of each prediction, 0 until `WithPredictions` has rewarded them.
    """

    predicted_at: torch.Tensor = field(kw_only=True)
    predicted_tokens: torch.Tensor = field(kw_only=True)
    predicted_confidence: torch.Tensor = field(kw_only=True)
    advantage: torch.Tensor = field(kw_only=True)


def kept(trajectory: Trajectory, at: torch.Tensor, tokens: torch.Tensor, confidence: torch.Tensor) -> KeptTrajectory:
    """A trajectory with predictions, not yet rewarded. The tensors are those of KeptTrajectory."""
    predicted: Json = {"predicted_at": at, "predicted_tokens": tokens, "predicted_confidence": confidence}
    return KeptTrajectory(**vars(trajectory), **predicted, advantage=torch.zeros(at.shape).double().to(at.device))


class WholeCompletions(Forward):
    """Forwards that give hidden states of all positions of the completion, as if they were the active block."""

    whole_completion = True

    def __init__(self, *arguments: Any, **options: Any):
        super().__init__(*arguments, **options)
        self.block_length = self.sampler.gen_length

    def _block_start(self, active: ActiveRows) -> torch.Tensor:
        return torch.full_like(active.block, self.width)


class KeptPredictions(Hook):
    """The predictions of B rows at M chosen scheduled steps.

    The prediction at a step is the token drawn at every masked position of the state before the step, beside the tokens
    that this state shows. Steps that reveal nothing have the prediction of the next step that does. A row that ended
    before a step has its completion there, with confidence 0.

    like: any int64 [B, C] on the model's device. The forwards must predict whole completions: full attention, no cache
    (what MDPO `needs`, and `MDPO.check_sampler`).
    """

    def __init__(self, steps: Sequence[int], like: torch.Tensor):
        self.step_M = torch.tensor(list(steps), device=like.device)
        self.tokens = torch.zeros_like(like)[:, None].repeat(1, len(steps), 1)
        self.confidence = self.tokens.float()
        self.made = self.tokens[:, :, 0].bool()

    def __call__(self, active: ActiveRows, drawn: DrawnTokens) -> None:
        """Keep one forward's predictions for the chosen steps from a row's last reveal up to its next one."""
        since = active.reveal_step.amax(-1) + 1
        met = (self.step_M >= since[:, None]) & (self.step_M <= drawn.at[:, None]) & ~active.done[:, None]
        place_N, step_N = met.nonzero().unbind(-1)
        row_N = active.row[place_N]
        self.tokens[row_N, step_N] = torch.where(drawn.masked, drawn.token, active.tokens)[place_N]
        self.confidence[row_N, step_N] = torch.where(drawn.masked, drawn.confidence, 0.0).float()[place_N]
        self.made[row_N, step_N] = True

    def added_to(self, trajectory: Trajectory, row_B: torch.Tensor) -> Trajectory:
        """The trajectory of finished rows, given their numbers, with their predictions."""
        made_BM = self.made[row_B]
        tokens = torch.where(made_BM[..., None], self.tokens[row_B], trajectory.tokens[:, None])
        return kept(trajectory, self.step_M.expand(len(row_B), -1), tokens, self.confidence[row_B])


@dataclass(frozen=True)
class KeepPredictions:
    """A variant of a request: keep the predictions of these scheduled steps, ascending. They change no token, but the
    head then runs at all masked positions, not at those of the active block alone."""

    steps: tuple[int, ...]

    def __call__(self, model: MaskedDiffusionLM, unit: Request, arguments: Json) -> Json:
        shape = (len(unit.prompts), completion_columns(unit.sampler, model))
        like = torch.empty(shape, dtype=torch.long, device=model.device)
        hook = KeptPredictions(self.steps, like)
        return {**arguments, "forward_type": WholeCompletions, "hooks": [*arguments["hooks"], hook]}


def score_predictions(
    t: KeptTrajectory, rows: Sequence[Row], tokenizer: object, score: Callable[..., Rewards], failed: dict[str, str]
) -> tuple[torch.Tensor, int]:
    """Rewards of the predictions kept at M steps [B, M], and how many completions were scored for them: the distinct
    ones of each row. score: see Scorer.score. Functions that fail are added to `failed`."""
    distinct: dict[tuple[int, ...], int] = {}
    which = [
        [distinct.setdefault((b, *ids), len(distinct)) for ids in steps]
        for b, steps in enumerate(t.predicted_tokens.tolist())
    ]
    own = [rows[b] for b, *_ in distinct]
    tokens = [list(ids) for _, *ids in distinct]
    cut = [ids[: ids.index(t.eos_id) + 1] if t.eos_id in ids else ids for ids in tokens]
    steps = [t.reveal_step[b, : len(ids)].tolist() for (b, *_), ids in zip(distinct, cut, strict=True)]
    forwards = [int(t.nfe[b]) for b, *_ in distinct]
    of_rollouts = {"completion_ids": cut, "forwards": forwards, "reveal_step": steps}
    rewards = score(own, decode_completions(tokenizer, torch.tensor(tokens), t.eos_id), of_rollouts)
    failed.update(rewards.failed)
    return rewards.reward_B[torch.tensor(which)], len(own)


@dataclass(frozen=True)
class WithPredictions:
    """A source of rollouts that rewards their kept predictions, too.

    score: scores completions, as the source's own rewards come about. advantages: gives float64 [B, M] of the rewards
    [B, M] of whole groups and the number of each row's group [B]. generations: rollouts of a group, which are all on
    one rank. A rollout of which some prediction has no reward, or that is alone in its group, has none: 0.
    """

    source: RolloutSource
    tokenizer: Any
    score: Callable[..., Rewards]
    advantages: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    generations: int

    def roll(self, iteration: int, observer: Observer) -> ScoredRollouts:
        rolled, started = self.source.roll(iteration, observer), time.perf_counter()
        rows, failed, trajectory = [turn.row for turn in rolled.turns], rolled.rewards.failed, rolled.trajectory
        assert isinstance(trajectory, KeptTrajectory)
        reward_BM, count = collectives.raise_on_all(
            partial(score_predictions, trajectory, rows, self.tokenizer, self.score, failed)
        )
        advantage_BM, scored = torch.zeros_like(reward_BM), ~reward_BM.isnan().any(1)
        group_B = torch.arange(len(rows)) // self.generations
        scored &= group_B[scored].bincount(minlength=len(rows))[group_B] > 1
        if scored.any():
            groups = group_B[scored].unique(return_inverse=True)[1]
            advantage_BM[scored] = self.advantages(reward_BM[scored], groups)
        known = reward_BM[~reward_BM.isnan()]
        return dataclasses.replace(
            rolled,
            trajectory=dataclasses.replace(trajectory, advantage=advantage_BM.to(trajectory.tokens.device)),
            times=rolled.times | {"time/reward_predictions": time.perf_counter() - started},
            totals=rolled.totals | {"predictions/scored": float(count)},
            sums=rolled.sums | {"predictions/reward": (float(known.sum()), len(known))},
        )
