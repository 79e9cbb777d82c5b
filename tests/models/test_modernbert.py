"""ModernBERT checkpoints beside transformers' own class: logits, names of weights, the bias of the head, commands."""

import json
from pathlib import Path

import pytest
import torch
from transformers import ModernBertForMaskedLM

from letter_runs import metrics
from lfpo.cli.command_line import main
from lfpo.config.errors import UserError
from lfpo.config.models import LoraSettings
from lfpo.config.sampler import SamplerConfig
from lfpo.core.fused import rectified_sum
from lfpo.models import init_model, load_model, load_tokenizer, save_model
from lfpo.models.layouts import LAYOUTS, with_layers
from lfpo.models.lora import attach, save_adapter
from lfpo.models.modernbert import EXTRA
from lfpo.models.policies import checkpoint_layers
from lfpo.plan.model import model_shape
from lfpo.rollout.sampling import rollout
from rank_runs import assert_same_run, run
from tiny import read_weights
from tiny_modernbert import CHARACTERS, CONFIG, MASK, PAD, UNK, WIDTH, WINDOW, write_modernbert


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_modernbert(tmp_path_factory.mktemp("modernbert") / "checkpoint")


def ids_of(rows: int, length: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(CHARACTERS, (rows, length), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("length", [5, WINDOW + 1, 40])
@torch.no_grad()
def test_logits_are_transformers(checkpoint: Path, attention: str, length: int):
    theirs = ModernBertForMaskedLM.from_pretrained(checkpoint, attn_implementation=attention).eval()
    ids = ids_of(2, length)
    torch.testing.assert_close(load_model(checkpoint)(ids), theirs(ids).logits, rtol=0, atol=2e-5)
    assert float(theirs.decoder.bias.detach().std()) > 0.1


@torch.no_grad()
def test_windows_are_read_from_either_form_of_config_json(tmp_path: Path, checkpoint: Path):
    """What transformers 5 writes has a list of layer types; a window that is not there changes the logits."""
    theirs = ModernBertForMaskedLM.from_pretrained(checkpoint)
    theirs.save_pretrained(tmp_path / "new")
    (tmp_path / "new/tokenizer.json").write_bytes((checkpoint / "tokenizer.json").read_bytes())
    config = json.loads((tmp_path / "new/config.json").read_text())
    assert config["layer_types"].count("full_attention") == 2  # of 4
    assert len(model_shape(with_layers(config, 3))[1].backbone.model.layers) == 3
    ids = ids_of(1, 40)
    expected = load_model(checkpoint)(ids)
    assert torch.equal(load_model(tmp_path / "new")(ids), expected)
    wide = load_model(write_modernbert(tmp_path / "wide", local_attention=128))(ids)
    assert (wide - expected).abs().max() > 0.1


@torch.no_grad()
def test_a_row_is_the_same_alone_and_padded_beside_others(checkpoint: Path):
    """Padding wider than the window on the left, and some on the right."""
    model, ids = load_model(checkpoint), ids_of(2, 60)
    mask = torch.ones_like(ids)
    mask[1, :33], mask[1, -5:] = 0, 0
    together = model(ids.masked_fill(mask == 0, PAD), mask)
    torch.testing.assert_close(together[0], model(ids[:1])[0], rtol=0, atol=2e-5)
    torch.testing.assert_close(together[1, 33:-5], model(ids[1:, 33:-5])[0], rtol=0, atol=2e-5)
    assert together.isfinite().all()


def test_the_mask_of_windows_by_hand(checkpoint: Path):
    """Half-window 2, six tokens of which the first two are padding."""
    body = load_model(checkpoint).backbone.model
    body.config.local_attention = 4
    seen = body._in_window(torch.tensor([0, 0, 1, 1, 1, 1]).bool()[None, None, None], torch.zeros(1, 6, 1))
    rows = ["x.x...", ".xxx..", "..xxx.", "..xxxx", "..xxxx", "...xxx"]
    assert ["".join("x" if key else "." for key in query) for query in seen[0, 0]] == rows


@torch.no_grad()
def test_gpu_masks_are_the_same_rule(checkpoint: Path):
    """There masks are 0 or -inf."""
    body, real = load_model(checkpoint).backbone.model, torch.arange(40)[None, None, None] >= 20
    as_bias = torch.zeros(real.shape).masked_fill(~real, -torch.inf)
    hidden = torch.zeros(1, 40, 1)
    assert torch.equal(body._in_window(as_bias, hidden), body._in_window(real, hidden))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_it_is_saved_under_its_own_names_bit_for_bit(dtype: torch.dtype, tmp_path: Path):
    source = write_modernbert(tmp_path / "source", dtype=dtype)
    model = load_model(source, dtype=dtype)
    save_model(model, tmp_path / "saved")
    before, after = read_weights(source), read_weights(tmp_path / "saved")
    assert before.keys() == after.keys() and all(torch.equal(before[k], after[k]) for k in before)
    written = {**CONFIG, "torch_dtype": str(dtype).removeprefix("torch.")}
    assert json.loads((tmp_path / "saved/config.json").read_text()) == written
    _, report = ModernBertForMaskedLM.from_pretrained(tmp_path / "saved", output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    assert all(weight.dtype == dtype for weight in after.values())


def test_completions_end_with_padding_and_the_mask_token_is_the_tokenizer_s(checkpoint: Path, tmp_path: Path):
    model, tokenizer = load_model(checkpoint), load_tokenizer(checkpoint)
    assert (model.mask_id, model.eos_id, model.pad_id, model.max_length) == (MASK, PAD, PAD, 256)
    assert tokenizer.mask_token == "[MASK]"
    named = write_modernbert(tmp_path / "named", mask_token_id=UNK)
    assert load_model(named).mask_id == UNK


def test_the_bias_is_a_column_of_the_head(checkpoint: Path):
    """Gradients of the fused loss for embeddings, bias and the matrix before them are those of torch for
    transformers' class; the columns of padding stay 0."""
    ours, theirs = load_model(checkpoint).train(), ModernBertForMaskedLM.from_pretrained(checkpoint).train()
    ids, targets, r = ids_of(2, 20), ids_of(2, 20, seed=1).flatten(), torch.ones(40)
    states = ours.hidden(ids).flatten(0, 1)
    assert states.shape == (40, WIDTH + EXTRA)
    heads = (ours.head_weight, ours.head_weight)
    rectified_sum(states, states, *heads, targets, r, beta=1.0, precision=ours.products).backward()
    torch.nn.functional.cross_entropy(theirs(ids).logits.flatten(0, 1), targets, reduction="sum").backward()
    gradient = ours.head_weight.grad
    assert gradient is not None
    torch.testing.assert_close(gradient[:, :WIDTH], theirs.decoder.weight.grad, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(gradient[:, WIDTH], theirs.decoder.bias.grad, rtol=1e-4, atol=1e-4)
    dense = ours.backbone.model.prediction.dense.weight.grad
    torch.testing.assert_close(dense, theirs.head.dense.weight.grad, rtol=1e-4, atol=1e-4)
    assert not gradient[:, WIDTH + 1 :].any() and not ours.head_weight[:, WIDTH + 1 :].any()


def test_a_new_model_has_no_bias_and_loads_again(checkpoint: Path, tmp_path: Path):
    model = init_model(CONFIG, seed=0, tokenizer=load_tokenizer(checkpoint))
    save_model(model, tmp_path / "new", load_tokenizer(checkpoint))
    assert not read_weights(tmp_path / "new")["decoder.bias"].any()
    ids = ids_of(1, 12)
    assert torch.equal(load_model(tmp_path / "new")(ids), model(ids))


def test_checkpointed_layers_give_the_same_gradients(checkpoint: Path):
    gradients = []
    for checkpointed in (False, True):
        model = load_model(checkpoint).train()
        if checkpointed:
            checkpoint_layers(model)
        model(ids_of(1, 20)).square().mean().backward()
        gradients.append(model.backbone.model.layers[1].attn.Wqkv.weight.grad)
    torch.testing.assert_close(*gradients)


@torch.no_grad()
def test_rollouts_do_not_depend_on_the_batch(checkpoint: Path):
    model, sampler = load_model(checkpoint), SamplerConfig(gen_length=16, steps=8, temperature=1.0)
    prompts = [ids_of(1, n, seed=n)[0].tolist() for n in (30, 3, 11)]
    together = rollout(model, prompts, sampler, [1, 2, 3])
    for i, prompt in enumerate(prompts):
        alone = rollout(model, [prompt], sampler, [i + 1])
        assert torch.equal(together.tokens[i], alone.tokens[0])


@torch.no_grad()
def test_adapters_take_every_linear_layer_and_peft_loads_them(checkpoint: Path, tmp_path: Path):
    from peft import PeftModel

    from lfpo.models.export import export_adapter

    model = load_model(checkpoint)
    attach(model, LoraSettings(r=2, lora_alpha=4))
    adapted = {name.split(".lora_")[0] for name, _ in model.factors()}
    assert len(adapted) == 4 * 4 + 1 and "model.prediction.dense" in adapted
    for number, (_, factor) in enumerate(model.factors()):
        factor.normal_(std=0.1, generator=torch.Generator().manual_seed(number))
    save_adapter(model, tmp_path / "adapter")
    (tmp_path / "out").mkdir()
    export_adapter(tmp_path / "adapter", model.family, str(checkpoint), tmp_path / "out", own_names=True)
    theirs = PeftModel.from_pretrained(ModernBertForMaskedLM.from_pretrained(checkpoint), tmp_path / "out").eval()
    ids = ids_of(1, 20)
    torch.testing.assert_close(model(ids), theirs(ids).logits, rtol=0, atol=5e-5)
    with pytest.raises(UserError, match="is that of transformers; leave --layout out"):
        export_adapter(tmp_path / "adapter", model.family, str(checkpoint), tmp_path / "out", own_names=False)


def test_approximate_caches_are_refused(checkpoint: Path):
    sampler = SamplerConfig(gen_length=16, steps=8, block_length=8, cache="prefix")
    with pytest.raises(UserError, match="cache 'prefix' is for models whose layers attend to all tokens"):
        rollout(load_model(checkpoint), [[1, 2]], sampler, [0])


RUN = ["--steps", "4", "--batch_size", "4", "--logging_steps", "1", "--warmup_steps", "0", "--threads", "1"]


def test_fine_tuning_learns_the_bias_too(checkpoint: Path, tmp_path: Path):
    given = ["--model", str(checkpoint), "--tasks", "{choice: 1.0}", *RUN, "--learning_rate", "3e-3"]
    assert main(["sft", *given, "--output_dir", str(tmp_path / "sft")]) == 0
    losses = [row["loss"] for row in metrics(tmp_path / "sft")]
    assert losses[-1] < losses[0]
    model = tmp_path / "sft/model"
    assert read_weights(model).keys() == read_weights(checkpoint).keys()
    assert not torch.equal(read_weights(model)["decoder.bias"], read_weights(checkpoint)["decoder.bias"])
    assert main(["sample", "--model", str(model), "--prompt", "3+4=", "--sampler.max_new_tokens", "16"]) == 0


@pytest.mark.long
def test_evaluation_and_plans(checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    evaluation = ["eval", "--model", str(checkpoint), "--task", "choice", "--n", "4", "--threads", "1"]
    assert main([*evaluation, "--output", str(tmp_path / "eval")]) == 0
    plan = ["plan", "--task", "choice", "--gpu_memory", "16", "--tflops", "100", "--tflops_float32", "10"]
    assert main([*plan, "--model", str(checkpoint)]) == 0
    printed = capsys.readouterr()
    assert printed.err == "" and "It fits." in printed.out


@pytest.mark.parametrize("lora", [[], pytest.param(["--lora.r", "2"], marks=pytest.mark.long)])
def test_training_leaves_a_model_in_the_family_s_layout(checkpoint: Path, tmp_path: Path, lora: list[str]):
    run = tmp_path / "run"
    given = ["--model", str(checkpoint), "--task", "choice", "--output_dir", str(run), "--max_steps", "2"]
    given += ["--reward_funcs", "[reward_samples.even_tokens]", "--prompts_per_iteration", "2"]
    given += ["--num_generations", "4", "--optimizer_steps_per_iteration", "1", "--eval_size", "1", "--eval_steps", "0"]
    given += ["--save_steps", "1", "--sampler.gen_length", "16", "--sampler.temperature", "1.0"]
    assert main(["train", *given, "--learning_rate", "1e-3", "--threads", "1", *lora]) == 0
    assert metrics(run)[-1]["grad_norm"] > 0 and metrics(run)[-1]["flops"] > 0
    assert main(["export", str(run), "--output", str(tmp_path / "out")]) == 0
    assert read_weights(tmp_path / "out").keys() == read_weights(checkpoint).keys()
    assert ModernBertForMaskedLM.from_pretrained(tmp_path / "out").config.local_attention == 2 * WINDOW


@pytest.mark.long
@pytest.mark.parametrize("adapter", [[], ["--lora", "{r: 2}"]])
def test_two_ranks_train_what_one_does(checkpoint: Path, tmp_path: Path, adapter: list[str]):
    """With split weights: a rank holds the bias in its rows of the head."""
    given = ["--num_generations", "4", "--learning_rate", "1e-3", "--max_steps", "2", *adapter]
    for name, ranks, more in (("one", 1, []), ("two", 2, ["--fsdp", "true"])):
        process = run(tmp_path / name, checkpoint, ranks, *given, *more)
        assert process.returncode == 0, process.stderr
    assert metrics(tmp_path / "one")[-1]["grad_norm"] > 0
    assert_same_run(tmp_path / "one", tmp_path / "two")
    weights = [read_weights(tmp_path / name / "model") for name in ("one", "two")]
    for key in weights[0]:
        torch.testing.assert_close(weights[0][key], weights[1][key], rtol=0, atol=1e-5)


def test_the_layouts_have_the_published_numbers_of_weights():
    for name, published in (("modernbert-base", 149_655_232), ("modernbert-large", 395_881_664)):
        extra = (EXTRA - 1) * LAYOUTS[name]["vocab_size"]  # columns of zeros
        assert model_shape(LAYOUTS[name])[0].total - extra == published
