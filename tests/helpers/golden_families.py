"""The tiny random checkpoints of `goldens/families`, each in a family's published layout, with logits and sampler runs
of the published code.

In each folder: `config.json` and `model.safetensors` with the family's own keys; `io.safetensors`, inputs and float32
logits: `full.*` under full attention, `block.*` block by block, `cached.*` the last block against a cache of the ones
before it, `double.*` [noised; clean]; `sampler.json`, runs of the published sampler. nemotron_labs_diffusion has
`expected.json` in their place, from a plain reference over transformers' ministral3 with dense masks and no cache.
"""

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from lfpo.models import load_model
from tiny import write_tokenizer

FOLDER = Path(__file__).parents[1] / "goldens" / "families"
NEMOTRON_TOKENS = {"bos_token_id": "<s>", "eos_token_id": "</s>", "pad_token_id": "</s>"}
NEMOTRON_TOKENS |= {"mask_token_id": "<SPECIAL_100>"}
TEXT = 128  # ordinary tokens: the ASCII characters
_LLADA = ("<|startoftext|>", "<role>", "<|endoftext|>", "</role>", "<|role_end|>", "<|mdm_mask|>")
_LLADA2 = (*_LLADA[:5], "<|mask|>")
_SDAR = ("<|endoftext|>", "<|im_end|>", "<|MASK|>")
_NEMOTRON = ("<s>", "</s>", "<|im_end|>", "<SPECIAL_100>")
# The added tokens of each family, from id TEXT on.
SPECIAL = {"llada": _LLADA, "sdar": _SDAR, "sdar_moe": _SDAR, "nemotron_labs_diffusion": _NEMOTRON}
SPECIAL |= dict.fromkeys(("lladamoe", "llada2_0", "llada2_1"), _LLADA2)


def golden(name: str, folder: Path, **changes: Any) -> Path:
    """A copy of a golden checkpoint in `folder`, with a tokenizer. changes: fields of config.json; None removes one."""
    folder.mkdir(parents=True)
    for file in FOLDER.joinpath(name).glob("model.*"):
        shutil.copy(file, folder / file.name)
    config = {**json.loads((FOLDER / name / "config.json").read_text()), **changes}
    config = {k: v for k, v in config.items() if k not in changes or v is not None}
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    eos = "</s>" if "</s>" in SPECIAL[name] else "<|endoftext|>"
    write_tokenizer(folder, SPECIAL[name], eos_token=eos, characters=TEXT)
    return folder


def nemotron(folder: Path, **changes: Any) -> Path:
    """The golden Nemotron-Labs-Diffusion, whose mask, EOS and padding are ordinary characters of this tokenizer, with
    special tokens in their place."""
    ids = {name: TEXT + _NEMOTRON.index(token) for name, token in NEMOTRON_TOKENS.items()}
    return golden("nemotron_labs_diffusion", folder, **ids, **changes)


def golden_io(name: str) -> dict[str, torch.Tensor]:
    """Inputs and logits of the published code."""
    return load_file(FOLDER / name / "io.safetensors")


def golden_sampler(name: str) -> dict[str, Any]:
    """Runs of the published sampler."""
    return json.loads((FOLDER / name / "sampler.json").read_text())


def main() -> None:
    """Print each family's largest difference from the published logits."""
    for name in SPECIAL.keys() - {"nemotron_labs_diffusion"}:
        with tempfile.TemporaryDirectory() as scratch, torch.no_grad():
            model, io = load_model(golden(name, Path(scratch) / name)), golden_io(name)
            found = {}
            for kind in ("full", "block", "double"):
                if f"{kind}.ids" in io:
                    mask = io[f"{kind}.mask"][None, None] if kind != "full" else None
                    inputs = {"attention_mask": mask, "position_ids": io.get(f"{kind}.position_ids")}
                    hidden = model.backbone.model(io[f"{kind}.ids"], use_cache=False, **inputs).last_hidden_state
                    found[kind] = (model.head(hidden) - io[f"{kind}.logits"]).abs().max().item()
        print(name.ljust(10), "  ".join(f"{kind} {error:.1e}" for kind, error in found.items()))


if __name__ == "__main__":
    main()
