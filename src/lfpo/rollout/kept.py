"""Whole predictions kept at chosen steps of a rollout: what the completion would be if it ended there."""

import dataclasses
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from lfpo.config.errors import UserError
from lfpo.config.sampler import Sampler
from lfpo.core import collectives
from lfpo.core.active_rows import ActiveRows
from lfpo.core.batch import RolloutSource, ScoredRollouts
from lfpo.core.completions import decode_completions
from lfpo.core.forward import Forward
from lfpo.core.hooks import DrawnTokens, Hook
from lfpo.core.observer import Observer
from lfpo.core.trajectory import Trajectory
from lfpo.models import MaskedDiffusionLM
from lfpo.prompts.tasks import Row
from lfpo.rewards import Rewards


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

    like: any int64 [B, C] on the model's device. Raises UserError for forwards that do not predict whole completions.
    """

    def __init__(self, steps: Sequence[int], like: torch.Tensor, sampler: Sampler, model: MaskedDiffusionLM):
        if sampler.cache != "none":
            raise UserError(f"whole predictions cannot be kept with sampler cache {sampler.cache!r}; leave it out")
        if model.block_length:
            raise UserError(
                "whole predictions cannot be kept: the model attends block by block and predicts one block at a time"
            )
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
        return dataclasses.replace(
            trajectory,
            predicted_at=self.step_M.expand(len(row_B), -1),
            predicted_tokens=tokens,
            predicted_confidence=self.confidence[row_B],
        )


def score_predictions(
    t: Trajectory, rows: Sequence[Row], tokenizer: object, score: Callable[..., Rewards], failed: dict[str, str]
) -> tuple[torch.Tensor, int]:
    """Rewards of the predictions kept at M steps [B, M], and how many completions were scored for them: the distinct
    ones of each row. score: (data rows, texts, token ids) -> rewards. Functions that fail are added to `failed`."""
    assert t.predicted_tokens is not None
    distinct: dict[tuple[int, ...], int] = {}
    which = [
        [distinct.setdefault((b, *ids), len(distinct)) for ids in steps]
        for b, steps in enumerate(t.predicted_tokens.tolist())
    ]
    own = [rows[b] for b, *_ in distinct]
    tokens = [list(ids) for _, *ids in distinct]
    cut = [ids[: ids.index(t.eos_id) + 1] if t.eos_id in ids else ids for ids in tokens]
    rewards = score(own, decode_completions(tokenizer, torch.tensor(tokens), t.eos_id), cut)
    failed.update(rewards.failed)
    return rewards.reward_B[torch.tensor(which)], len(own)


@dataclass(frozen=True)
class WithPredictions:
    """A source of rollouts that scores their kept predictions, too, as `score` scores completions."""

    source: RolloutSource
    tokenizer: Any
    score: Callable[..., Rewards]

    def roll(self, iteration: int, observer: Observer) -> ScoredRollouts:
        rolled, started = self.source.roll(iteration, observer), time.perf_counter()
        rows, failed = [turn.row for turn in rolled.turns], rolled.rewards.failed
        predicted_BM, count = collectives.raise_on_all(
            partial(score_predictions, rolled.trajectory, rows, self.tokenizer, self.score, failed)
        )
        times = rolled.times | {"time/reward_predictions": time.perf_counter() - started}
        totals = rolled.totals | {"predictions/scored": float(count)}
        return dataclasses.replace(rolled, predicted_BM=predicted_BM, times=times, totals=totals)
