"""LLaDA2.0's published sampling loop: each forward runs the whole text up to the end of the active block, with logits
at every position. Nothing is stored.

Benchmarks and tests compare the engine with it.
"""

from collections.abc import Sequence

import torch

from lfpo.config.sampler import Sampler
from lfpo.core.active_rows import ActiveRows
from lfpo.core.denoise import finished_trajectory
from lfpo.core.forward import before_first_step
from lfpo.core.schedule import reveal_schedule
from lfpo.core.structure import Structure
from lfpo.core.trajectory import Trajectory
from lfpo.models import MaskedDiffusionLM


@torch.no_grad()
def plain_block_rollout(model: MaskedDiffusionLM, prompts: Sequence[Sequence[int]], sampler: Sampler) -> Trajectory:
    """Greedy low-confidence remasking by a model that attends block by block; prompts of one length form a batch.

    A row ends after the block with its first EOS.
    Differences from the published code: the mask token is never chosen, and temperature 0 is greedy. `queries` counts
    the tokens of all forwards.
    """
    rows, counts = before_first_step(prompts, [0] * len(prompts), sampler, model), reveal_schedule(sampler).tolist()
    for length in {len(prompt) for prompt in prompts}:
        index = torch.tensor([i for i, prompt in enumerate(prompts) if len(prompt) == length], device=model.device)
        text = torch.cat([rows.prompt_ids[index][:, rows.prompt_ids.shape[1] - length :], rows.tokens[index]], dim=1)
        for block in range(int(rows.blocks[index[0]])):
            if not len(index):
                break
            start, end = _columns(rows, index, block, length, sampler)
            for count in counts:
                if bool((text[:, start:end] == model.mask_id).any()):
                    _forward(model, text, (start, end), count, sampler)
                    _record(rows, index, text[:, length:], end, model)
            goes_on = ~(text[:, length:end] == model.eos_id).any(-1)
            index, text = index[goes_on], text[goes_on]
    return finished_trajectory(rows, sampler, model)


def _columns(rows: ActiveRows, index: torch.Tensor, block: int, length: int, sampler: Sampler) -> tuple[int, int]:
    """The first and last + 1 places of a block of rows with prompts of `length` tokens."""
    start = length - int(rows.offset[index[0]]) + block * sampler.block_length
    return start, start + sampler.block_length


def _forward(
    model: MaskedDiffusionLM, text: torch.Tensor, block: tuple[int, int], count: int, sampler: Sampler
) -> None:
    """One forward of the text up to the block's end; reveals the block's `count` most confident tokens in place."""
    start, end = block
    structure = Structure(sampler.block_length)
    logits = model.head(model.hidden(text[:, :end], structure=structure))[:, start:]
    total = logits.logsumexp(-1)
    logits[..., model.mask_id] = -torch.inf
    best, token = logits.max(-1)
    masked = text[:, start:end] == model.mask_id
    confidence = (best.double() - total).exp().masked_fill(~masked, -torch.inf)
    chosen = confidence.topk(min(count, int(masked[0].sum())), dim=-1).indices
    text[:, start:end] = text[:, start:end].scatter(1, chosen, token.gather(1, chosen))


def _record(rows: ActiveRows, index: torch.Tensor, tokens: torch.Tensor, run: int, model: MaskedDiffusionLM) -> None:
    """Write what one forward over `run` tokens of each row has revealed."""
    fresh = (tokens != model.mask_id) & (rows.reveal_step[index] < 0)
    rows.reveal_step[index] = torch.where(fresh, rows.clock[index][:, None], rows.reveal_step[index])
    rows.tokens[index] = tokens
    for counter, more in ((rows.clock, 1), (rows.nfe, 1), (rows.queries, run)):
        counter[index] += more
