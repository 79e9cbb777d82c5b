"""Mixtures of experts: products, precision, adapters, split weights, measures, and what they cost."""

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from torch.nn import functional as F
from transformers import AutoModelForCausalLM

from adapters import moved
from fsdp_training import PROMPTS, SAMPLER, SEEDS, trains_as_one
from golden_families import golden, golden_io
from lfpo.cli.command_line import main
from lfpo.config.errors import UserError
from lfpo.config.models import LoraSettings
from lfpo.core.learner import accumulate_gradients
from lfpo.core.model import BASE, CURRENT, OLD
from lfpo.core.optim import ema_update
from lfpo.models import load_model, save_model
from lfpo.models.experts import grouped_experts, routers
from lfpo.models.export import export_adapter
from lfpo.models.four_bit import quantize
from lfpo.models.layouts import LAYOUTS
from lfpo.models.lora import attach, load_adapter, save_adapter, target_names, with_adapter
from lfpo.models.placement import sampling
from lfpo.models.router_measures import watched_routers
from lfpo.models.weights import saved_weights
from lfpo.objectives import make_objective
from lfpo.plan.flops import forward_flops
from lfpo.plan.model import model_shape
from lfpo.rollout.sampling import rollout
from processes import run_ranks

LORA = LoraSettings(r=2, lora_alpha=4)
ON_EXPERTS = LoraSettings(r=2, lora_alpha=4, experts=True)


class Experts(torch.nn.Module):
    """Six experts with 16 hidden numbers for tokens of width 12."""

    def __init__(self, dtype: torch.dtype):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.gate_up_proj = torch.nn.Parameter(torch.randn(6, 32, 12, generator=generator).to(dtype))
        self.down_proj = torch.nn.Parameter(torch.randn(6, 12, 16, generator=generator).to(dtype))
        self.act_fn = F.silu


def by_token(module: Experts, hidden: torch.Tensor, expert: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """The same, one token and expert at a time."""
    out = torch.zeros_like(hidden)
    for t, k in itertools.product(*map(range, expert.shape)):
        gate, up = (module.gate_up_proj[expert[t, k]] @ hidden[t]).chunk(2)
        part = weight[t, k] * (module.down_proj[expert[t, k]] @ (F.silu(gate) * up))
        out = out.index_add(0, torch.tensor([t]), part[None])
    return out


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-4), (torch.bfloat16, 0.05)]
)
def test_experts_and_their_gradients(dtype: torch.dtype, tolerance: float) -> None:
    module, generator = Experts(dtype), torch.Generator().manual_seed(1)
    hidden = torch.randn(7, 12, generator=generator).to(dtype).requires_grad_()
    # Expert 4 has no token.
    expert = torch.tensor([[0, 1], [5, 2], [0, 3], [3, 0], [2, 5], [0, 1], [1, 5]])
    weight = torch.rand(7, 2, generator=generator).to(torch.promote_types(dtype, torch.float32)).requires_grad_()
    leaves = [hidden, weight, module.gate_up_proj, module.down_proj]
    found = grouped_experts(module, hidden, expert, weight)
    out_gradient = torch.randn(7, 12, generator=generator)
    gradients = torch.autograd.grad((found * out_gradient).sum(), leaves)
    exact = Experts(torch.float64)
    exact.load_state_dict(module.state_dict())
    wide, weights = hidden.detach().double().requires_grad_(), weight.detach().double().requires_grad_()
    expected = by_token(exact, wide, expert, weights)
    leaves = [wide, weights, exact.gate_up_proj, exact.down_proj]
    expected_gradients = torch.autograd.grad((expected * out_gradient).sum(), leaves)
    assert found.dtype == dtype
    for ours, theirs in zip([found, *gradients], [expected, *expected_gradients], strict=True):
        assert (ours.double() - theirs).abs().max() <= tolerance * theirs.abs().max()
    assert gradients[2][4].abs().max() == 0


@torch.no_grad()
@pytest.mark.parametrize("name", ["lladamoe", "llada2_0"])
def test_autocast_does_not_change_the_router(name: str, tmp_path: Path) -> None:
    """Nor do the copies that rollouts use under autocast."""
    model, seen = load_model(golden(name, tmp_path / "m")), []
    ids = golden_io(name)["full.ids"]
    routers(model.backbone)[0].register_forward_hook(lambda _m, args, out: seen.append((args[0], out[0])))
    exact = model(ids)
    model.autocast = True
    rounded = model(ids)
    with sampling(model, cast=True, move_to_device=False):
        experts = model.backbone.model.layers[1].mlp.experts
        assert experts.gate_up_proj.dtype == torch.bfloat16
        copied = model(ids)
    for hidden, logits in seen:
        weight = routers(model.backbone)[0].weight
        assert logits.dtype == torch.float32
        assert torch.equal(logits, F.linear(hidden.flatten(0, -2).float(), weight))
    assert torch.equal(rounded, copied)
    assert not torch.equal(rounded, exact)


@torch.no_grad()
def test_the_published_router(tmp_path: Path) -> None:
    """With biases near -3 too, where a score of 0 for experts that are shut out would win."""
    io, model = golden_io("llada2_0"), load_model(golden("llada2_0", tmp_path / "m"))
    layer = next(layer for layer in model.backbone.model.layers if hasattr(layer.mlp, "experts"))
    torch.testing.assert_close(layer.mlp(io["router.hidden"]), io["router.output"], rtol=0, atol=1e-4)
    layer.mlp.gate.e_score_correction_bias.copy_(io["router.low_bias"])
    torch.testing.assert_close(layer.mlp(io["router.hidden"]), io["router.low_output"], rtol=0, atol=1e-4)


@pytest.mark.parametrize("lora", [None, LORA, ON_EXPERTS])
def test_a_mixture_of_experts_trains(lora: LoraSettings | None, tmp_path: Path) -> None:
    model = load_model(golden("lladamoe", tmp_path / "m"))
    old = attach(model, lora) if lora else model.frozen_copy()
    signal = torch.tensor([1.0, 0.0, 0.7, 0.5], dtype=torch.float64)
    objective = make_objective({"name": "lfpo", "timesteps": 3})
    views = objective.views(rollout(old, PROMPTS, SAMPLER, SEEDS), signal, SEEDS, 0)
    _, measures = accumulate_gradients(objective, {CURRENT: model, OLD: old}, views, signal, update_tokens=40)
    total, count = measures["router/entropy"].tolist()
    assert 0 < total / count < 1
    total, count = measures["router/max_load"].tolist()
    assert 1 <= total / count <= 2  # four experts, two a token
    trained = {name: p for name, p in model.backbone.named_parameters() if p.requires_grad}
    assert all(p.grad is not None for p in trained.values())
    assert all(p.grad.abs().max() > 0 for name, p in trained.items() if "lora_A" not in name)  # B is still zero
    assert any("experts" in name for name in trained) is (lora != LORA)
    before = saved_weights(old)["model.layers.0.mlp.experts.down_proj"].clone()
    with torch.no_grad():
        for p in trained.values():
            p.add_(1.0)
    ema_update(old, model, 0.5)
    after = saved_weights(old)["model.layers.0.mlp.experts.down_proj"]
    torch.testing.assert_close(after, before if lora else before + 0.5)


def test_the_measures_of_routers_by_hand(tmp_path: Path) -> None:
    model = load_model(golden("lladamoe", tmp_path / "m"))
    with torch.no_grad():
        for router in routers(model.backbone):
            router.weight.zero_()  # all scores are equal, and the same two of four experts are chosen
    ids = torch.arange(6)[None]
    with watched_routers(model.backbone) as measures:
        model(ids)
        with torch.no_grad():
            model(ids)  # a policy that is not trained
    layers = len(routers(model.backbone))
    assert measures["router/entropy"].tolist() == pytest.approx([6 * layers, 6 * layers])
    assert measures["router/max_load"].tolist() == [2 * layers, layers]
    with watched_routers(load_model("embedded").backbone) as measures:
        pass
    assert not measures


def test_adapters_go_onto_the_attention_unless_asked(tmp_path: Path) -> None:
    model = load_model(golden("llada2_0", tmp_path / "m"))
    attention = ["k_proj", "o_proj", "q_proj", "v_proj"]
    assert target_names(model, "all-linear") == attention
    assert target_names(model, ["query_key_value", "dense"]) == attention
    for name in ("experts", "gate_proj"):
        with pytest.raises(UserError, match=f"{name}. is no layer that takes an adapter"):
            target_names(model, ["q_proj", name])
    attach(model, LORA)
    adapted = {name.partition(".lora_")[0] for name, p in model.named_parameters() if p.requires_grad}
    assert len(adapted) == 3 * 4
    other = load_model(golden("sdar_moe", tmp_path / "other"))
    attach(other, LoraSettings(r=2, target_modules=[], experts=True))
    assert all(".mlp.experts." in name for name, p in other.named_parameters() if p.requires_grad)
    with pytest.raises(UserError, match="this model has no experts"):
        attach(load_model("embedded"), ON_EXPERTS)
    with pytest.raises(UserError, match=r"load_in_4bit: .* experts"):
        quantize(other.backbone, torch.device("cpu"), torch.float32)


@torch.no_grad()
@pytest.mark.parametrize("name", ["lladamoe", "llada2_0"])
def test_adapters_on_experts(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """peft's own sum of matrices and factors, merged rollouts, merged and separate exports give the same logits."""
    source, ids = golden(name, tmp_path / "m"), golden_io(name)["full.ids"]
    model, plain = load_model(source), load_model(source)(ids)
    reference = attach(model, ON_EXPERTS)
    assert torch.equal(model(ids), plain)  # B is zero
    moved(model)
    logits = model(ids)
    assert (logits - plain).abs().max() > 1
    assert torch.equal(reference(ids), plain)
    assert torch.equal(with_adapter(model, BASE)(ids), plain)
    with sampling(model, cast=False, move_to_device=False, merge=True):
        torch.testing.assert_close(model(ids), logits, rtol=0, atol=1e-4)
    assert torch.equal(model(ids), logits)
    save_model(model, tmp_path / "merged")
    torch.testing.assert_close(load_model(tmp_path / "merged")(ids), logits, rtol=0, atol=1e-4)
    save_adapter(model, tmp_path / "adapter")
    assert main(["export", str(source), "--layout", "transformers", "--output", str(tmp_path / "base")]) == 0
    theirs = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(tmp_path / "base"), tmp_path / "adapter")
    torch.testing.assert_close(theirs(input_ids=ids).logits, logits, rtol=0, atol=1e-4)
    other = load_model(source)
    attach(other, ON_EXPERTS)
    load_adapter(other, tmp_path / "adapter")
    assert torch.equal(other(ids), logits)
    (tmp_path / "out").mkdir()
    with pytest.raises(UserError, match="no form under the family's own names"):
        export_adapter(tmp_path / "adapter", model.family, "base", tmp_path / "out", own_names=True)


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "changes", "lora"),
    [("lladamoe", {}, None), ("llada2_0", {"block_length": 8}, None), ("llada2_0", {"block_length": 8}, ON_EXPERTS)],
)
def test_split_experts_train_as_whole_ones(
    name: str, changes: dict[str, Any], lora: LoraSettings | None, tmp_path: Path
) -> None:
    folder = golden(name, tmp_path / "m", **changes)
    trajectory = rollout(load_model(folder, dtype=torch.float64), PROMPTS, SAMPLER, SEEDS)
    for rank in run_ranks(2, trains_as_one, folder, 0, lora, True, trajectory):
        assert rank.returncode == 0, rank.stderr


def test_flops_count_the_chosen_experts(tmp_path: Path) -> None:
    model = load_model(golden("lladamoe", tmp_path / "m"))
    d, layers, vocabulary = 48, 3, 136
    # Four projections, two of four experts with three matrices, router, norms of the layer and of heads of 12.
    weights = layers * (4 * d * d + 2 * 3 * 24 * d + 4 * d + 2 * d + 2 * 12)
    expected = 2 * weights * 7 + 4 * layers * d * (3 * 3 + 4 * 4) + 2 * vocabulary * d * 5
    assert forward_flops(model, torch.tensor([3, 4]), 5) == pytest.approx(expected)
    assert model_shape(model.config)[0].active == weights
    attach(model, LoraSettings(r=2, target_modules=[], experts=True))
    factors = layers * 2 * 2 * ((d + 48) + (24 + d))  # of two chosen experts, rank 2, for gate_up and down
    assert forward_flops(model, torch.tensor([3, 4]), 5) == pytest.approx(expected + 2 * factors * 7)


def test_published_sizes() -> None:
    """Billions of parameters, all and, without the embeddings, active, as published."""
    names = ("llada-moe-7b", "llada2-mini", "sdar-30b-a3b", "sdar-8b", "sdar-4b")
    sizes = {name: model_shape(LAYOUTS[name])[0] for name in names}
    totals = {name: round(found.total / 1e9, 1) for name, found in sizes.items()}
    assert totals["llada-moe-7b"] == 7.4
    assert totals["llada2-mini"] == 16.3
    assert totals["sdar-30b-a3b"] == 30.5
    assert totals["sdar-8b"] == 8.2
    assert round(sizes["llada2-mini"].active / 1e6) == 789
    assert round(sizes["llada-moe-7b"].active / 1e9, 1) == 1.1
    assert sizes["sdar-4b"].active == sizes["sdar-4b"].layers
