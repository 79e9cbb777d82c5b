"""Training states where noise is uniform over the vocabulary: what conditions the prediction of a noised canvas."""

import torch

from lfpo.core.attention import Structure
from lfpo.core.fused import rows_of_a_chunk
from lfpo.core.model import MaskedDiffusionLM

CONDITIONED = 0.5  # share of the noised states that are conditioned on a first prediction of themselves, as published


@torch.no_grad()
def conditioning(
    model: MaskedDiffusionLM,
    before_BL: torch.Tensor,
    clean_BL: torch.Tensor,
    attention_mask_BL: torch.Tensor,
    prompt_B: torch.Tensor,
    temperature_BL: torch.Tensor,
    structure: Structure,
) -> torch.Tensor:
    """`conditioning_BND` of MaskedDiffusionLM.noised_hidden: what the model predicts, itself unconditioned, of the
    noised tokens before_BL, at a temperature. Where that is 0, so is the signal: there is none.

    One forward of the rows that have a temperature above 0. Of the first row where none has: with split weights a
    forward is a collective.
    """
    some = temperature_BL.any(-1)
    some[0] |= ~some.any()
    states, _ = model.noised_hidden(
        before_BL[some], clean_BL[some], attention_mask_BL[some], prompt_B[some], structure=structure
    )
    temperature = temperature_BL[some][:, -states.shape[1] :]
    parts, size = [], rows_of_a_chunk(states.device, model.vocab_size)
    at = temperature > 0
    for hidden, t in zip(states[at].split(size), temperature[at].split(size), strict=True):
        parts.append(model.conditioning((model.head(hidden) / t[:, None]).to(model.dtype)))
    signal = torch.zeros_like(states).masked_scatter(at[..., None], torch.cat(parts))
    columns = before_BL.shape[1] - int((attention_mask_BL.int().argmax(-1) + structure.first_noised(prompt_B)).min())
    out = signal.new_zeros(len(before_BL), columns, signal.shape[-1])
    out[some, columns - signal.shape[1] :] = signal
    return out
