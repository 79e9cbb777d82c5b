"""torch.compile for the forwards of rollouts."""

from typing import Any

import torch

MOST_SHAPES = 512  # that a body is compiled for; torch runs further ones uncompiled


def compiled_for_shapes(body: Any, device: torch.device) -> Any:
    """The body through torch.compile with static shapes; on a GPU each shape is replayed as a CUDA graph."""
    config: Any = torch._dynamo.config
    for limit in ("recompile_limit", "accumulated_recompile_limit"):
        setattr(config, limit, max(MOST_SHAPES, getattr(config, limit)))
    mode = "reduce-overhead" if device.type == "cuda" else "default"
    return torch.compile(body, dynamic=False, mode=mode)
