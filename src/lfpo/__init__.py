"""lfpo: reinforcement learning with verifiable rewards for masked diffusion language models."""

from typing import TYPE_CHECKING

from lfpo.config.version import VERSION as __version__

if TYPE_CHECKING:
    from lfpo.config.sampler import SamplerConfig
    from lfpo.config.train import LFPOConfig
    from lfpo.models import load_model, load_tokenizer, save_model
    from lfpo.train.rl import LFPOTrainer


# Imported on first use, so that `lfpo --help` does not wait for torch.
_WHERE = {
    "LFPOConfig": "lfpo.config.train",
    "LFPOTrainer": "lfpo.train.rl",
    "SamplerConfig": "lfpo.config.sampler",
    "load_model": "lfpo.models",
    "load_tokenizer": "lfpo.models",
    "save_model": "lfpo.models",
}
__all__ = ["LFPOConfig", "LFPOTrainer", "SamplerConfig", "__version__", "load_model", "load_tokenizer", "save_model"]


def __getattr__(name: str) -> object:
    import importlib

    if name not in _WHERE:
        raise AttributeError(f"module 'lfpo' has no attribute {name!r}")
    return getattr(importlib.import_module(_WHERE[name]), name)
