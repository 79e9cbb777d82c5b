"""DiffusionGemma checkpoints beside transformers' own class: logits, names of weights, refusals."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from lfpo.cli.command_line import main
from lfpo.config.errors import UserError
from lfpo.config.models import LoraSettings
from lfpo.contrib.canvases.noise import expected_embeddings
from lfpo.core.doubled import noised_hidden, training_structure
from lfpo.core.model import NO_TOKEN
from lfpo.core.predictions import one_pass
from lfpo.core.structure import CAUSAL
from lfpo.models import init_model, load_model, load_tokenizer, save_model
from lfpo.models.experts import routers
from lfpo.models.layouts import LAYOUTS
from lfpo.models.lora import attach
from lfpo.plan.model import model_shape
from tiny import read_weights
from tiny_gemma import CANVAS, CHARACTERS, PAD, TURN, VOCABULARY, both, need_gemma, write_gemma

PROMPT = 13  # longer than the sliding window


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gemma(tmp_path_factory.mktemp("gemma") / "checkpoint")


def rows(prompt: int = PROMPT, canvases: int = 2, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Clean rows of a prompt and canvases, and the same with other tokens in the canvases, [2, L]."""
    rng = torch.Generator().manual_seed(seed)
    clean, noise = torch.randint(CHARACTERS, (2, 2, prompt + canvases * CANVAS), generator=rng)
    return clean, torch.cat([clean[:, :prompt], noise[:, prompt:]], dim=1)


@pytest.mark.parametrize("conditioned", [False, True])
@torch.no_grad()
def test_logits_are_transformers(checkpoint: Path, conditioned: bool):
    """Each canvas of the doubled layout as transformers computes it after the clean tokens before it."""
    ours, theirs = both(checkpoint)
    clean, noised = rows()
    before = torch.randn(2, 2 * CANVAS, VOCABULARY, generator=torch.Generator().manual_seed(1)) * 3
    conditioning = expected_embeddings(ours, before) if conditioned else None
    states, _ = noised_hidden(
        ours,
        noised,
        clean,
        torch.ones_like(clean),
        torch.tensor([PROMPT, PROMPT]),
        structure=training_structure(ours),
        signal=conditioning,
    )
    logits = ours.head(states)
    for start in (0, CANVAS):
        canvas = slice(start, start + CANVAS)
        expected = theirs(
            input_ids=clean[:, : PROMPT + start],
            decoder_input_ids=noised[:, PROMPT:][:, canvas],
            self_conditioning_logits=before[:, canvas] if conditioned else None,
        ).logits
        torch.testing.assert_close(logits[:, canvas], expected, rtol=0, atol=2e-5)


@torch.no_grad()
def test_states_of_the_context_are_transformers_encoder(checkpoint: Path):
    ours, theirs = both(checkpoint)
    clean, _ = rows()
    expected = theirs.model.encoder(input_ids=clean, attention_mask=torch.ones_like(clean)).last_hidden_state
    torch.testing.assert_close(ours.hidden(clean, structure=CAUSAL), expected, rtol=0, atol=2e-5)


@torch.no_grad()
def test_padding_and_prompts_of_other_lengths_change_nothing(checkpoint: Path):
    ours, _ = both(checkpoint)
    (clean, noised), structure = rows(), training_structure(ours)
    cut = 4  # the second row's prompt is shorter by so many tokens, padded on the left
    mask = torch.ones_like(clean)
    mask[1, :cut] = 0
    padding = mask == 0
    together, _ = noised_hidden(
        ours,
        noised.masked_fill(padding, PAD),
        clean.masked_fill(padding, PAD),
        mask,
        torch.tensor([PROMPT, PROMPT - cut]),
        structure=structure,
    )
    alone, _ = noised_hidden(
        ours, noised[1:, cut:], clean[1:, cut:], mask[1:, cut:], torch.tensor([PROMPT - cut]), structure=structure
    )
    torch.testing.assert_close(together[1:], alone, rtol=0, atol=1e-5)


@torch.no_grad()
def test_no_conditioning_is_a_signal_of_zeros_and_not_zero_logits(checkpoint: Path):
    ours, _ = both(checkpoint)
    clean, noised = rows()
    real, prompts = torch.ones_like(clean), torch.tensor([PROMPT, PROMPT])
    zero = torch.zeros(2, 2 * CANVAS, 32)
    uniform = expected_embeddings(ours, torch.zeros(2, 2 * CANVAS, VOCABULARY))
    states = [
        noised_hidden(ours, noised, clean, real, prompts, structure=training_structure(ours), signal=signal)[0]
        for signal in (None, zero, uniform)
    ]
    assert torch.equal(states[0], states[1])
    assert (states[0] - states[2]).abs().max() > 1e-2


def test_the_layout_has_the_published_numbers_of_weights():
    """25.2 B weights, of which a token uses 3.8 B, and layers as config.json lists them."""
    need_gemma()
    sizes, model = model_shape(LAYOUTS["diffusion-gemma-26b"])
    assert (round(sizes.total / 1e9, 2), round((sizes.active + sizes.outside) / 1e9, 2)) == (25.25, 3.84)
    assert model.backbone.config.layer_types == (["sliding_attention"] * 5 + ["full_attention"]) * 5
    width, heads = 2816, 16 * 512
    full = width * (heads + 2 * 512) + heads * width  # keys are values there
    full += 3 * width * 2112 + 128 * 3 * width * 704 + 128 * width  # dense, experts, router
    assert sum(p.numel() for p in model.backbone.model.layers[5].parameters() if p.ndim > 1) == full


def test_it_is_saved_under_its_own_names_with_the_vision_tower(checkpoint: Path, tmp_path: Path):
    model = load_model(checkpoint)
    assert (model.mask_id, model.pad_id, model.eos_id) == (NO_TOKEN, PAD, TURN)  # the end of a turn is EOS
    assert (model.block_length, model.causal_context, model.max_length) == (CANVAS, True, 256)
    assert model.asks_about_all
    assert load_tokenizer(checkpoint).mask_token is None
    assert not any("vision" in name for name, _ in model.backbone.named_parameters())
    save_model(model, tmp_path / "saved")
    before, after = read_weights(checkpoint), read_weights(tmp_path / "saved")
    assert before.keys() == after.keys() and all(torch.equal(before[k], after[k]) for k in before)
    assert json.loads((tmp_path / "saved/config.json").read_text()) == json.loads(
        (checkpoint / "config.json").read_text()
    )


def test_tied_copies_of_the_encoder_are_left_out_unless_they_differ(tmp_path: Path):
    """Tools that know no tied tensors write the encoder's layers a second time."""
    source = write_gemma(tmp_path / "source")
    weights = read_weights(source)
    stack = {k: v for k, v in weights.items() if k.startswith("model.decoder.") and not k.endswith("layer_scalar")}
    copies = {k.replace("decoder", "encoder.language_model"): v.clone() for k, v in stack.items()}
    copies = {k: v for k, v in copies.items() if "self_conditioning" not in k}
    save_file(
        {**weights, **copies, "lm_head.weight": stack["model.decoder.embed_tokens.weight"].clone()},
        source / "model.safetensors",
    )
    save_model(load_model(source), tmp_path / "saved")
    after = read_weights(tmp_path / "saved")
    assert after.keys() == weights.keys() and all(torch.equal(weights[k], after[k]) for k in after)
    for name in ("layers.1.experts.down_proj", "norm.weight"):
        key = f"model.encoder.language_model.{name}"
        save_file({**weights, **copies, key: copies[key] + 1}, source / "model.safetensors")
        with pytest.raises(UserError, match=f"{key} differs from model.decoder.{name}"):
            load_model(source)


def test_a_bfloat16_checkpoint_comes_back_bit_for_bit(tmp_path: Path):
    source = write_gemma(tmp_path / "source", dtype=torch.bfloat16)
    save_model(load_model(source, dtype=torch.bfloat16), tmp_path / "saved")
    before, after = read_weights(source), read_weights(tmp_path / "saved")
    assert before.keys() == after.keys()
    assert all(before[k].dtype == after[k].dtype and torch.equal(before[k], after[k]) for k in before)


def test_transformers_loads_what_is_saved(checkpoint: Path, tmp_path: Path):
    from transformers import DiffusionGemmaForBlockDiffusion

    ours, theirs = both(checkpoint)
    save_model(ours, tmp_path / "saved")
    back, report = DiffusionGemmaForBlockDiffusion.from_pretrained(tmp_path / "saved", output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    for (name, value), (_, expected) in zip(back.state_dict().items(), theirs.state_dict().items(), strict=True):
        assert torch.equal(value, expected), name


def test_a_new_model_has_no_vision_tower_and_loads_again(checkpoint: Path, tmp_path: Path):
    config = json.loads((checkpoint / "config.json").read_text())
    save_model(init_model(config, seed=0, tokenizer=load_tokenizer(checkpoint)), tmp_path / "new")
    assert not any("vision" in name for name in read_weights(tmp_path / "new"))
    (tmp_path / "new/tokenizer.json").write_bytes((checkpoint / "tokenizer.json").read_bytes())
    assert load_model(tmp_path / "new").asks_about_all


def test_routers_are_measured_and_the_experts_are_ours(checkpoint: Path):
    model = load_model(checkpoint)
    assert len(routers(model.backbone)) == 4
    clean, noised = rows()
    with one_pass([model]) as measures:
        states, _ = noised_hidden(
            model,
            noised,
            clean,
            torch.ones_like(clean),
            torch.tensor([PROMPT] * 2),
            structure=training_structure(model),
        )
        model.head(states).sum().backward()
    assert {"router/entropy", "router/max_load"} <= measures.keys()
    assert model.backbone.model.layers[0].experts.gate_up_proj.grad.abs().sum() > 0


@torch.no_grad()
def test_routers_compute_in_float32_under_autocast(checkpoint: Path):
    (router, *_) = routers(load_model(checkpoint).backbone)
    hidden = torch.randn(5, 32, generator=torch.Generator().manual_seed(0))
    expected = router(hidden)
    with torch.autocast("cpu", torch.bfloat16):
        for value, same in zip(router(hidden), expected, strict=True):
            assert torch.equal(value, same)


def test_adapters_leave_out_routers_and_take_experts_when_they_are_named(checkpoint: Path):
    model = load_model(checkpoint)
    attach(model, LoraSettings(r=2, lora_alpha=4))
    adapted = {name.split(".lora_")[0] for name, _ in model.factors()}
    attention = 2 * 4 + 2 * 3  # full layers have no v_proj
    assert len(adapted) == attention + 3 * 4 + 3
    assert not any("router" in name or "experts" in name for name in adapted)
    model = load_model(checkpoint)
    attach(model, LoraSettings(r=2, lora_alpha=4, target_modules=[], experts=True))
    assert len(model.factors()) == 2 * 2 * 4 and all("experts" in name for name, _ in model.factors())


def test_routers_stay_as_they_are(checkpoint: Path):
    model = load_model(checkpoint)
    frozen = {name for name, p in model.backbone.named_parameters() if not p.requires_grad}
    assert len(frozen) == 3 * 4 and all(".router." in name for name in frozen)


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["export", "{model}", "--layout", "transformers", "--output", "{out}"], "leave --layout out"),
        (
            ["plan", "--model", "{model}", "--task", "choice", "--gpu_memory", "16", "--tflops", "1"],
            "sampler.rule: diffusion_gemma models are sampled by the rule 'canvas' alone",
        ),
    ],
)
def test_a_command_that_does_not_take_it_says_why(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], command: list[str], said: str
):
    given = [part.format(model=checkpoint, out=tmp_path / "out") for part in command]
    assert main(given) == 2
    printed = capsys.readouterr().err
    assert said in printed and printed.count("\n") == 1
