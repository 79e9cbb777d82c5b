"""The settings of LoRA adapters, which lfpo.models.lora makes. Settings are checked before torch is loaded."""

from __future__ import annotations

from dataclasses import dataclass

from lfpo.base.checks import at_least_one


@dataclass(frozen=True)
class LoraSettings:
    """r: rank. lora_alpha: an adapter is scaled by lora_alpha / r. Defaults are d1's.

    target_modules: "all-linear" (every linear layer but the head; in a mixture of experts those of the attention);
        "as-published" (the layers that d1's list matches: in LLaDA only q, k, v and up, because its output, gate and
        down projections have other names); or a list of names, the family's own or transformers'.
    experts: adapt the experts' matrices too, each expert with factors of rank r. With `target_modules: []` nothing else
        is adapted.

    There is no dropout: with it, two forwards of the same policy would give different probabilities.
    """

    r: int = 128
    lora_alpha: float = 64
    target_modules: str | list[str] = "all-linear"
    experts: bool = False

    def __post_init__(self) -> None:
        at_least_one(self, "r")
        if not self.lora_alpha > 0:
            raise ValueError(f"lora_alpha {self.lora_alpha} must be above 0")
