"""lfpo: reinforcement learning with verifiable rewards for masked diffusion language models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .models import load_model, load_tokenizer, save_model
    from .sampler import SamplerConfig
    from .train import LFPOTrainer
    from .train_config import LFPOConfig

__version__ = "0.1.0"

# Imported on first use: `lfpo --help` should not wait for torch.
_WHERE = {
    "LFPOConfig": "train_config",
    "LFPOTrainer": "train",
    "SamplerConfig": "sampler",
    "load_model": "models",
    "load_tokenizer": "models",
    "save_model": "models",
}
__all__ = ["LFPOConfig", "LFPOTrainer", "SamplerConfig", "load_model", "load_tokenizer", "save_model"]


def __getattr__(name: str) -> Any:
    import importlib

    if name not in _WHERE:
        raise AttributeError(f"module 'lfpo' has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_WHERE[name]}", __name__), name)
