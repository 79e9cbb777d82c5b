"""Writes checkpoints in transformers' own layout, which loads without lfpo and without remote code, and LoRA adapters.

The weights are those of the family's class in transformers (`Family.architecture`) under that class's own names. Its
config.json says `is_causal: false`, which transformers (5.2 and later) passes to mask and attention, and true where the
context is causal; `logit_shift`, 1 where the logits at position i predict token i + 1 (over a causal context those of
noised tokens); and `block_length` where the model attends block by block, for which the caller gives the mask.
"""

import shutil
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file

from lfpo.config.errors import UserError
from lfpo.config.files import read_json, write_json
from lfpo.config.models import LoraSettings
from lfpo.core.model import MaskedDiffusionLM
from lfpo.models.family import Family, build_backbone
from lfpo.models.loading import (
    GENERATION,
    copy_files,
    load_model,
    load_tokenizer,
    read_config,
    save_model,
    save_tokenizer,
    token_ids,
)
from lfpo.models.lora import ADAPTER, ADAPTER_CONFIG, inject, load_adapter
from lfpo.models.tensor_files import save_tensors
from lfpo.models.weights import EMBEDDINGS, pieces_of_each, state_shapes, tensor_files

INDEX = "model.safetensors.index.json"


def export_transformers(source: Path, folder: Path, *, consume: bool = False) -> None:
    """Write the checkpoint `source` (a family's own layout) into the existing `folder` in transformers' layout, one
    file of weights after the other; tensors keep their dtype.

    consume: delete each file of `source` once it is written anew. Raises UserError as `load_model` does.
    """
    family, config = read_config(source)
    if family.build is not None:
        raise UserError(_no_other_layout(family))
    backbone = build_backbone(family, config)
    files = tensor_files(backbone, family, source)
    parts = pieces_of_each("key", family, state_shapes(backbone))
    names: dict[str, Path] = {}
    dtype = ""
    paths = list(dict.fromkeys(files.values()))
    total = 0  # bytes
    for path in paths:
        named: dict[str, torch.Tensor] = {}
        for key, tensor in load_file(path).items():
            if key not in files:
                continue
            if parts[key][0].expert is not None:  # transformers' checkpoints name experts as our families' do
                named[key] = tensor
            else:
                for part in parts[key]:
                    named[part.name] = tensor[part.start : part.start + part.rows].contiguous()
        # transformers finds weights by one of two names: of their only file, or of the files' index.
        file = folder / (path.name if len(paths) > 1 else "model.safetensors")
        save_tensors(named, file)
        if consume:
            path.unlink()
        names |= dict.fromkeys(named, file)
        total += sum(tensor.numel() * tensor.element_size() for tensor in named.values())
        if EMBEDDINGS in named:
            dtype = str(named[EMBEDDINGS].dtype).removeprefix("torch.")
    if len(paths) > 1:
        weight_map = {name: file.name for name, file in sorted(names.items())}
        write_json(folder / INDEX, {"metadata": {"total_size": total}, "weight_map": weight_map})
    hf_config = family.hf_config(config)
    ids, blocks = token_ids(config, source), family.block_length(config)
    settings = {
        **hf_config.to_diff_dict(),
        "architectures": [family.architecture],
        "is_causal": family.causal_context,
        "logit_shift": int(family.shift),
        **({"block_length": blocks} if blocks else {}),
        "rope_theta": hf_config.rope_parameters["rope_theta"],  # other tools read it here
        "dtype": dtype,
        "bos_token_id": config.get("bos_token_id"),
        # pad_token_id stays null: with it torch would never train the embedding of EOS, which is also the padding.
        "mask_token_id": ids["mask_id"],
        "eos_token_id": ids["eos_id"],
    }
    write_json(folder / "config.json", settings)
    copy_files(source, folder, GENERATION)
    tokenizer = load_tokenizer(source)
    if "eos_token" not in str(tokenizer.chat_template):  # or prompts would change
        tokenizer.eos_token = tokenizer.convert_ids_to_tokens(ids["eos_id"])
    tokenizer.pad_token = tokenizer.convert_ids_to_tokens(ids["pad_id"])  # the model's, for config.json names none
    save_tokenizer(tokenizer, folder)


def _no_other_layout(family: Family) -> str:
    return f"the own layout of {family.name} models is that of transformers; leave --layout out"


@dataclass(frozen=True)
class Base:
    """What a LoRA adapter was trained on: the folder of a model, the dtype of its weights in training, to which they
    are rounded first, and whether they were held in 4 bits then."""

    folder: Path
    held: torch.dtype
    four_bit: bool = False


def merge_adapter(base: Base, adapter: Path, folder: Path, dtype: torch.dtype) -> None:
    """Write the base model with a saved LoRA adapter added, in the family's own layout. dtype: of the sum."""
    save_model(with_saved_adapter(base, adapter, dtype), folder)


def with_saved_adapter(base: Base, adapter: Path, dtype: torch.dtype) -> MaskedDiffusionLM:
    """The base model with a saved LoRA adapter, in float32, beside its weights. dtype: see `merge_adapter`."""
    saved = read_json(adapter / ADAPTER_CONFIG)
    model = load_model(base.folder, dtype=base.held, four_bit=base.held if base.four_bit else None).to(dtype)
    for parameter in model.backbone.parameters():
        if hasattr(parameter, "quant_state"):
            parameter.quant_state.dtype = dtype  # of its numbers once they are dequantised
    experts = bool(saved.get("target_parameters"))
    inject(model, LoraSettings(saved["r"], saved["lora_alpha"], saved["target_modules"], experts))
    load_adapter(model, adapter)
    return model


def export_adapter(adapter: Path, family: Family, base: str, folder: Path, *, own_names: bool) -> None:
    """Write a saved LoRA adapter into the existing `folder` for peft. base: the base model's name in its configuration.

    own_names: with the family's module names, for its published modelling code; otherwise with transformers' names, for
    the base in transformers' layout.
    """
    if family.copies:
        raise UserError(
            f"transformers has the layers of {family.name} models twice, for context and canvas, and an adapter of one "
            "of them is not this model; export it merged"
        )
    config = {**read_json(adapter / ADAPTER_CONFIG), "base_model_name_or_path": base}
    if not own_names and family.build is not None:
        raise UserError(_no_other_layout(family))
    if not own_names:
        shutil.copyfile(adapter / ADAPTER, folder / ADAPTER)
    else:
        if family.fused or config.get("target_parameters"):
            why = "the rows of several adapted layers in one tensor" if family.fused else "a tensor for each expert"
            raise UserError(
                f"this adapter of {family.name} has no form under the family's own names, because a checkpoint holds "
                f"{why}; export it with --layout transformers, or merged"
            )
        prefix = "base_model.model."
        tensors = {
            prefix + family.to_checkpoint(k.removeprefix(prefix)): v for k, v in load_file(adapter / ADAPTER).items()
        }
        save_tensors(tensors, folder / ADAPTER)
        # Whole names: LLaDA's `ff_out` is both the head and a layer's down projection.
        config["target_modules"] = sorted({k.removeprefix(prefix).partition(".lora_")[0] for k in tensors})
    write_json(folder / ADAPTER_CONFIG, config)
