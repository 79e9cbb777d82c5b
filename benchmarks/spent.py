"""The forwards that a policy really runs, with their padding."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from lfpo.models import MaskedDiffusionLM, kv_cache
from lfpo.plan.flops import forward_flops
from lfpo.rollout import cached


@dataclass
class Forwards:
    """lengths, queries: of each row of each forward, its tokens and how many of them were run, padding included.
    predicted: positions whose logits were made."""

    lengths: list[int] = field(default_factory=list)
    queries: list[int] = field(default_factory=list)
    predicted: int = 0

    def flops(self, model: MaskedDiffusionLM) -> float:
        """Matrix FLOPs spent, counted as `lfpo.plan.flops` counts those that are needed."""
        return forward_flops(model, torch.tensor(self.lengths), self.predicted, torch.tensor(self.queries))


@contextlib.contextmanager
def recorded(model: MaskedDiffusionLM) -> Iterator[Forwards]:
    """Records the forwards of this policy inside the block."""
    found = Forwards()
    hidden, window_hidden, head = model.hidden, kv_cache.window_hidden, model.head

    def rows(ids: torch.Tensor, run: int) -> None:
        found.lengths += [ids.shape[1]] * len(ids)
        found.queries += [run] * len(ids)

    def whole(ids: torch.Tensor, *rest: Any, **more: Any) -> torch.Tensor:
        rows(ids, ids.shape[1])
        return hidden(ids, *rest, **more)

    def window(policy: MaskedDiffusionLM, ids: torch.Tensor, *rest: Any, **more: Any) -> Any:
        if policy is model:
            rows(ids, rest[2] + int(model.family.shift))  # its width
        return window_hidden(policy, ids, *rest, **more)

    def logits(states: torch.Tensor) -> torch.Tensor:
        found.predicted += states.numel() // states.shape[-1]
        return head(states)

    ours = {"hidden": whole, "head": logits}
    vars(model).update(ours)  # before the class's methods
    vars(cached)["window_hidden"] = window
    try:
        yield found
    finally:
        for name in ours:
            del vars(model)[name]
        vars(cached)["window_hidden"] = window_hidden
