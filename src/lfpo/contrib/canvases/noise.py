"""Training states where noise is uniform over the vocabulary: random tokens in place of masks, and what conditions the
prediction of a canvas."""

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from lfpo.core import collectives
from lfpo.core.doubled import noised_hidden
from lfpo.core.fused import rows_of_a_chunk
from lfpo.core.model import NO_TOKEN, OLD, MaskedDiffusionLM
from lfpo.core.rng import key, uniform
from lfpo.core.structure import Structure
from lfpo.core.views import BlockViews, Views

CONDITIONED = 0.5  # share of the noised states that are conditioned on a first prediction of themselves, as published
# Purposes of random numbers of a view: its tokens, and whether it is conditioned.
TOKEN, SIGNAL = range(2)


@dataclass
class CanvasViews(BlockViews):
    """Views whose prediction is conditioned on an earlier one.

    before [S, L]: the tokens whose prediction by theta_old conditions that of input_ids. temperature [S, L]: of that
        prediction; 0 where there is none.
    """

    before: torch.Tensor = field(kw_only=True)
    temperature: torch.Tensor = field(kw_only=True)

    def signal(self, policies: Mapping[str, MaskedDiffusionLM]) -> tuple[torch.Tensor, list[tuple[str, Views]]]:
        """That of theta_old for every policy, or else a difference of logits were not the policy's alone."""
        clean = self.labels if self.clean is None else self.clean
        row = (self.before, clean, self.attention_mask, self.prompt, self.temperature)
        of_old = conditioning(policies[OLD], *row, self.structure)
        return of_old, [(OLD, self.select((self.temperature > 0).any(-1)))]

    def step_temperatures(self) -> torch.Tensor:
        canvas = self.sampler.canvas
        of_step = [canvas.temperature(step) for step in range(canvas.max_denoising_steps)]
        return torch.tensor(of_step, device=self.state.device)[self.state]


def conditioned(views: Views, before: torch.Tensor, temperature: torch.Tensor) -> CanvasViews:
    """The views, conditioned on the prediction of other tokens. The tensors are those of CanvasViews."""
    assert isinstance(views, BlockViews)
    return CanvasViews(**vars(views), before=before, temperature=temperature)


def with_noise(views: Views, seeds: Sequence[int], inner: int, vocab_size: int) -> CanvasViews:
    """Views with uniform tokens where they have masks. Half of those that are noised are conditioned on a prediction of
    themselves; states of the sampler on that of the canvas before, as they were.

    seeds: the keys of the rollouts that `views.row` numbers. inner: the pass through them.
    """
    numbers, seed = Counter[int](), []
    for row in views.row.tolist():
        seed.append(key(seeds[row], "noise", inner, numbers[row]))
        numbers[row] += 1
    seed_S1 = torch.tensor(seed, dtype=torch.long, device=views.row.device)[:, None]
    from_end_L = torch.arange(views.input_ids.shape[1], device=seed_S1.device).flip(0)  # padding is on the left
    token_SL = (uniform(seed_S1, TOKEN, from_end_L) * vocab_size).long()
    input_ids = torch.where(views.input_ids == NO_TOKEN, token_SL, views.input_ids)
    if isinstance(views, CanvasViews):
        return dataclasses.replace(views, input_ids=input_ids)
    real = views.attention_mask.bool()
    in_canvas = real & (real.cumsum(-1) > views.prompt[:, None])
    temperature = (in_canvas & (uniform(seed_S1, SIGNAL, 0) < CONDITIONED)).float()
    return conditioned(dataclasses.replace(views, input_ids=input_ids), input_ids, temperature)


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
    """`conditioning_BND` of lfpo.core.doubled.noised_hidden: what the model predicts, itself unconditioned, of the
    noised tokens before_BL, at a temperature. Where that is 0, so is the signal: there is none.

    One forward of the rows that have a temperature above 0. Where none has, no forward; with several ranks that of the
    first row, since with split weights a forward is a collective.
    """
    columns = before_BL.shape[1] - int((attention_mask_BL.int().argmax(-1) + structure.first_noised(prompt_B)).min())
    some = temperature_BL.any(-1)
    if not some.any():
        if collectives.world() == 1:
            width = model.head_weight.shape[1]
            return torch.zeros(len(before_BL), columns, width, dtype=model.dtype, device=before_BL.device)
        some[0] = True
    states, _ = noised_hidden(
        model, before_BL[some], clean_BL[some], attention_mask_BL[some], prompt_B[some], structure=structure
    )
    temperature = temperature_BL[some][:, -states.shape[1] :]
    parts, size = [], rows_of_a_chunk(states.device, model.vocab_size)
    at = temperature > 0
    for hidden, t in zip(states[at].split(size), temperature[at].split(size), strict=True):
        parts.append(expected_embeddings(model, (model.head(hidden) / t[:, None]).to(model.dtype)))
    signal = torch.zeros_like(states).masked_scatter(at[..., None], torch.cat(parts))
    out = signal.new_zeros(len(before_BL), columns, signal.shape[-1])
    out[some, columns - signal.shape[1] :] = signal
    return out


@torch.no_grad()
def expected_embeddings(model: MaskedDiffusionLM, logits: torch.Tensor) -> torch.Tensor:
    """What conditions the next prediction of a canvas on this one: the expected embeddings [..., D] of its tokens
    under softmax(logits [..., V]), in the weights' dtype, scaled as embeddings are."""
    weight = model.head_weight
    expected = logits.softmax(-1, dtype=torch.float32).to(weight.dtype) @ weight
    return expected * embedding_scale(model.backbone.config, weight.dtype)


def embedding_scale(config: Any, dtype: torch.dtype) -> float:
    """What embeddings are multiplied by, rounded to their dtype as in the published code."""
    return float(torch.tensor(config.hidden_size**0.5).to(dtype))
