"""The rows that a rollout is denoising: before their first step, in flight, and finished."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from lfpo.config.sampler import SamplerConfig
from lfpo.core.attention import FULL
from lfpo.core.model import MaskedDiffusionLM
from lfpo.core.trajectory import Trajectory

# With a cache, rollout_tokens bounds the tokens of a forward's windows; keys and values are held for this many times
# rollout_tokens at most.
CACHED = 4

Addition = Callable[[Trajectory, torch.Tensor], Trajectory]  # lfpo.core.hooks.Hook.added_to


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
    offset [A] int64: prompt tokens in the row's first block, 0 unless the model attends block by block. blocks [A]
        int64: blocks of the row.
    storing [A] bool: whether the row's next forward stores what stands before the active block and reveals nothing in
        it, or over a causal context its first token (`first_token`).
    nfe [A] int64: forwards so far. queries [A] int64: tokens that went through them.
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
    offset: torch.Tensor
    blocks: torch.Tensor
    storing: torch.Tensor
    nfe: torch.Tensor
    queries: torch.Tensor
    done: torch.Tensor

    def select(self, index: list[int]) -> ActiveRows:
        """A copy of the rows at these places."""
        at = torch.tensor(index, dtype=torch.long, device=self.row.device)
        return ActiveRows(**{name: value[at] for name, value in vars(self).items()})


def join(parts: Sequence[ActiveRows]) -> ActiveRows:
    """The rows of all parts, in order."""
    columns = [vars(p) for p in parts]
    return ActiveRows(**{name: torch.cat([c[name] for c in columns]) for name in columns[0]})


def unstarted(
    prompts: Sequence[Sequence[int]], seeds: Sequence[int], sampler: SamplerConfig, model: MaskedDiffusionLM
) -> ActiveRows:
    """All rows before their first step, with nothing revealed. sampler: with its lengths filled in."""
    device, size = model.device, len(prompts)
    ids, mask = (x.to(device) for x in left_pad(prompts, model.pad_id))
    shape = (size, completion_columns(sampler, model))
    sizes = sizes_of_blocks(prompts, sampler, model)

    zero, no = torch.zeros(size, dtype=torch.long, device=device), torch.zeros(size, dtype=torch.bool, device=device)
    return ActiveRows(
        row=torch.arange(size, device=device),
        seed=torch.tensor(list(seeds), dtype=torch.long, device=device),
        prompt_ids=ids,
        prompt_mask=mask,
        tokens=torch.full(shape, model.mask_id, device=device),
        reveal_step=torch.full(shape, -1, device=device),
        confidence=torch.zeros(shape, dtype=torch.float32, device=device),
        entropy=torch.zeros(shape, dtype=torch.float32, device=device),
        clock=zero.clone(),
        block=zero.clone(),
        block_step=zero.clone(),
        offset=torch.tensor([first_offset(len(p), sampler, model) for p in prompts], device=device),
        blocks=torch.tensor([len(s) for s in sizes], device=device),
        storing=no.clone(),
        nfe=zero.clone(),
        queries=zero.clone(),
        done=no.clone(),
    )


def finished_trajectory(
    finished: ActiveRows, sampler: SamplerConfig, model: MaskedDiffusionLM, additions: Sequence[Addition] = ()
) -> Trajectory:
    """Finished rows as a trajectory, with what is added to it, in the caller's order."""
    order = finished.row.argsort()
    same = ("prompt_ids", "prompt_mask", "reveal_step", "confidence", "entropy", "nfe", "queries")
    trajectory = Trajectory(
        **{name: getattr(finished, name)[order] for name in same},
        tokens=finished.tokens.masked_fill(finished.reveal_step < 0, model.pad_id)[order],
        scheduled_steps=finished.clock[order],
        sampler=sampler,
        mask_id=model.mask_id,
        eos_id=model.eos_id,
        structure=model.sampling_structure(sampler.block_length),
    )
    for add in additions:
        trajectory = add(trajectory, finished.row[order])
    return trajectory


def left_pad(rows: Sequence[Sequence[int]], pad_id: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and attention mask, int64 [B, longest row] on the CPU, padded on the left so that all rows end at the
    same column."""
    width = max(len(r) for r in rows)
    ids = torch.tensor([[pad_id] * (width - len(r)) + list(r) for r in rows])
    mask = torch.tensor([[0] * (width - len(r)) + [1] * len(r) for r in rows])
    return ids, mask


def completion_columns(sampler: SamplerConfig, model: MaskedDiffusionLM) -> int:
    """C: gen_length, and block_length - 1 more where a prompt's last tokens may share a block with the completion's
    first, so that rows end with a whole block."""
    assert sampler.gen_length and sampler.block_length
    structure = model.sampling_structure(sampler.block_length)
    return sampler.gen_length + (0 if structure == FULL or structure.causal else sampler.block_length - 1)


def first_offset(prompt_length: int, sampler: SamplerConfig, model: MaskedDiffusionLM) -> int:
    """Prompt tokens in a row's first block."""
    return model.sampling_structure(sampler.block_length).shared(prompt_length)


def block_sizes(prompt_length: int, sampler: SamplerConfig, model: MaskedDiffusionLM) -> list[int]:
    """Completion positions in each block of a row. Its last block is the one that holds position gen_length - 1."""
    assert sampler.gen_length and sampler.block_length
    offset, size = first_offset(prompt_length, sampler, model), sampler.block_length
    blocks = -(-(offset + sampler.gen_length) // size)
    return [size - offset, *[size] * (blocks - 1)]


def sizes_of_blocks(
    prompts: Sequence[Sequence[int]], sampler: SamplerConfig, model: MaskedDiffusionLM
) -> list[list[int]]:
    """`block_sizes` of each row."""
    return [block_sizes(len(prompt), sampler, model) for prompt in prompts]


def rows_in_flight(length: int, sampler: SamplerConfig, rollout_tokens: int, stores: bool = False) -> int:
    """Rows of `length` tokens that run at once. stores: whether finished blocks are stored (see
    lfpo.rollout.cached.StoredBlocks)."""
    if sampler.cache == "none" and not stores:
        return max(1, rollout_tokens // length)
    window = sampler.block_length if sampler.cache == "dual" or stores else sampler.gen_length
    assert window
    return max(1, min(rollout_tokens // window, CACHED * rollout_tokens // length))
