"""Forwards in the doubled layout [noised; clean]: each block is predicted from its own noised tokens and the clean
tokens before it."""

import dataclasses

import torch

from lfpo.core.model import MaskedDiffusionLM, shifted
from lfpo.core.structure import Doubled, Structure


def training_structure(model: MaskedDiffusionLM) -> Structure:
    """The model's structure in forwards that predict masked tokens of known rows, as in training: with blocks in the
    doubled layout."""
    return dataclasses.replace(model.structure, doubled=model.block_length is not None)


def noised_hidden(
    model: MaskedDiffusionLM,
    noised_BL: torch.Tensor,
    clean_BL: torch.Tensor,
    attention_mask_BL: torch.Tensor,
    prompt_B: torch.Tensor,
    *,
    structure: Structure,
    signal: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`hidden` of the last N columns of noised rows, [B, N, D], and of the clean rows, [B, L, D].

    In the doubled layout one forward of N + L tokens gives both; N holds all completions. In full attention the
    noised rows are run alone: N is L, and the second tensor is the first.
    clean_BL: the same rows without noise. prompt_B: prompt tokens of each row, which are not noised. Both are read
    in the doubled layout only. With the logit shift a block's first token is predicted by the token before it,
    whose block is finished: by the clean rows, as in rollouts.
    signal: what conditions the prediction, where the family has that (MaskedDiffusionLM.signal).
    """
    if not structure.doubled:
        hidden = model.hidden(noised_BL, attention_mask_BL)
        return hidden, hidden
    real_BL = attention_mask_BL.bool()
    padding_B = real_BL.int().argmax(-1)
    start = int((padding_B + structure.first_noised(prompt_B)).min())
    doubled, position_BL = Doubled(prompt_B, real_BL.shape[1] - start), structure.positions(real_BL)
    hidden = model.body(
        input_ids=torch.cat([noised_BL[:, start:], clean_BL], dim=1),
        attention_mask=model.attention_mask(structure, real_BL, doubled),
        position_ids=torch.cat([position_BL[:, start:], position_BL], dim=1),
        **model.doubled_inputs(doubled.noised, signal),
    )
    hidden = (shifted(hidden) if model.family.shift else hidden).to(model.dtype)
    noised, clean = hidden.split([doubled.noised, real_BL.shape[1]], dim=1)
    if model.family.shift and structure.block_length is not None:
        first_BN = position_BL[:, start:] % structure.block_length == 0
        noised = torch.where(first_BN[..., None], clean[:, start:], noised)
    return noised, clean
