"""The state of the rows that a rollout is denoising."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from lfpo.base.batching import left_pad, tensor_fields
from lfpo.models import MaskedDiffusionLM
from lfpo.rollout.sampler import SamplerConfig
from lfpo.rollout.trajectory import Trajectory


@dataclass
class Lanes:
    """A rows in flight. Everything is per row, clocks included; rows that are done no longer change.

    row [A]: index in the caller's list. seed [A]. prompt_ids, prompt_mask [A, P], padded on the left.
    tokens, reveal_step, confidence, entropy [A, C]: see Trajectory; the mask token where nothing is revealed yet.
    clock: scheduled steps spent. block: the active block. block_step: steps of it spent. done: whether it is finished.
    nfe: forwards so far. queries: tokens that went through them.
    age: forwards since the row's keys and values were all renewed, -1 when they must be.
    plan [A, C]: the step of its block at which a position is due, where that is drawn beforehand (Dream's "origin").
    """

    row: torch.Tensor
    seed: torch.Tensor
    prompt_ids: torch.Tensor
    prompt_mask: torch.Tensor
    tokens: torch.Tensor
    reveal_step: torch.Tensor
    confidence: torch.Tensor
    entropy: torch.Tensor
    clock: torch.Tensor
    block: torch.Tensor
    block_step: torch.Tensor
    nfe: torch.Tensor
    queries: torch.Tensor
    age: torch.Tensor
    done: torch.Tensor
    plan: torch.Tensor | None = None

    def select(self, index: list[int]) -> Lanes:
        """Copies of some rows."""
        at = torch.tensor(index, dtype=torch.long, device=self.row.device)
        return Lanes(**{name: value[at] for name, value in tensor_fields(self).items()})


def join(parts: Sequence[Lanes]) -> Lanes:
    columns = [tensor_fields(p) for p in parts]
    return Lanes(**{name: torch.cat([c[name] for c in columns]) for name in columns[0]})


def new_lanes(
    prompts: Sequence[Sequence[int]], seeds: Sequence[int], sampler: SamplerConfig, model: MaskedDiffusionLM
) -> Lanes:
    """All rows before their first step."""
    device, size = model.device, len(prompts)
    assert sampler.gen_length is not None
    ids, mask = (x.to(device) for x in left_pad(prompts, model.pad_id))
    shape = (size, sampler.gen_length)

    def whole(value: int) -> torch.Tensor:
        return torch.full((size,), value, dtype=torch.long, device=device)

    return Lanes(
        row=torch.arange(size, device=device),
        seed=torch.tensor(list(seeds), dtype=torch.long, device=device),
        prompt_ids=ids,
        prompt_mask=mask,
        tokens=torch.full(shape, model.mask_id, device=device),
        reveal_step=torch.full(shape, -1, device=device),
        confidence=torch.zeros(shape, dtype=torch.float32, device=device),
        entropy=torch.zeros(shape, dtype=torch.float32, device=device),
        clock=whole(0),
        block=whole(0),
        block_step=whole(0),
        nfe=whole(0),
        queries=whole(0),
        age=whole(-1),
        done=torch.zeros(size, dtype=torch.bool, device=device),
    )


def finished_trajectory(lanes: Lanes, sampler: SamplerConfig, model: MaskedDiffusionLM) -> Trajectory:
    """Finished rows as a trajectory, in the caller's order."""
    order = lanes.row.argsort()
    return Trajectory(
        prompt_ids=lanes.prompt_ids[order],
        prompt_mask=lanes.prompt_mask[order],
        tokens=lanes.tokens.masked_fill(lanes.reveal_step < 0, model.pad_id)[order],
        reveal_step=lanes.reveal_step[order],
        confidence=lanes.confidence[order],
        entropy=lanes.entropy[order],
        scheduled_steps=lanes.clock[order],
        nfe=lanes.nfe[order],
        queries=lanes.queries[order],
        sampler=sampler,
        mask_id=model.mask_id,
        eos_id=model.eos_id,
    )
