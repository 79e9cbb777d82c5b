"""What a model with uniform noise does differently from one that fills in masks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from lfpo.config.errors import UserError
from lfpo.config.json import Json
from lfpo.contrib.canvases.cap import Cap
from lfpo.contrib.canvases.noise import CONDITIONED, conditioning, with_noise
from lfpo.contrib.canvases.sampler import denoise_canvases
from lfpo.contrib.canvases.windows import by_kind, windows_of
from lfpo.core.engine import Request
from lfpo.core.hooks import Hook
from lfpo.core.model import MaskedDiffusionLM
from lfpo.core.structure import Doubled, Structure
from lfpo.core.trajectory import Trajectory
from lfpo.core.views import Views


class CanvasModel(MaskedDiffusionLM):
    """A model whose noise is uniform over the vocabulary: there is no mask token, and canvases of `block_length` tokens
    are denoised over a causal context, conditioned on the prediction before.

    windows: layers are of kinds, which attend within windows of so many tokens (None: to all).
    """

    asks_about_all = True
    own_rule = "canvas"

    def __init__(self, backbone: Any, family: Any, config: Json, **facts: Any):
        super().__init__(backbone, family, config, **facts)
        self.windows = windows_of(backbone.config)
        cap = getattr(backbone.config, "final_logit_softcapping", None)
        self.logit_map = None if cap is None else Cap(cap)

    def attention_mask(
        self, structure: Structure, real_BL: torch.Tensor, doubled: Doubled | None = None
    ) -> dict[str, Any]:
        """A mask for each kind of layers."""
        masks = {}
        for kind, own in by_kind(structure, self.windows).items():
            masks[kind] = own.mask(real_BL, self.body_dtype, doubled)
        return masks

    def noise(self, length: int, rng: torch.Generator) -> tuple[torch.Tensor, bool]:
        token_C = torch.randint(self.vocab_size, (length,), generator=rng)
        return token_C, bool(torch.rand((), generator=rng) < CONDITIONED)

    def noised_views(self, views: Views, seeds: Sequence[int], inner: int) -> Views:
        return with_noise(views, seeds, inner, self.vocab_size)

    def signal(
        self,
        noised_BL: torch.Tensor,
        clean_BL: torch.Tensor,
        attention_mask_BL: torch.Tensor,
        prompt_B: torch.Tensor,
        temperature_BL: torch.Tensor,
        *,
        structure: Structure,
    ) -> torch.Tensor:
        return conditioning(self, noised_BL, clean_BL, attention_mask_BL, prompt_B, temperature_BL, structure)

    def doubled_inputs(self, columns: int, signal: torch.Tensor | None) -> Json:
        return {"canvas": columns, "conditioning": signal}

    def hidden_of_noised(self, input_ids_BL: torch.Tensor) -> torch.Tensor:
        """All tokens as those of one canvas, without masks."""
        positions = torch.arange(input_ids_BL.shape[1], device=input_ids_BL.device)[None].expand(input_ids_BL.shape)
        return self.body(
            input_ids=input_ids_BL,
            attention_mask=dict.fromkeys(self.windows),
            position_ids=positions,
            canvas=input_ids_BL.shape[1],
        )

    def sample_unit(
        self, unit: Request, hook: Hook | None = None, compiled: bool = False, **options: Any
    ) -> Trajectory:
        """Raises UserError for what needs tokens that stay as revealed."""
        for name, value in (("rollout_compile", compiled), ("variant", unit.variant), ("hook", hook)):
            if value:
                raise UserError(
                    f"{name}: {self.family.name} models revise their tokens, and {name} needs tokens that stay; "
                    "leave it out"
                )
        return denoise_canvases(self, unit.prompts, unit.sampler, unit.seeds, **options)
