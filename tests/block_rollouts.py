"""Rollouts of a block-diffusion model by the plainest loop: each forward recomputes the row up to the end of its block.

Everything that a trajectory may hold occurs: prompts that end inside a block, steps that reveal several tokens or none
(the clock then jumps), tokens drawn after an EOS in its block, rows that end sooner than others.
"""

from collections.abc import Sequence

import torch

from lfpo.base.batching import left_pad
from lfpo.models import MaskedDiffusionLM
from lfpo.models.structure import Structure
from lfpo.rollout.sampler import SamplerConfig
from lfpo.rollout.trajectory import Trajectory, of_completions

GEN_LENGTH, BLOCK = 12, 4


@torch.no_grad()
def plain_rollouts(model: MaskedDiffusionLM, prompts: Sequence[list[int]], *, ends: Sequence[int] = ()) -> Trajectory:
    """One rollout a prompt, at temperature 1. ends: rows that draw EOS at the second position of their second block."""
    columns = GEN_LENGTH + BLOCK - 1
    tokens = torch.full((len(prompts), columns), model.pad_id)
    steps = torch.full((len(prompts), columns), -1)
    confidence, entropy = torch.zeros(len(prompts), columns), torch.zeros(len(prompts), columns)
    for row, prompt in enumerate(prompts):
        rng = torch.Generator().manual_seed(row)
        state, first, clock = list(prompt), len(prompt) // BLOCK, 0
        for block in range(first, -(-(len(prompt) + GEN_LENGTH) // BLOCK)):
            state += [model.mask_id] * ((block + 1) * BLOCK - len(state))
            while model.mask_id in state:
                ids = torch.tensor([state])
                logp = model.head(model.hidden(ids, structure=Structure(BLOCK)))[0].log_softmax(-1)
                masked = [i for i, token in enumerate(state) if token == model.mask_id]
                count = min(len(masked), int(torch.randint(1, 3, (), generator=rng)))
                for i in torch.tensor(masked)[torch.randperm(len(masked), generator=rng)[:count]].tolist():
                    odds = logp[i].exp().clone()
                    odds[[model.mask_id, model.eos_id]] = 0
                    token = int(torch.multinomial(odds, 1, generator=rng))
                    if row in ends and block == first + 1 and i % BLOCK == 1:
                        token = model.eos_id
                    state[i], column = token, i - len(prompt)
                    tokens[row, column], steps[row, column] = token, clock
                    confidence[row, column] = logp[i, token].exp()
                    entropy[row, column] = -(logp[i].exp() * logp[i]).sum()
                clock += int(torch.randint(1, 3, (), generator=rng))
            if model.eos_id in state[len(prompt) :]:
                break
    ids, mask = left_pad(list(prompts), model.pad_id)
    return of_completions(
        ids,
        mask,
        tokens,
        steps,
        confidence=confidence,
        entropy=entropy,
        sampler=SamplerConfig(gen_length=GEN_LENGTH, block_length=BLOCK, temperature=1.0),
        mask_id=model.mask_id,
        eos_id=model.eos_id,
        structure=Structure(BLOCK),
    )


def state_alone(model: MaskedDiffusionLM, trajectory: Trajectory, row: int, step: int, block: int) -> torch.Tensor:
    """Logits [positions, V] of one block of a row before a scheduled step, from a forward of its own over the prompt,
    the blocks before it and the block as the sampler saw it; of the block's completion positions."""
    prompt = trajectory.prompt_ids[row][trajectory.prompt_mask[row].bool()]
    seen = trajectory.state_before(torch.full((len(trajectory),), step))[row]
    end = (block + 1) * BLOCK
    ids = torch.cat([prompt, seen])[:end]
    start = max(block * BLOCK, len(prompt))
    return model.head(model.hidden(ids[None], structure=Structure(BLOCK))[0, start:])
