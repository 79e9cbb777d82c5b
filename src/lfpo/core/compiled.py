"""torch.compile for the forwards of rollouts, and the few shapes that these are padded to."""

from typing import Any

import torch
from torch.nn import functional as F

from lfpo.core.model import MaskedDiffusionLM
from lfpo.core.structure import Structure

LENGTH_BUCKET = 64  # compiled forwards are padded to multiples of this length
MOST_SHAPES = 512  # that a body is compiled for; torch runs further ones uncompiled


def compiled_for_shapes(body: Any, device: torch.device) -> Any:
    """The body through torch.compile with static shapes; on a GPU each shape is replayed as a CUDA graph."""
    config: Any = torch._dynamo.config
    for limit in ("recompile_limit", "accumulated_recompile_limit"):
        setattr(config, limit, max(MOST_SHAPES, getattr(config, limit)))
    mode = "reduce-overhead" if device.type == "cuda" else "default"
    return torch.compile(body, dynamic=False, mode=mode)


def compiled_body(model: MaskedDiffusionLM) -> Any:
    """The model's body through torch.compile, which compiles once for each input shape; made at the first call."""
    if not model._compiled:
        # In a list, so that torch does not register the compiled body as a second set of parameters.
        model._compiled.append(compiled_for_shapes(model.backbone.model, model.device))
    return model._compiled[0]


def padded_hidden(
    model: MaskedDiffusionLM, ids: torch.Tensor, mask: torch.Tensor, cache: Any, structure: Structure
) -> torch.Tensor:
    """`MaskedDiffusionLM.hidden` from a compiled forward, padded to one of few shapes; the padding is cut off again."""
    size, left = len(ids), -ids.shape[1] % LENGTH_BUCKET
    ids, mask = padded(ids, mask, bucket(size), left, model.pad_id)
    hidden = model.hidden(ids, mask, cache, structure=structure, run=compiled_body(model))[:size, left:]
    if cache is not None:
        cache.store()
    return hidden


def padded(
    ids: torch.Tensor, mask: torch.Tensor, rows: int, left: int, pad_id: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs with `rows` rows, the added ones copies of the first, and `left` columns of padding on the left."""
    extra = rows - len(ids)
    ids = F.pad(torch.cat([ids, ids[:1].expand(extra, -1)]), (left, 0), value=pad_id)
    return ids, F.pad(torch.cat([mask, mask[:1].expand(extra, -1)]), (left, 0))


def bucket(rows: int) -> int:
    """The least number of rows that is at least `rows` and a power of two or one and a half times one."""
    power = 1 << (rows - 1).bit_length()
    return power * 3 // 4 if power >= 4 and rows <= power * 3 // 4 else power
