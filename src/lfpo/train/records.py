"""Rollouts as JSON data, one object a completion: rollouts/step-N.jsonl and the completions of an evaluation."""

import math

import torch

from lfpo.config.json import Json
from lfpo.core.batch import Batch
from lfpo.core.trajectory import Trajectory
from lfpo.prompts.sources import kept_columns
from lfpo.prompts.tasks import Row
from lfpo.prompts.tokenizer import token_texts


def rollout_records(batch: Batch, signal_B: torch.Tensor, tokenizer: object) -> list[Json]:
    """One JSON object for each of this rank's rows. signal_B: what the loss took instead of their rewards, [B]."""
    rewards = batch.rewards
    return [
        {
            **completion_record(batch.trajectory, b, turn.row, turn.text, tokenizer),
            **turn.note,
            "rewards": {name: values[turn.rollout] for name, values in rewards.parts.items()},
            "reward": None if math.isnan(reward := float(rewards.reward_B[turn.rollout])) else reward,
            "r": float(signal_B[b].mean()),
        }
        for b, turn in enumerate(batch.turns)
    ]


def completion_record(t: Trajectory, b: int, row: Row, text: str, tokenizer: object) -> Json:
    """Row b of a trajectory as JSON data: the prompt and the other columns of its `row`, the completion, and when and
    how surely each token was revealed; and what the kind of trajectory adds (see its `recorded`)."""
    record = {
        "prompt": row["prompt"],
        "columns": kept_columns(row),
        "prompt_ids": t.prompt_ids[b][t.prompt_mask[b].bool()].tolist(),
        "completion": text,
        "token_ids": t.tokens[b].tolist(),
        "tokens": token_texts(tokenizer, t.tokens[b, : int(t.lengths[b])].tolist()),
        "reveal_step": t.reveal_step[b].tolist(),
        "confidence": [round(c, 5) for c in t.confidence[b].tolist()],
        "scheduled_steps": int(t.scheduled_steps[b]),
        "nfe": int(t.nfe[b]),
    }
    return {**record, **t.recorded(b, tokenizer)}
