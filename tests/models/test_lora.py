import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel
from safetensors.torch import load_file, save_file

from adapters import moved
from golden_families import golden
from lfpo.config.errors import UserError
from lfpo.config.models import LoraSettings
from lfpo.config.train import LFPOConfig
from lfpo.core.model import BASE
from lfpo.core.optim import ema_update
from lfpo.models import MaskedDiffusionLM, load_model, save_model
from lfpo.models.export import Base, merge_adapter
from lfpo.models.lora import attach, load_adapter, save_adapter, settings_of, target_names, with_adapter
from lfpo.train.checkpoint import latest_checkpoint
from lfpo.train.rl import LFPOTrainer
from small_runs import LFPO_PAPER, choice_config, whole_and_resumed

SMALL = LoraSettings(r=2, lora_alpha=4)
IDS = torch.tensor([[5, 6, 7, 8, 9, 10], [11, 12, 13, 14, 15, 16]])


def adapted(checkpoint: Path, dtype: torch.dtype = torch.float32) -> MaskedDiffusionLM:
    model = load_model(checkpoint, dtype=dtype)
    attach(model, SMALL)
    return moved(model)


def test_three_policies_share_one_backbone(checkpoint: Path):
    plain, model = load_model(checkpoint), load_model(checkpoint)
    reference = attach(model, SMALL)
    with torch.no_grad():
        assert torch.equal(model(IDS), plain(IDS))
        assert torch.equal(reference(IDS), plain(IDS))
        moved(model)
        assert not torch.allclose(model(IDS), plain(IDS), atol=1e-3)
        assert torch.equal(reference(IDS), plain(IDS))
        assert torch.equal(with_adapter(model, BASE)(IDS), plain(IDS))
        # The reference takes over the current factors; the base never does.
        ema_update(reference, model, 0.0)
        assert torch.equal(reference(IDS), model(IDS))
        assert torch.equal(with_adapter(model, BASE)(IDS), plain(IDS))
    assert reference.backbone is model.backbone


def test_only_the_current_factors_train_and_running_others_leaves_that_so(checkpoint: Path):
    model = load_model(checkpoint)
    reference = attach(model, SMALL)
    trained = {n for n, p in model.named_parameters() if p.requires_grad}
    assert trained
    assert all(".current." in n for n in trained)
    loss = model(IDS).square().mean() + 0 * reference(IDS).sum() + 0 * with_adapter(model, BASE)(IDS).sum()
    loss.backward()
    assert {n for n, p in model.named_parameters() if p.requires_grad} == trained
    assert any(p.grad is not None and p.grad.abs().sum() > 0 for _, p in model.factors())
    assert all(p.grad is None for p in reference.own_parameters())


def test_a_checkpoint_s_adapter_is_added_to_a_bfloat16_base_in_float32(llada: Path, tmp_path: Path):
    model = adapted(llada, torch.bfloat16)
    save_model(model, tmp_path / "run")
    save_adapter(model, tmp_path / "adapter")
    merge_adapter(Base(llada, torch.bfloat16), tmp_path / "adapter", tmp_path / "merged", torch.bfloat16)
    whole, merged = (load_model(tmp_path / name, dtype=torch.bfloat16).state_dict() for name in ("run", "merged"))
    assert all(torch.equal(whole[name], merged[name]) for name in whole)


def test_adapters_are_written_for_peft_and_read_back(llada: Path, tmp_path: Path):
    model = adapted(llada)
    save_adapter(model, tmp_path / "adapter")
    loaded = PeftModel.from_pretrained(load_model(llada).backbone, str(tmp_path / "adapter"))
    with torch.no_grad():
        # peft's model has the plain backbone inside, which is bidirectional already.
        torch.testing.assert_close(loaded(input_ids=IDS).logits, model(IDS), atol=1e-5, rtol=1e-5)
    other = adapted(llada)
    load_adapter(other, tmp_path / "adapter")
    assert all(torch.equal(a, b) for (_, a), (_, b) in zip(model.factors(), other.factors(), strict=True))
    wider = load_model(llada)
    attach(wider, LoraSettings(r=3))
    with pytest.raises(UserError, match="other layers or rank"):
        load_adapter(wider, tmp_path / "adapter")


def test_an_adapter_of_another_scaling_is_refused(llada: Path, tmp_path: Path):
    model = adapted(llada)
    save_adapter(model, tmp_path / "adapter")
    load_adapter(model, tmp_path / "adapter")
    file = tmp_path / "adapter/adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"lora_alpha": 1}))
    before = [factor.clone() for _, factor in model.factors()]
    with pytest.raises(UserError, match="adapter has lora_alpha 1, and 'lora' in the configuration 4"):
        load_adapter(model, tmp_path / "adapter")
    assert all(torch.equal(a, b) for a, (_, b) in zip(before, model.factors(), strict=True))


def test_an_adapter_is_added_to_the_weights_it_was_trained_on_and_to_no_others(llada: Path, tmp_path: Path):
    base, saved = tmp_path / "base", tmp_path / "adapter"
    save_model(load_model(llada), base)
    save_adapter(adapted(base), saved)
    weights = load_file(base / "model.safetensors")
    (base / "model.safetensors").unlink()
    files = {name: f"{number:02}.safetensors" for number, name in enumerate(sorted(weights))}
    for name, file in files.items():  # the same weights in other files
        save_file({name: weights[name]}, base / file, {"format": "pt"})
    (base / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
    load_adapter(adapted(base), saved)
    merge_adapter(Base(base, torch.float32), saved, tmp_path / "merged", torch.float32)
    first = base / "00.safetensors"
    name, weight = next(iter(load_file(first).items()))
    weight.view(-1)[0] += 1
    save_file({name: weight}, first, {"format": "pt"})
    with pytest.raises(UserError, match=f"{saved}: the adapter was trained on other weights than those in {base} now"):
        load_adapter(adapted(base), saved)
    with pytest.raises(UserError, match="put the weights back"):
        merge_adapter(Base(base, torch.float32), saved, tmp_path / "wrong", torch.float32)


def test_target_names_are_those_that_exist(llada: Path, dream: Path):
    every = ["down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj"]
    first, second = load_model(llada), load_model(dream)
    assert target_names(first, "all-linear") == target_names(second, "all-linear") == every
    # d1's list in LLaDA's own names: its attn_out, ff_proj and ff_out are not in it.
    assert target_names(first, "as-published") == ["k_proj", "q_proj", "up_proj", "v_proj"]
    assert target_names(second, "as-published") == every
    assert target_names(first, ["attn_out", "q_proj", "ff_proj"]) == ["gate_proj", "o_proj", "q_proj"]
    with pytest.raises(UserError, match=r"'o_prj' is no layer that takes an adapter.*o_proj"):
        target_names(first, ["q_proj", "o_prj"])


def test_a_peft_config_says_the_same_as_the_settings():
    config = LoraConfig(r=4, lora_alpha=8, target_modules=["v_proj", "q_proj"])
    assert settings_of(config) == LoraSettings(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"])
    with pytest.raises(UserError, match="lora_dropout"):
        settings_of(LoraConfig(lora_dropout=0.05))
    names = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
    config = LoraConfig(r=4, lora_alpha=8, target_modules=[], target_parameters=names)
    assert settings_of(config) == LoraSettings(r=4, lora_alpha=8, target_modules=[], experts=True)
    with pytest.raises(UserError, match=r"target_parameters \['mlp.experts.down_proj'\]: expected the experts"):
        settings_of(LoraConfig(target_modules=["q_proj"], target_parameters=names[1:]))
    for name, value in {"use_rslora": True, "use_dora": True, "rank_pattern": {"q_proj": 2}}.items():
        with pytest.raises(UserError, match=f"{name} .* is not supported"):
            settings_of(LoraConfig(**{name: value}))


def config(folder: Path, model: Path, **settings: Any) -> LFPOConfig:
    return choice_config(folder, model, **{"lora": {"r": 2, "lora_alpha": 4}, **settings})


@pytest.mark.long
@pytest.mark.parametrize(
    ("objective", "experts"),
    [("lfpo", False), ("coupled_grpo", False), ("lfpo", True)],
)
def test_training_resumes_exactly_and_exports_a_plain_model(objective: str, experts: bool, llada: Path, tmp_path: Path):
    llada = golden("lladamoe", tmp_path / "moe") if experts else llada
    lora = {"r": 2, "lora_alpha": 4, "experts": experts}
    more: dict[str, Any] = {"objective": {"name": objective, "num_iterations": 2}, "ema_decay": 0.5}
    whole, resumed = whole_and_resumed(tmp_path, llada, 2, lora=lora, **more)
    for policy, other in ((whole.model, resumed.model), (whole.reference, resumed.reference)):
        assert all(torch.equal(a, b) for a, b in zip(policy.own_parameters(), other.own_parameters(), strict=True))
    start = load_model(llada)
    base = with_adapter(whole.model, BASE)
    with torch.no_grad():
        assert torch.equal(base(IDS), start(IDS))
        assert not torch.equal(whole.model(IDS), start(IDS))
        torch.testing.assert_close(load_model(tmp_path / "whole/model")(IDS), whole.model(IDS), atol=1e-4, rtol=1e-4)
    checkpoint = latest_checkpoint(tmp_path / "whole")
    assert checkpoint is not None
    names = sorted(p.name for p in (checkpoint / "model").iterdir())
    assert names == ["README.md", "adapter_config.json", "adapter_model.safetensors", "base.json"]
    plain = LFPOTrainer(args=LFPOConfig(output_dir=str(tmp_path / "parts"), model=str(llada), task="choice"))
    with pytest.raises(UserError, match="holds an adapter"):
        plain.train(resume=True)
    shutil.copytree(llada, tmp_path / "elsewhere" / llada.name)
    moved_base = tmp_path / "elsewhere" / llada.name
    retrained = load_model(moved_base)
    retrained.head_weight.data.add_(1.0)
    save_model(retrained, moved_base)
    again = LFPOConfig(output_dir=str(tmp_path / "parts"), model=str(moved_base), task="choice", lora=lora)
    with pytest.raises(UserError, match="trained on other weights"):
        LFPOTrainer(args=again).train(resume=True)


@pytest.mark.long
def test_training_with_merged_rollouts_is_the_same(llada: Path, tmp_path: Path):
    rows = []
    for merge in (False, True):
        more: dict[str, Any] = {"eval_steps": 1, "merge_lora": merge, "ema_decay": 0.5, "objective": LFPO_PAPER}
        trainer = LFPOTrainer(args=config(tmp_path / str(merge), llada, max_steps=2, **more))
        trainer.train()
        found = trainer.run.read_metrics()
        rows.append([{k: v for k, v in row.items() if not k.startswith("time/")} for row in found])
        assert trainer.model.adapter == "current"
    assert rows[1][-1]["grad_norm"] > 0
    assert rows[0] != rows[1]  # sums round otherwise than products
    for apart, merged in zip(*rows, strict=True):
        assert merged == pytest.approx(apart, rel=1e-4, abs=1e-6, nan_ok=True)


def test_gradient_checkpointing_changes_no_gradient(llada: Path, tmp_path: Path):
    losses = []
    for number, kept in enumerate((False, True)):
        trainer = LFPOTrainer(args=config(tmp_path / str(number), llada, max_steps=1, gradient_checkpointing=kept))
        trainer.train()
        losses.append([p.detach().clone() for p in trainer.model.own_parameters()])
    for a, b in zip(*losses, strict=True):
        torch.testing.assert_close(a, b)
