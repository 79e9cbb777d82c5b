"""Forwards in the doubled layout [noised; clean]: each block is predicted from its own noised tokens and the clean
tokens before it."""

import dataclasses

import torch

from lfpo.config.json import Json
from lfpo.core.model import MaskedDiffusionLM, shifted
from lfpo.core.structure import Doubled, Structure
from lfpo.core.views import Views


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
    conditioning_BND: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`hidden` of the last N columns of noised rows, [B, N, D], and of the clean rows, [B, L, D].

    In the doubled layout one forward of N + L tokens gives both; N holds all completions. In full attention the
    noised rows are run alone: N is L, and the second tensor is the first.
    clean_BL: the same rows without noise. prompt_B: prompt tokens of each row, which are not noised. Both are read
    in the doubled layout only. With the logit shift a block's first token is predicted by the token before it,
    whose block is finished: by the clean rows, as in rollouts.
    conditioning_BND: for uniform noise, what `conditioning` gives of an earlier prediction of the noised columns; 0
        where a row has none.
    """
    if not structure.doubled:
        hidden = model.hidden(noised_BL, attention_mask_BL)
        return hidden, hidden
    real_BL = attention_mask_BL.bool()
    padding_B = real_BL.int().argmax(-1)
    start = int((padding_B + structure.first_noised(prompt_B)).min())
    doubled, position_BL = Doubled(prompt_B, real_BL.shape[1] - start), structure.positions(real_BL)
    canvas: Json = {}
    if model.uniform:
        canvas = {"canvas": doubled.noised, "conditioning": conditioning_BND}
    hidden = model.body(
        input_ids=torch.cat([noised_BL[:, start:], clean_BL], dim=1),
        attention_mask=structure.mask(real_BL, model.body_dtype, doubled, model.windows),
        position_ids=torch.cat([position_BL[:, start:], position_BL], dim=1),
        **canvas,
    )
    hidden = (shifted(hidden) if model.family.shift else hidden).to(model.dtype)
    noised, clean = hidden.split([doubled.noised, real_BL.shape[1]], dim=1)
    if model.family.shift and structure.block_length is not None:
        first_BN = position_BL[:, start:] % structure.block_length == 0
        noised = torch.where(first_BN[..., None], clean[:, start:], noised)
    return noised, clean


def hidden_at_targets(model: MaskedDiffusionLM, views: Views, conditioning_BND: torch.Tensor | None) -> torch.Tensor:
    """Hidden states [T, D] of the targets of views in the doubled layout. conditioning_BND: see `noised_hidden`."""
    noised_SND, clean_SLD = noised_hidden(
        model,
        views.input_ids,
        views.labels if views.clean is None else views.clean,
        views.attention_mask,
        views.prompt,
        structure=views.structure,
        conditioning_BND=conditioning_BND,
    )
    hidden_TD = noised_SND[views.target[:, -noised_SND.shape[1] :]]
    if views.from_clean is None:
        return hidden_TD
    view_T, column_T = views.target.nonzero().unbind(-1)
    before_TD = clean_SLD[view_T, column_T - 1]  # no target is the first token of a row
    return torch.where(views.from_clean[views.target][:, None], before_TD, hidden_TD)
