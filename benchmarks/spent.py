"""The forwards that a policy really runs, with their padding."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from lfpo.models import MaskedDiffusionLM
from lfpo.train.flops import forward_flops


@dataclass
class Forwards:
    """lengths, queries: of each row of each forward, its tokens and how many of them were run, padding included.
    predicted: positions whose logits were made."""

    lengths: list[int] = field(default_factory=list)
    queries: list[int] = field(default_factory=list)
    predicted: int = 0

    def flops(self, model: MaskedDiffusionLM) -> float:
        """Matrix FLOPs spent, counted as `lfpo.train.flops` counts those that are needed."""
        return forward_flops(model, torch.tensor(self.lengths), self.predicted, torch.tensor(self.queries))


@contextlib.contextmanager
def recorded(model: MaskedDiffusionLM) -> Iterator[Forwards]:
    """Records the forwards of this policy inside the block."""
    found = Forwards()
    hidden, window_hidden, head = model.hidden, model.window_hidden, model.head

    def rows(ids: torch.Tensor, run: int) -> None:
        found.lengths += [ids.shape[1]] * len(ids)
        found.queries += [run] * len(ids)

    def whole(ids: torch.Tensor, *rest: Any, **more: Any) -> torch.Tensor:
        rows(ids, ids.shape[1])
        return hidden(ids, *rest, **more)

    def window(ids: torch.Tensor, mask: torch.Tensor, start: torch.Tensor, width: int, *rest: Any, **more: Any) -> Any:
        rows(ids, width + int(model.family.shift))
        return window_hidden(ids, mask, start, width, *rest, **more)

    def logits(states: torch.Tensor) -> torch.Tensor:
        found.predicted += states.numel() // states.shape[-1]
        return head(states)

    ours = {"hidden": whole, "window_hidden": window, "head": logits}
    vars(model).update(ours)  # before the class's methods
    try:
        yield found
    finally:
        for name in ours:
            del vars(model)[name]
