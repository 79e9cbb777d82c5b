"""What differs between model families, as data: configuration, key names, logit shift, special tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from transformers import PretrainedConfig


@dataclass(frozen=True)
class Family:
    """One family of masked diffusion language models over one of transformers' own architectures.

    name: what messages and metadata call it.
    model_types: values of `model_type` in config.json that mean this family.
    architecture: name of the transformers class, e.g. "LlamaForCausalLM".
    hf_config: turns the family's config.json into that class's configuration (a KeyError names a missing field).
    rename: (checkpoint name, transformers name) pairs. Each is a piece of a key that ends at a dot or at the key's
        end; the first match wins. They are applied left to right on loading and right to left on saving.
    shift: True where logits at position i predict token i + 1 (models grown from an autoregressive one).
    mask_token: the mask token's text, where neither config nor tokenizer names one.
    tokenizer_class: transformers tokenizer class for checkpoints whose own one is remote code and that ship no
        tokenizer.json (None: let AutoTokenizer decide).
    """

    name: str
    model_types: tuple[str, ...]
    architecture: str
    hf_config: Callable[[dict[str, Any]], PretrainedConfig]
    rename: tuple[tuple[str, str], ...] = field(default=())
    shift: bool = False
    mask_token: str = "<|mask|>"
    tokenizer_class: str | None = None

    def to_transformers(self, key: str) -> str:
        """The transformers parameter name of a checkpoint key."""
        return _rename(key, self.rename)

    def to_checkpoint(self, key: str) -> str:
        """The family's own name of a transformers parameter."""
        return _rename(key, tuple((new, old) for old, new in self.rename))


def _rename(key: str, pairs: tuple[tuple[str, str], ...]) -> str:
    for old, new in pairs:
        # Both sides of a pair may hold "N", the layer number, which is carried over.
        if "N" in old:
            prefix, suffix = old.split("N")
            if key.startswith(prefix):
                number, _, rest = key[len(prefix) :].partition(".")
                if number.isdigit() and ("." + rest).startswith(suffix + "."):
                    return new.replace("N", number) + ("." + rest)[len(suffix) :]
        elif key == old or key.startswith(old + "."):
            return new + key[len(old) :]
    return key
