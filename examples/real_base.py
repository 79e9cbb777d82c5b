"""A fine-tuned base of `make real` as a file of 5 MB: LoRA factors in 8 bits over a converted SmolLM2-135M.

lfpo sft real-finetune --lora '{r: 16, lora_alpha: 32}' --learning_rate 2e-3 --output_dir FOLDER
python examples/real_base.py pack FOLDER/checkpoints/step-160/model base.safetensors
python examples/real_base.py merge runs/real/converted base.safetensors runs/real/finetune/model

`pack` rounds the factors of a checkpoint. `merge` writes the model that they give, with the same bits on every
processor: scales are powers of two, so that in float64 the products of factors and their sums are exact, and each
weight is rounded once. `BASE=base.safetensors make real` starts from it.
"""

import argparse
import hashlib
import json
import math
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

STEPS = 127  # of 8 bits with a sign, on each side of 0
PREFIX = "base_model.model."


def pack(adapter: Path, file: Path) -> None:
    """Write the factors in `adapter` (peft's format) as int8, with one exponent of two for each rank."""
    settings = json.loads((adapter / "adapter_config.json").read_text())
    scaling = settings["lora_alpha"] / settings["r"]
    if not math.log2(scaling).is_integer():
        sys.exit(f"error: {adapter}: lora_alpha / r is {scaling:g}; expected a power of two")
    factors, packed = load_file(adapter / "adapter_model.safetensors"), {}
    for name in sorted(n for n in factors if n.endswith(".lora_A.weight")):
        layer = name.removeprefix(PREFIX).removesuffix(".lora_A.weight")
        a_RI, b_OR = factors[name], factors[name.replace("lora_A", "lora_B")]
        a_exponent_R, b_exponent_R = exponents(a_RI.abs().amax(1)), exponents(b_OR.abs().amax(0))
        packed[f"{layer}.a"] = (a_RI / torch.exp2(a_exponent_R)[:, None]).round().to(torch.int8)
        packed[f"{layer}.b"] = (b_OR / torch.exp2(b_exponent_R)).round().to(torch.int8)
        packed[f"{layer}.exponent"] = (a_exponent_R + b_exponent_R + math.log2(scaling)).to(torch.int8)
    save_file(packed, file)


def exponents(largest_R: torch.Tensor) -> torch.Tensor:
    """The least powers of two, as exponents, in units of which no value is beyond STEPS."""
    return torch.ceil(torch.log2(largest_R.double().clamp(min=2.0**-40) / STEPS))


def merge(converted: Path, file: Path, folder: Path) -> None:
    """Write the converted model with the factors added, and say the hash of its weights."""
    factors = load_file(file)
    with safe_open(converted / "model.safetensors", framework="pt") as source:
        weights = {name: source.get_tensor(name) for name in source.keys()}  # noqa: SIM118
    for layer in sorted({name.rpartition(".")[0] for name in factors}):
        a_RI, b_OR = (factors[f"{layer}.{part}"].double() for part in "ab")
        change_OI = (b_OR * torch.exp2(factors[f"{layer}.exponent"].double())) @ a_RI
        weight = weights[f"{layer}.weight"]
        weights[f"{layer}.weight"] = (weight.double() + change_OI).to(weight.dtype)
    partial = folder.with_name(f"{folder.name}.partial")  # an interrupted one is begun anew
    shutil.rmtree(partial, ignore_errors=True)
    shutil.copytree(converted, partial, ignore=shutil.ignore_patterns("*.safetensors"))
    save_file(weights, partial / "model.safetensors", metadata={"format": "pt"})
    partial.rename(folder)
    print(f"{folder}: weights {hashlib.sha256((folder / 'model.safetensors').read_bytes()).hexdigest()[:16]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["pack", "merge"])
    parser.add_argument("paths", nargs="+", type=Path)
    args = parser.parse_args()
    commands: dict[str, Callable[..., None]] = {"pack": pack, "merge": merge}
    commands[args.command](*args.paths)


if __name__ == "__main__":
    main()
