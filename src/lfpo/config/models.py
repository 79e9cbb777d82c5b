"""Names of models, and the keys of `lora`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from lfpo.config.build import check_fields
from lfpo.config.checks import Count, OneOf, Positive
from lfpo.config.errors import UserError
from lfpo.config.files import read_json, user_path

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


# Model types without blocks by default.
FULL_ATTENTION = ("llada", "lladamoe", "Dream", "dream", "DiffuCoder", "modernbert")
NOT_READ = (".gguf", ".bin", ".pt", ".pth", ".ckpt")  # files of weights


def check_model_name(name: object) -> None:
    """Raise UserError for a model that is not one of SHIPPED_MODELS, nor a folder, nor written like a hub id: an object
    of another library, a file."""
    if not isinstance(name, str | Path):
        raise UserError(_object(name))
    text, path = str(name), user_path(name)
    if text in SHIPPED_MODELS or path.is_dir():
        return
    if path.is_file():
        raise UserError(_file(path))
    if text.count("/") != 1 or text.startswith((".", "/", "~")) or path.suffix in {".safetensors", ".json", *NOT_READ}:
        raise UserError(
            f"model {text!r}: no such folder; give a checkpoint folder, a hub id like org/name, or one of "
            f"{', '.join(SHIPPED_MODELS)}"
        )


def check_model_folder(path: Path) -> None:
    """Raise UserError, with the line that makes it one, for a folder that is not a checkpoint with safetensors."""
    if not any(path.iterdir()):
        raise UserError(f"model {str(path)!r}: the folder is empty; give a checkpoint folder with config.json")
    has_config = (path / "config.json").exists()
    for folder in (path, path / "model"):
        if (folder / "adapter_config.json").exists() and not (folder / "config.json").exists():
            raise UserError(f"model {str(path)!r}: holds a LoRA adapter only; merge it: {_merging(folder)}")
    if not has_config and (path / "model/config.json").exists():
        raise UserError(f"model {str(path)!r}: the folder of a run or a checkpoint; its model is in {path / 'model'}")
    weights = {file.suffix for file in path.iterdir() if not file.name.startswith(("training_args", "optimizer"))}
    if ".safetensors" not in weights and (pickled := weights.intersection(NOT_READ)):
        file = next(file for file in path.iterdir() if file.suffix in pickled)
        raise UserError(_file(file))
    if not has_config and ".safetensors" in weights:
        raise UserError(
            f"model {str(path)!r}: no config.json beside the weights; copy it and the tokenizer files there"
        )


def _merging(adapter: Path) -> str:
    """The command that merges a saved adapter: of a checkpoint of lfpo, or of peft."""
    if adapter.parent.name.startswith("step-"):
        return f"lfpo export {adapter.parent} --output FOLDER"
    base = read_json(adapter / "adapter_config.json").get("base_model_name_or_path") or "BASE"
    return (
        'python -c "from peft import PeftModel; from transformers import AutoModelForCausalLM; '
        f"PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained('{base}'), '{adapter}').merge_and_unload()"
        ".save_pretrained('FOLDER')\", copy the base's config.json and tokenizer files there, and give FOLDER"
    )


def _file(path: Path) -> str:
    """What to do with a file that was given, or is there, in place of a checkpoint's folder."""
    where, folder = f"model {str(path)!r}", path.parent
    if path.suffix == ".gguf":
        return f"{where}: GGUF files are not read directly; run `lfpo convert {path} FOLDER` and give FOLDER"
    if path.suffix in NOT_READ:
        return (
            f'{where}: pickled weights are not read; write them as safetensors, python -c "import glob, torch, '
            "safetensors.torch as s; [s.save_file({k: v.clone() for k, v in torch.load(f, weights_only=True).items()}, "
            f"f.rpartition('.')[0] + '.safetensors') for f in glob.glob('{folder}/*{path.suffix}')]\", and give "
            f"{str(folder)!r}"
        )
    if (folder / "config.json").exists():
        return f"{where}: is a file; give its folder, {str(folder)!r}"
    return f"{where}: is a file, and no config.json is beside it; give a folder with config.json and tokenizer files"


def _object(model: object) -> str:
    """What to do with an object that was given in place of a model's name, such as TRL's users give."""
    kinds = {kind.__name__ for kind in type(model).__mro__}
    merge = "model = model.merge_and_unload(), " if "PeftModel" in kinds else ""
    save = f"{merge}model.save_pretrained('FOLDER'), tokenizer.save_pretrained('FOLDER')"
    found = f"model: expected a folder, a hub id or what load_model returns, found an object of {type(model).__name__}"
    return f"{found}; save it, {save}, and give 'FOLDER' (a plain autoregressive model: `lfpo convert FOLDER NEW`)"


def has_full_attention(name: str | Path) -> bool:
    """Whether a model's config.json says that it does not attend block by block. False where it does, and where that is
    not known: for another model type, and for a hub id."""
    shipped = Path(__file__).parents[1] / "models" / str(name).replace("-", "_")
    file = (shipped if str(name) in SHIPPED_MODELS else user_path(name)) / "config.json"
    if not file.is_file():
        return False
    config = read_json(file)
    return config.get("model_type") in FULL_ATTENTION and config.get("block_length") is None
