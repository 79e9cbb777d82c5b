"""The configuration of `lfpo convert`."""

from dataclasses import dataclass
from typing import Literal

from lfpo.config.checks import Count, check_ranges
from lfpo.config.errors import UserError
from lfpo.config.files import user_path
from lfpo.config.models import check_model_name


@dataclass
class ConvertConfig:
    """Configuration of `lfpo convert SOURCE FOLDER`: make a masked diffusion model of an autoregressive one."""

    source: str
    """A plain Llama, Qwen2 or Qwen3 (SmolLM2, TinyLlama and Qwen2.5 are such): a folder, a hub id or a .gguf file."""

    folder: str
    """Where to write the model, new or empty."""

    block_length: Count | None = None
    """Attend in blocks of this many tokens, to the own block and those before it (None: to all tokens)."""

    shift: bool = True
    """Logits at position i predict token i + 1, as in the source; false: token i."""

    mask_token: str | None = None
    """A token of the tokenizer to take as mask, or the text of a new one (None: the tokenizer's own mask token, an
    unused row of the embeddings, an unused special token, or a new row, whichever comes first)."""

    dtype: Literal["float32", "bfloat16"] | None = None
    """Of the weights written (None: the source's; of a .gguf file float32)."""

    def __post_init__(self) -> None:
        check_ranges(self)

    @property
    def is_gguf(self) -> bool:
        return self.source.endswith(".gguf")


def check_paths(config: ConvertConfig) -> None:
    """Raise UserError where the source is missing or the folder is taken."""
    folder, source = user_path(config.folder), user_path(config.source)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder}: exists already and is not empty; remove it, or name another folder")
    if not (config.is_gguf and source.is_file()):
        check_model_name(config.source)
