"""Rollouts as JSON data, one object a completion: rollouts/step-N.jsonl and the completions of an evaluation."""

import math

import torch

from lfpo.config.json import Json
from lfpo.core.batch import Batch
from lfpo.core.trajectory import Trajectory
from lfpo.prompts.sources import kept_columns
from lfpo.prompts.tasks import Row
from lfpo.prompts.tokenizer import token_texts
from lfpo.rollout.canvas import CanvasTrajectory
from lfpo.rollout.edits import EditedTrajectory


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
    how surely each token was revealed. `edits`, where the sampler edits: for each edited position the tokens that it
    held, the revealed one first, each as [step, token id, text, confidence]. `canvases`, with the rule "canvas": the
    token ids up to the completion's length before the n-th step of each canvas, -1 where a canvas had fewer.
    """
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
    if isinstance(t, CanvasTrajectory):
        steps, length = int(t.steps_of_canvas[b].max()), int(t.lengths[b])
        return {**record, "canvases": t.canvases[b, :steps, :length].tolist()}
    return {**record, "edits": _edited(t, b, tokenizer)} if isinstance(t, EditedTrajectory) else record


def _edited(t: EditedTrajectory, b: int, tokenizer: object) -> dict[str, list[list[object]]]:
    """The tokens that each edited position of row b held, as `completion_record` gives them."""
    one = t.rows(torch.tensor([b], device=t.tokens.device)).to("cpu")
    assert isinstance(one, EditedTrajectory)
    place = one.at_writes(torch.arange(one.tokens.shape[1])[None])
    token = torch.cat([one.revealed, one.edit_token], dim=1)
    columns = (place, one.with_edits("reveal_step"), token, one.with_edits("confidence"))
    held: dict[str, list[list[object]]] = {}
    for position, step, token_id, sure in zip(*(column[0].tolist() for column in columns), strict=True):
        if step >= 0:
            text = token_texts(tokenizer, [token_id])[0]
            held.setdefault(str(position), []).append([step, token_id, text, round(sure, 5)])
    return {position: tokens for position, tokens in held.items() if len(tokens) > 1}
