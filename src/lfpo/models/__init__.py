"""Models: one loader for a local folder or a hub id, over transformers' own classes, without remote code."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lfpo.models.families import FAMILIES
    from lfpo.models.family import Family
    from lfpo.models.loading import init_model, load_model, load_tokenizer, save_model
    from lfpo.models.masked_lm import MaskedDiffusionLM

# Imported on first use, because settings (lfpo.config.models) are checked before torch is loaded.
_WHERE = {"FAMILIES": "families", "Family": "family", "MaskedDiffusionLM": "masked_lm"}
__all__ = ["FAMILIES", "Family", "MaskedDiffusionLM", "init_model", "load_model", "load_tokenizer", "save_model"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'lfpo.models' has no attribute {name!r}")
    return getattr(importlib.import_module(f"lfpo.models.{_WHERE.get(name, 'loading')}"), name)
