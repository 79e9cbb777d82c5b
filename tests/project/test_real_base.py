"""The base of `make real`: factors in 8 bits, merged with the same bits everywhere."""

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from examples import real_base

LAYER = "model.layers.0.mlp.up_proj"


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    """Factors of rank 2 of a layer of 6 inputs and 5 outputs; the ranks differ in size by 2^20."""
    rng = torch.Generator().manual_seed(0)
    sizes = torch.tensor([1.0, 2.0**-20])
    factors = {
        f"base_model.model.{LAYER}.lora_A.weight": torch.randn(2, 6, generator=rng) * sizes[:, None],
        f"base_model.model.{LAYER}.lora_B.weight": torch.randn(5, 2, generator=rng),
    }
    (tmp_path / "adapter").mkdir()
    save_file(factors, tmp_path / "adapter/adapter_model.safetensors")
    (tmp_path / "adapter/adapter_config.json").write_text(json.dumps({"r": 2, "lora_alpha": 4}))
    real_base.pack(tmp_path / "adapter", tmp_path / "base.safetensors")
    return tmp_path


def test_packed_factors_are_within_half_a_step(packed: Path):
    """A step is the power of two above the largest value over 127."""
    saved, found = load_file(packed / "adapter/adapter_model.safetensors"), load_file(packed / "base.safetensors")
    b_OR, a_RI = (saved[f"base_model.model.{LAYER}.lora_{part}.weight"].double() for part in "BA")
    for rank in range(2):
        change = 2 * torch.outer(b_OR[:, rank], a_RI[rank])
        own = torch.outer(found[f"{LAYER}.b"][:, rank].double(), found[f"{LAYER}.a"][rank].double())
        own *= 2.0 ** int(found[f"{LAYER}.exponent"][rank])
        assert float((own - change).abs().max()) < 0.02 * float(change.abs().max())


def test_merged_weights_are_the_exact_sum_rounded_once(packed: Path):
    (packed / "converted").mkdir()
    weight = torch.randn(5, 6, generator=torch.Generator().manual_seed(1))
    save_file({f"{LAYER}.weight": weight, "norm": torch.ones(3)}, packed / "converted/model.safetensors")
    (packed / "converted/config.json").write_text("{}")
    real_base.merge(packed / "converted", packed / "base.safetensors", packed / "merged")
    merged, factors = load_file(packed / "merged/model.safetensors"), load_file(packed / "base.safetensors")
    a, b, exponent = (factors[f"{LAYER}.{part}"].tolist() for part in ("a", "b", "exponent"))
    for o in range(5):
        for i in range(6):
            change = sum(Fraction(b[o][r] * a[r][i]) * Fraction(2) ** exponent[r] for r in range(2))
            exact = Fraction(float(weight[o, i])) + change
            assert float(merged[f"{LAYER}.weight"][o, i]) == float(torch.tensor(float(exact), dtype=torch.float32))
    assert torch.equal(merged["norm"], torch.ones(3)) and (packed / "merged/config.json").exists()


def test_a_scale_that_is_no_power_of_two_cannot_be_packed(packed: Path):
    settings: dict[str, Any] = {"r": 2, "lora_alpha": 3}
    (packed / "adapter/adapter_config.json").write_text(json.dumps(settings))
    with pytest.raises(SystemExit, match="expected a power of two"):
        real_base.pack(packed / "adapter", packed / "base.safetensors")
