"""Names of models, and the keys of `lora`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from lfpo.config.checks import Count, OneOf, Positive, check_ranges
from lfpo.config.errors import UserError
from lfpo.config.files import read_json

SHIPPED_MODELS = ("embedded", "embedded-block")  # that come with the package
ModelName = Annotated[str, OneOf(SHIPPED_MODELS, "")]


@dataclass(frozen=True)
class LoraSettings:
    """A LoRA adapter; the defaults are d1's.

    There is no dropout: with it, two forwards of the same policy would give different probabilities.
    """

    r: Count = 128
    """Rank of the factors."""

    lora_alpha: Positive = 64
    """An adapter is scaled by lora_alpha / r."""

    target_modules: str | list[str] = "all-linear"
    """The layers with an adapter: "all-linear" (every linear layer but the head; in a mixture of experts those of the
    attention); "as-published" (the layers that d1's list matches: in LLaDA only q, k, v and up, because its output,
    gate and down projections have other names); or a list of names, the family's own or transformers'."""

    experts: bool = False
    """Adapt the experts' matrices too, each expert with factors of rank r. With `target_modules: []` nothing else is
    adapted."""

    def __post_init__(self) -> None:
        check_ranges(self)


FULL_ATTENTION = ("llada", "lladamoe", "Dream", "dream", "DiffuCoder")  # model types without blocks by default


def check_model_name(name: str | Path) -> None:
    """Raise UserError for a model that is not one of SHIPPED_MODELS, nor a folder, nor written like a hub id."""
    text, path = str(name), Path(name).expanduser()
    if text in SHIPPED_MODELS or path.is_dir():
        return
    if text.count("/") != 1 or text.startswith((".", "/", "~")) or path.suffix in {".safetensors", ".json"}:
        raise UserError(
            f"model {text!r}: no such folder; give a checkpoint folder, a hub id like org/name, 'embedded' or "
            "'embedded-block'"
        )


def has_full_attention(name: str | Path) -> bool:
    """Whether a model's config.json says that it does not attend block by block. False where it does, and where that is
    not known: for another model type, and for a hub id."""
    folder = (
        Path(__file__).parents[1] / "models" / str(name).replace("-", "_")
        if str(name) in SHIPPED_MODELS
        else Path(name)
    )
    if not (folder.expanduser() / "config.json").is_file():
        return False
    config = read_json(folder.expanduser() / "config.json")
    return config.get("model_type") in FULL_ATTENTION and config.get("block_length") is None
