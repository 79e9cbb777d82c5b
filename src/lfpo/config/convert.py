"""The configuration of `lfpo convert`."""

from dataclasses import dataclass
from typing import Literal

from lfpo.config.checks import Count, check_ranges
from lfpo.config.errors import UserError
from lfpo.config.files import user_path
from lfpo.config.json import Json
from lfpo.config.models import check_model_name

KINDS = ("llama", "qwen2", "qwen3")
MARKER = "logit_shift"  # in what lfpo writes under these model types


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


def check_kind(config: Json, where: object) -> None:
    """Raise UserError, beginning with `where`, unless a config.json is that of a model that can be converted."""
    kind, classes = str(config.get("model_type")), " ".join(config.get("architectures") or [])
    if MARKER in config or kind.startswith("a2d-"):
        raise UserError(
            f"{where}: is a masked diffusion model already (model_type {kind!r}), which lfpo loads as it is"
        )
    if kind not in KINDS:
        why = f"model_type {kind!r}"
    elif classes and "ForCausalLM" not in classes:
        why = f"a model without a language model's head ({classes})"
    else:
        return
    raise UserError(f"{where}: lfpo convert takes plain Llama, Qwen2 and Qwen3 language models; {why}")
