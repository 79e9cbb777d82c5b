"""Faults of models, by kind: what is given as a model and is none, with the line that works; LoRA over bfloat16."""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import tiny
from lfpo import LFPOConfig, LFPOTrainer, SamplerConfig
from lfpo.cli import main
from lfpo.config.build import to_dict, yaml_text
from lfpo.config.errors import UserError
from lfpo.config.models import LoraSettings
from lfpo.core.model import CURRENT
from lfpo.models import load_model, load_tokenizer
from lfpo.models.loading import resolve, trained_block_length
from lfpo.models.lora import attach
from lfpo.models.weights import saved_weights
from lfpo.train.checkpoint import save_checkpoint
from written_runs import write_run

ROWS = [{"prompt": "a\n"}, {"prompt": "b\n"}]


def constant(prompts: list[str], **_: Any) -> list[float]:
    return [0.0] * len(prompts)


def llama() -> LlamaForCausalLM:
    return LlamaForCausalLM(LlamaConfig(vocab_size=16, hidden_size=8, intermediate_size=8, num_hidden_layers=1,
                                        num_attention_heads=2))  # fmt: skip


def adapter(folder: Path, base: str = "org/base") -> Path:
    from peft import LoraConfig, get_peft_model

    model = get_peft_model(llama(), LoraConfig(r=2, target_modules=["q_proj"]))
    model.peft_config["default"].base_model_name_or_path = base
    model.save_pretrained(folder, save_embedding_layers=False)
    return folder


def pickled(folder: Path, names: tuple[str, ...] = ("pytorch_model.bin",)) -> Path:
    """A checkpoint of LLaDA's layout whose weights are pickled, in one file or in several."""
    from safetensors.torch import load_file

    tiny.write_llada(folder)
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    for i, name in enumerate(names):
        torch.save({key: weights[key] for key in list(weights)[i :: len(names)]}, folder / name)
    return folder


def written(file: Path, content: str = "x") -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(content)
    return file


def run_checkpoint(folder: Path) -> Path:
    """A checkpoint of a LoRA run, which holds an adapter."""
    adapter(folder / "checkpoints/step-3/model")
    return folder / "checkpoints/step-3"


GIVEN = {
    "adapter": (lambda f: adapter(f / "lora"), r"holds a LoRA adapter only; merge it: python -c .*'org/base'.*lora"),
    "adapter of a run": (run_checkpoint, r"holds a LoRA adapter only; merge it: lfpo export \S+step-3 --output FOLDER"),
    "model folder of it": (lambda f: run_checkpoint(f) / "model", r"lfpo export \S+step-3 --output FOLDER"),
    "empty folder": (lambda f: f, "the folder is empty"),
    "GGUF file": (lambda f: written(f / "m.gguf"), r"run `lfpo convert \S+m.gguf FOLDER`"),
    "folder of a GGUF file": (lambda f: written(f / "g/m.gguf").parent, r"run `lfpo convert \S+m.gguf FOLDER`"),
    "safetensors file": (
        lambda f: tiny.write_llada(f / "tiny") / "model.safetensors",
        r"is a file; give its folder, '\S+tiny'",
    ),
    "safetensors file alone": (lambda f: written(f / "a.safetensors"), "is a file, and no config.json is beside it"),
    "weights without config.json": (
        lambda f: written(f / "w/model.safetensors").parent,
        "no config.json beside the weights",
    ),
    "pickled weights": (lambda f: pickled(f / "p"), r"pickled weights are not read; write them as safetensors, python"),
    "file of pickled weights": (lambda f: written(f / "x.pth"), r"pickled weights are not read"),
    "text file": (lambda f: written(f / "notes.txt"), "is a file"),
    "config.json": (lambda f: tiny.write_llada(f / "tiny") / "config.json", "give its folder"),
    "GGUF that is not there": (lambda f: "org/model.gguf", "no such folder"),
}


@pytest.mark.parametrize("kind", GIVEN)
def test_a_path_that_is_no_checkpoint_is_one_sentence_with_what_works(
    tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    make, said = GIVEN[kind]
    path = make(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    for call in (resolve, load_model, load_tokenizer, trained_block_length):
        with pytest.raises(UserError, match=said) as caught:
            call(path)
        assert "\n" not in str(caught.value)
    args = LFPOConfig(output_dir=str(tmp_path / "run"), sampler=SamplerConfig(gen_length=8, temperature=1.0))
    with pytest.raises(UserError, match=said):
        LFPOTrainer(str(path), constant, args=args, train_dataset=ROWS)
    assert main(["train", "--task", "words", "--model", str(path), "--output_dir", str(tmp_path / "run")]) == 2
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    assert "Traceback" not in message
    assert sorted(tmp_path.rglob("*")) == before


def peft_model() -> Any:
    from peft import LoraConfig, get_peft_model

    return get_peft_model(llama(), LoraConfig(r=2, target_modules=["q_proj"]))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (peft_model, r"PeftModel\w*; save it, model = model.merge_and_unload\(\)"),
        (llama, r"LlamaForCausalLM; save it, model.save_pretrained\('FOLDER'\), .*`lfpo convert FOLDER NEW`"),
        (lambda: {"a": 1}, "expected a folder, a hub id or what load_model returns, found an object of dict"),
        (lambda: 3, "found an object of int"),
    ],
    ids=["peft", "transformers", "dict", "int"],
)
def test_a_model_object_of_another_library_is_one_sentence(tmp_path: Path, make: Any, said: str) -> None:
    args = LFPOConfig(output_dir=str(tmp_path / "run"), sampler=SamplerConfig(gen_length=8, temperature=1.0))
    for call in (
        lambda model: LFPOTrainer(model, constant, args=args, train_dataset=ROWS),
        load_model,
        load_tokenizer,
    ):
        with pytest.raises(UserError, match=said) as caught:
            call(make())
        assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.long
@pytest.mark.parametrize("names", [("pytorch_model.bin",), ("pytorch_model-1-of-2.bin", "pytorch_model-2-of-2.bin")])
def test_the_line_for_pickled_weights_works(tmp_path: Path, names: tuple[str, ...]) -> None:
    folder = pickled(tmp_path / "p", names)
    with pytest.raises(UserError) as caught:
        load_model(folder)
    line = str(caught.value).split('python -c "')[1].split('", and give')[0]
    subprocess.run([sys.executable, "-c", line], check=True)
    theirs = saved_weights(load_model(tiny.write_llada(tmp_path / "same")))
    assert all(torch.equal(value, theirs[name]) for name, value in saved_weights(load_model(folder)).items())


@pytest.mark.long
def test_the_line_for_an_adapter_of_peft_works(tmp_path: Path) -> None:
    llama().save_pretrained(tmp_path / "base")
    folder = adapter(tmp_path / "lora", str(tmp_path / "base"))
    with pytest.raises(UserError) as caught:
        load_model(folder)
    line = str(caught.value).split('python -c "')[1].split('", copy')[0]
    subprocess.run([sys.executable, "-c", line.replace("FOLDER", str(tmp_path / "merged"))], check=True)
    assert json.loads((tmp_path / "merged/config.json").read_text())["model_type"] == "llama"


# LoRA over bfloat16


def lora_run(folder: Path, dtype: str, size: float) -> tuple[Any, Any]:
    """A LoRA run with a checkpoint, whose factors have standard deviation `size`: the policy, and its base weights."""
    base = tiny.write_llada(folder / "base")
    write_run(folder / "run", ["text"])
    settings = LoraSettings(r=2, lora_alpha=4)
    config = LFPOConfig(output_dir=str(folder / "run"), model=str(base), task="words", lora=settings, dtype=dtype)
    (folder / "run/config.yaml").write_text(yaml_text(to_dict(config)))
    model = load_model(base, dtype=getattr(torch, dtype))
    attach(model, settings)
    generator = torch.Generator().manual_seed(3)
    for _, factor in model.factors():
        factor.data = torch.randn(factor.shape, generator=generator) * size
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad])
    trainer: Any = SimpleNamespace(model=model, reference=None, tokenizer=None, optimizer=optimizer, parts={})
    save_checkpoint(folder / "run", 2, trainer, state={})
    return model, {name: weight.detach().float().clone() for name, weight in saved_weights(model).items()}


def test_export_adds_the_adapter_in_the_dtype_of_the_run_or_in_float32(tmp_path: Path, capsys):
    model, base = lora_run(tmp_path, "bfloat16", 0.03)
    products = {}
    for name in base:
        layer = model.backbone.get_submodule(name.rpartition(".")[0])
        if hasattr(layer, "lora_A"):
            a, b = layer.lora_A[CURRENT].weight, layer.lora_B[CURRENT].weight
            products[name] = 2.0 * (b @ a).detach()  # lora_alpha / r
    assert products
    run = str(tmp_path / "run")
    assert main(["export", run, "--output", str(tmp_path / "narrow")]) == 0
    assert main(["export", run, "--dtype", "float32", "--output", str(tmp_path / "wide")]) == 0
    narrow, wide = (saved_weights(load_model(tmp_path / name)) for name in ("narrow", "wide"))
    for name, weight in base.items():
        exact = weight + products.get(name, 0.0)
        assert torch.allclose(wide[name], exact, atol=1e-6)
        assert torch.allclose(narrow[name].float(), exact, rtol=2**-8, atol=1e-6)
    assert main(["export", run, "--dtype", "float32", "--adapter", "true", "--output", str(tmp_path / "a")]) == 2
    assert "--dtype is that of the sum of base and LoRA adapter" in capsys.readouterr().err
    assert main(["export", "embedded", "--dtype", "float32", "--output", str(tmp_path / "b")]) == 2
    assert "--dtype needs the folder of a run with lora" in capsys.readouterr().err
