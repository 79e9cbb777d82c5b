"""Models: one loader for a local folder or a hub id, over transformers' own classes, without remote code."""

from lfpo.core.model import MaskedDiffusionLM
from lfpo.models.families import FAMILIES
from lfpo.models.loading import init_model, load_model, load_tokenizer, save_model

__all__ = ["FAMILIES", "MaskedDiffusionLM", "init_model", "load_model", "load_tokenizer", "save_model"]
