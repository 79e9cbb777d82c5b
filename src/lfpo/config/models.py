"""Names of models, and the keys of `lora`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from lfpo.config.build import check_fields
from lfpo.config.checks import Count, OneOf, Positive
from lfpo.config.errors import UserError
from lfpo.config.files import user_path

SHIPPED_MODELS = ("embedded", "embedded-block", "embedded-causal", "embedded-uniform")  # that come with the package
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

    target_modules: Literal["all-linear", "as-published"] | list[str] = "all-linear"
    """The layers with an adapter: "all-linear" (every linear layer but the head; in a mixture of experts those of the
    attention); "as-published" (the layers that d1's list matches: in LLaDA only q, k, v and up, because its output,
    gate and down projections have other names); or a list of names, the family's own or transformers'."""

    experts: bool = False
    """Adapt the experts' matrices too, each expert with factors of rank r. With `target_modules: []` nothing else is
    adapted."""

    def __post_init__(self) -> None:
        check_fields(self)


def check_model_name(name: object) -> None:
    """Raise UserError for a model that is not one of SHIPPED_MODELS, nor a folder, nor written like a hub id: an object
    of another library, a file."""
    if not isinstance(name, str | Path):
        raise UserError(
            f"model: expected a folder, a hub id or what load_model returns, found an object of {type(name).__name__}; "
            "write it and its tokenizer by save_pretrained into a folder (a PeftModel: merge_and_unload() first), and "
            "give that"
        )
    text, path = str(name), user_path(name)
    if text in SHIPPED_MODELS or path.is_dir():
        return
    if path.is_file():
        gguf = path.suffix == ".gguf"
        what = f"run `lfpo convert {path} FOLDER` and give FOLDER" if gguf else f"give its folder, {str(path.parent)!r}"
        raise UserError(f"model {str(path)!r}: is a file; {what}")
    if text.count("/") != 1 or text.startswith((".", "/", "~")) or path.suffix in (".safetensors", ".json", ".gguf"):
        raise UserError(
            f"model {text!r}: no such folder; give a checkpoint folder, a hub id like org/name, or one of "
            f"{', '.join(SHIPPED_MODELS)}"
        )


def check_model_folder(path: Path) -> None:
    """Raise UserError for the folder of a run or of an adapter, which are easily taken for a model."""
    if (path / "config.json").exists():
        return
    if any((folder / "adapter_config.json").exists() for folder in (path, path / "model")):
        raise UserError(
            f"model {str(path)!r}: holds a LoRA adapter only; merge it: a checkpoint of lfpo by `lfpo export {path} "
            "--output FOLDER`, another one by peft's merge_and_unload()"
        )
    if (path / "model/config.json").exists():
        raise UserError(f"model {str(path)!r}: the folder of a run or a checkpoint; its model is in {path / 'model'}")
