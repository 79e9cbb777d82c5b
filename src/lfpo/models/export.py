"""Writes checkpoints in transformers' own layout, which loads without lfpo and without remote code, and LoRA adapters.

The weights are a LlamaForCausalLM or a Qwen2ForCausalLM under that class's own names. Its config.json says
`is_causal: false`, which transformers (5.2 and later) passes to mask and attention, and `logit_shift`: 1 where the
logits at position i predict token i + 1.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.torch import load_file

from lfpo.base.files import read_json
from lfpo.base.lora_settings import LoraSettings
from lfpo.models.family import Family
from lfpo.models.loading import (
    check_tensors,
    family_of,
    load_model,
    load_tokenizer,
    save_model,
    token_ids,
    weight_files,
)
from lfpo.models.lora import inject, load_adapter
from lfpo.models.masked_lm import build_backbone
from lfpo.models.tensor_files import save_tensors

ADAPTER = "adapter_model.safetensors"
INDEX = "model.safetensors.index.json"


def export_transformers(source: Path, folder: Path) -> None:
    """Write the checkpoint `source` (a family's own layout) into the existing `folder` in transformers' layout.

    One file of weights is in memory at a time; tensors keep their dtype. Raises UserError as `load_model` does.
    """
    config = read_json(source / "config.json")
    family = family_of(config, source / "config.json")
    backbone = build_backbone(family, config, source / "config.json")
    tied = bool(backbone.config.tie_word_embeddings)  # type: ignore[union-attr]
    names: dict[str, Path] = {}
    shapes: dict[str, list[int]] = {}
    for path in weight_files(source):
        with safe_open(path, framework="pt") as file:
            found = {family.to_transformers(k): file.get_slice(k).get_shape() for k in file.keys()}  # noqa: SIM118
        found = {k: shape for k, shape in found.items() if not (tied and k == "lm_head.weight")}
        names |= dict.fromkeys(found, path)
        shapes |= found
    check_tensors(backbone, shapes, source)
    dtype = ""
    for path in dict.fromkeys(names.values()):
        renamed = {family.to_transformers(k): v for k, v in load_file(path).items()}
        renamed = {k: v for k, v in renamed.items() if k in names}
        save_tensors(renamed, folder / path.name)
        dtype = str(next(iter(renamed.values())).dtype).removeprefix("torch.")
    if (source / INDEX).exists():
        index = {**read_json(source / INDEX), "weight_map": {k: path.name for k, path in sorted(names.items())}}
        _write_json(folder / INDEX, index)
    _write_json(folder / "config.json", _transformers_config(source, family, config, dtype))
    _save_tokenizer(source, folder)


def _transformers_config(source: Path, family: Family, config: dict[str, Any], dtype: str) -> dict[str, Any]:
    """config.json of the transformers layout."""
    theirs = family.hf_config(config)
    ids = token_ids(config, theirs.vocab_size, source)
    return {
        **theirs.to_diff_dict(),
        "architectures": [family.architecture],
        "is_causal": False,
        "logit_shift": int(family.shift),
        "rope_theta": config["rope_theta"],  # also inside rope_parameters; other tools read it here
        "dtype": dtype,
        "bos_token_id": config.get("bos_token_id"),
        # pad_token_id stays null: with it torch would never train the embedding of EOS, which is also the padding.
        **{f"{name}_token_id": ids[name] for name in ("mask", "eos")},
    }


def _save_tokenizer(source: Path, folder: Path) -> None:
    """Tokenizer files that AutoTokenizer reads without remote code."""
    load_tokenizer(source).save_pretrained(folder)
    settings = read_json(folder / "tokenizer_config.json")
    for name in ("auto_map", "is_local", "local_files_only"):
        settings.pop(name, None)
    if settings.get("tokenizer_class") == "TokenizersBackend":  # the name that transformers 4 knows too
        settings["tokenizer_class"] = "PreTrainedTokenizerFast"
    _write_json(folder / "tokenizer_config.json", settings)


def merge_adapter(base: Path, adapter: Path, folder: Path, dtype: Any) -> None:
    """Write the base model with a saved LoRA adapter added, in the family's own layout."""
    saved = read_json(adapter / "adapter_config.json")
    model = load_model(base, dtype=dtype)
    inject(model, LoraSettings(saved["r"], saved["lora_alpha"], saved["target_modules"]))
    load_adapter(model, adapter)
    save_model(model, folder)


def export_adapter(adapter: Path, family: Family, base: str, folder: Path, *, own_names: bool) -> None:
    """Write a saved LoRA adapter into the existing `folder` for peft.

    own_names: with the family's module names, for its published modelling code; otherwise with transformers' names, for
    the base in transformers' layout. base: the name of the base model in the adapter's configuration.
    """
    config = {**read_json(adapter / "adapter_config.json"), "base_model_name_or_path": base}
    if not own_names:
        shutil.copyfile(adapter / ADAPTER, folder / ADAPTER)
    else:
        prefix = "base_model.model."
        tensors = {
            prefix + family.to_checkpoint(k.removeprefix(prefix)): v for k, v in load_file(adapter / ADAPTER).items()
        }
        save_tensors(tensors, folder / ADAPTER)
        # Whole names: LLaDA's `ff_out` is both the head and a layer's down projection.
        config["target_modules"] = sorted({k.removeprefix(prefix).partition(".lora_")[0] for k in tensors})
    _write_json(folder / "adapter_config.json", config)


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
