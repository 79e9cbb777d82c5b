"""dllm's a2d models and exports in transformers' layout: logits of transformers' own classes, round trips, LoRA."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from autoregressive import VOCAB, write_source
from lfpo.cli.command_line import main
from lfpo.config.errors import UserError
from lfpo.config.models import LoraSettings
from lfpo.config.sampler import SamplerConfig
from lfpo.core.doubled import noised_hidden, training_structure
from lfpo.core.structure import Structure
from lfpo.models import load_model, load_tokenizer, save_model
from lfpo.models.loading import trained_block_length
from lfpo.models.lora import inject
from lfpo.models.weights import saved_weights
from lfpo.plan.model import model_config
from lfpo.rollout.sampling import rollout
from tiny import random_ids

NAMES = ("llama", "qwen2", "qwen3")


def a2d(folder: Path, name: str, **changes: object) -> Path:
    """A checkpoint as dllm's own conversion writes it: other model_type, no mask token but in the tokenizer."""
    special = ("<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|mask|>")
    write_source(folder, name, special=special)
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": f"a2d-{name}", "architectures": [f"A2D{name.capitalize()}LMHeadModel"], **changes}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("side", ["none", "left", "right"])
def test_logits_are_those_of_transformers_with_padding_on_either_side(name: str, side: str, tmp_path: Path):
    folder = a2d(tmp_path / "m", name)
    model = load_model(folder)
    theirs = getattr(transformers, model.family.architecture).from_pretrained(folder)
    ids, real = random_ids(2, 12), torch.ones(2, 12, dtype=torch.long)
    if side != "none":
        real[1, slice(0, 5) if side == "left" else slice(7, 12)] = 0
    positions = (real.cumsum(-1) - 1).clamp(min=0)
    seen = real.bool()[:, None, None].expand(2, 1, 12, 12)
    with torch.no_grad():
        expected = theirs(ids, attention_mask=seen, position_ids=positions).logits
        found = model(ids, real)
    torch.testing.assert_close(found[real.bool()], expected[real.bool()], rtol=0, atol=1e-5)
    assert model.mask_id == VOCAB


@pytest.mark.parametrize("name", NAMES)
def test_published_names_tell_which_checkpoints_attend_in_blocks(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    plain = a2d(tmp_path / "Qwen2.5-Coder-0.5B-Instruct-diffusion-mdlm-v0.1", name)
    blocks = a2d(tmp_path / "Qwen2.5-Coder-0.5B-Instruct-diffusion-bd3lm-v0.1", name)
    assert trained_block_length(plain) is None
    assert trained_block_length(blocks) == 32
    assert trained_block_length(a2d(tmp_path / "own-diffusion-bd3lm", name, block_size=8)) == 8
    file = a2d(tmp_path / "full-diffusion-bd3lm", name) / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "block_size": None}))  # as lfpo convert writes it
    assert trained_block_length(file.parent) is None
    # The folder's own name, wherever it is and however it is written; in the hub's cache the repository's.
    assert trained_block_length(a2d(tmp_path / "a-diffusion-bd3lm-study" / "mdlm", name)) is None
    cached = tmp_path / "models--org--m-diffusion-bd3lm-v0.1" / "snapshots" / "0123abc"
    assert trained_block_length(a2d(cached, name)) == 32
    monkeypatch.chdir(blocks)
    assert trained_block_length(".") == 32


@pytest.mark.parametrize("layout", ["family", "transformers", "saved"])
def test_a_copy_under_another_name_attends_in_the_blocks_that_the_name_told(layout: str, tmp_path: Path):
    named, made = a2d(tmp_path / "own-diffusion-bd3lm", NAMES[0]), tmp_path / "made"
    if layout == "saved":
        save_model(load_model(named), made)
    else:
        assert main(["export", str(named), "--layout", layout, "--output", str(made)]) == 0
    assert trained_block_length(made) == 32


def test_a_plan_for_a_model_on_the_hub_reads_the_name_of_its_repository(tmp_path: Path, monkeypatch: Any):
    cached = a2d(tmp_path / "models--org--m-diffusion-bd3lm-v0.1" / "snapshots" / "0123abc", NAMES[0])
    monkeypatch.setattr("huggingface_hub.hf_hub_download", lambda name, file: str(cached / file))
    assert model_config("org/m-diffusion-bd3lm-v0.1")["block_size"] == 32


def test_rotary_frequencies_that_depend_on_a_batch_are_refused(tmp_path: Path):
    rope = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
    with pytest.raises(UserError, match=r"config.json: rotary embeddings of type 'longrope' are not supported"):
        load_model(a2d(tmp_path / "m", NAMES[0], rope_parameters=rope))


@pytest.mark.parametrize("name", NAMES)
def test_lora_adapts_every_linear_layer_and_starts_without_effect(name: str, tmp_path: Path):
    model = load_model(a2d(tmp_path / "m", name))
    ids = random_ids(1, 10)
    before = model(ids)
    inject(model, LoraSettings(r=4, lora_alpha=4))
    adapted = {n.partition(".lora_A")[0] for n, _ in model.backbone.named_parameters() if ".lora_A" in n}
    assert len(adapted) == 2 * 7
    torch.testing.assert_close(model(ids), before)


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Autoregressive models, which no test changes."""
    return {name: write_source(tmp_path_factory.mktemp("source") / name, name) for name in NAMES}


# The three families are made by one function, which treats blocks and the shift alike.
@pytest.mark.parametrize(
    ("name", "more"),
    [*((name, ()) for name in NAMES), ("llama", ("--block_length", "4")), ("qwen2", ("--shift", "false"))],
)
def test_an_export_in_transformers_layout_comes_back_with_the_same_logits(
    name: str, more: tuple[str, ...], sources: dict[str, Path], tmp_path: Path
):
    source = sources[name]
    made, exported = tmp_path / "made", tmp_path / "exported"
    assert main(["convert", str(source), str(made), *more]) == 0
    assert main(["export", str(made), "--layout", "transformers", "--output", str(exported)]) == 0
    model, back = load_model(made), load_model(exported)
    ids = random_ids(2, 12)
    assert torch.equal(back(ids), model(ids))
    for field in ("mask_id", "eos_id", "pad_id", "block_length"):
        assert getattr(back, field) == getattr(model, field), field
    first, second = load_tokenizer(made), load_tokenizer(exported)
    assert (first.chat_template, first.get_vocab()) == (second.chat_template, second.get_vocab())


def test_the_exports_of_the_published_families_come_back(llada: Path, dream: Path, tmp_path: Path):
    for folder in (llada, dream):
        exported = tmp_path / f"exported-{folder.name}"
        assert main(["export", str(folder), "--layout", "transformers", "--output", str(exported)]) == 0
        model, back = load_model(folder), load_model(exported)
        ids = random_ids(2, 12)
        assert torch.equal(back(ids), model(ids))
        assert (back.family.shift, back.mask_id) == (model.family.shift, model.mask_id)


@pytest.mark.parametrize(("name", "shift"), [*((name, "true") for name in NAMES), ("llama", "false")])
def test_stored_blocks_change_no_token_of_a_model_in_blocks(
    name: str, shift: str, sources: dict[str, Path], tmp_path: Path
):
    source = sources[name]
    assert main(["convert", str(source), str(tmp_path / "m"), "--block_length", "4", "--shift", shift]) == 0
    model = load_model(tmp_path / "m", dtype=torch.float64)
    prompts, sampler = [[5, 6, 7, 8], [9, 10], [40, 41, 42, 43, 44]], SamplerConfig(gen_length=12, temperature=1.0)
    plain = rollout(model, prompts, sampler, [1, 2, 3], store_blocks=False)
    stored = rollout(model, prompts, sampler, [1, 2, 3])
    assert torch.equal(stored.tokens, plain.tokens) and torch.equal(stored.reveal_step, plain.reveal_step)
    torch.testing.assert_close(stored.confidence, plain.confidence)
    assert bool((stored.queries < plain.queries).all())


@pytest.mark.parametrize("shift", ["true", "false"])
def test_training_predicts_each_block_from_the_states_of_a_rollout(
    shift: str, sources: dict[str, Path], tmp_path: Path
):
    """Also a block's first token, which with the shift the finished block before it predicts."""
    source = sources["llama"]
    assert main(["convert", str(source), str(tmp_path / "m"), "--block_length", "4", "--shift", shift]) == 0
    model, ids = load_model(tmp_path / "m", dtype=torch.float64), random_ids(2, 16)
    real = torch.ones_like(ids)
    real[1, :3] = 0  # so that this row's blocks begin elsewhere
    masked = torch.full_like(ids, model.mask_id)
    with torch.no_grad():
        prompt = torch.tensor([1, 1])  # in the first block, so that all tokens are noised
        together, _ = noised_hidden(model, masked, ids, real, prompt, structure=training_structure(model))
        for row, first in ((0, 0), (1, 3)):
            for start in range(first + 4, 13, 4):
                shown = torch.cat([ids[:, :start], masked[:, start:]], dim=1)
                alone = model.hidden(shown, real, structure=Structure(4))
                torch.testing.assert_close(together[row, start : start + 4], alone[row, start : start + 4])


@pytest.mark.parametrize("name", NAMES)
def test_weights_come_back_bit_for_bit_from_every_layout(name: str, sources: dict[str, Path], tmp_path: Path):
    """As lfpo saves a model, in the family's own names, and in transformers'; and plain transformers reads the same."""
    made = tmp_path / "made"
    assert main(["convert", str(sources[name]), str(made)]) == 0
    model, tokenizer = load_model(made), load_tokenizer(made)
    save_model(model, tmp_path / "saved", tokenizer)
    for layout in ("family", "transformers"):
        assert main(["export", str(made), "--layout", layout, "--output", str(tmp_path / layout)]) == 0
    for folder in ("saved", "family", "transformers"):
        back = saved_weights(load_model(tmp_path / folder))
        assert back.keys() == saved_weights(model).keys()
        assert all(torch.equal(back[key], tensor) for key, tensor in saved_weights(model).items()), folder
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "transformers")
    ids = random_ids(2, 12)
    with torch.no_grad():
        # Its position i predicts token i + 1, and it attends to all tokens.
        torch.testing.assert_close(theirs(ids).logits[:, :-1], model(ids)[:, 1:], rtol=0, atol=1e-5)
