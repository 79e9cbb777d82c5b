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
class ActiveRows:
    """The A rows in flight: entered and not yet removed. All fields are per row, on the model's device.

    Finished rows (`done`) no longer change; they stay until the loop looks for them.

    row [A] int64: index in the caller's list. seed [A] int64.
    prompt_ids, prompt_mask [A, P] int64, left-padded.
    tokens [A, C] int64, reveal_step [A, C] int64, confidence, entropy [A, C] float32: see Trajectory, except that
        unrevealed positions hold the mask token.
    clock [A] int64: scheduled steps spent. block [A] int64: index of the active block. block_step [A] int64: steps of
        the active block spent.
    nfe [A] int64: forwards so far. queries [A] int64: tokens that went through them.
    age [A] int64: forwards since all keys and values of the row were computed; -1 if they must be computed next.
    done [A] bool: whether the row is finished.
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

    def select(self, index: list[int]) -> ActiveRows:
        """A copy of the rows at these places."""
        at = torch.tensor(index, dtype=torch.long, device=self.row.device)
        return ActiveRows(**{name: value[at] for name, value in tensor_fields(self).items()})


def join(parts: Sequence[ActiveRows]) -> ActiveRows:
    """The rows of all parts, in order."""
    columns = [tensor_fields(p) for p in parts]
    return ActiveRows(**{name: torch.cat([c[name] for c in columns]) for name in columns[0]})


def unstarted(
    prompts: Sequence[Sequence[int]], seeds: Sequence[int], sampler: SamplerConfig, model: MaskedDiffusionLM
) -> ActiveRows:
    """All rows before their first step, with nothing revealed. sampler.gen_length must be set."""
    device, size = model.device, len(prompts)
    assert sampler.gen_length is not None
    ids, mask = (x.to(device) for x in left_pad(prompts, model.pad_id))
    shape = (size, sampler.gen_length)

    def whole(value: int) -> torch.Tensor:
        return torch.full((size,), value, dtype=torch.long, device=device)

    return ActiveRows(
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


def finished_trajectory(finished: ActiveRows, sampler: SamplerConfig, model: MaskedDiffusionLM) -> Trajectory:
    """Finished rows as a trajectory, in the caller's order."""
    order = finished.row.argsort()
    return Trajectory(
        prompt_ids=finished.prompt_ids[order],
        prompt_mask=finished.prompt_mask[order],
        tokens=finished.tokens.masked_fill(finished.reveal_step < 0, model.pad_id)[order],
        reveal_step=finished.reveal_step[order],
        confidence=finished.confidence[order],
        entropy=finished.entropy[order],
        scheduled_steps=finished.clock[order],
        nfe=finished.nfe[order],
        queries=finished.queries[order],
        sampler=sampler,
        mask_id=model.mask_id,
        eos_id=model.eos_id,
    )
