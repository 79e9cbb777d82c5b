"""Layers of several kinds, which attend within windows of different lengths."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from lfpo.core.structure import Structure


@dataclass(frozen=True)
class Windowed(Structure):
    """A causal context of which tokens see a window.

    window: how far back they see (None: all the way): a clean token itself and `window` - 1 tokens before it, a noised
        one its block and `window` - 1 clean tokens before the block.
    """

    window: int | None = None

    def near(self, query_position: torch.Tensor, key_position: torch.Tensor) -> torch.Tensor | None:
        return None if self.window is None else key_position > query_position - self.window


def by_kind(structure: Structure, windows: Mapping[str, int | None]) -> dict[str, Structure]:
    """The structure in each kind of layers. windows: as of `windows_of`."""
    own = (structure.block_length, structure.causal, structure.doubled)
    return {kind: Windowed(*own, window) for kind, window in windows.items()}


def windows_of(config: Any) -> dict[str, int | None]:
    """How far back the tokens of each kind of layers see (None: all the way), of the text model's configuration."""
    return {"full_attention": None, "sliding_attention": config.sliding_window}
