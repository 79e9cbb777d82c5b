"""Plans against torch's allocator, against numbers by hand, and through the command line."""

import json
import logging
import math
import re
import shlex
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from golden_families import golden
from gpu.memory import TOLERANCE, peaks
from gpu.memory import recipe as recipe_of
from gpu.shapes import SMALL as MODEL
from lfpo.cli.command_line import main
from lfpo.config.arguments import parse_overrides
from lfpo.config.build import build, load_yaml
from lfpo.config.gpus import fastest
from lfpo.config.models import LoraSettings
from lfpo.config.sampler import SamplerConfig
from lfpo.config.train import LFPOConfig
from lfpo.core.structure import Structure
from lfpo.models import load_model
from lfpo.models.layouts import LAYOUTS, PUBLISHED
from lfpo.models.lora import inject
from lfpo.objectives import OBJECTIVES, make_objective
from lfpo.plan.command import readable
from lfpo.plan.estimate import Estimate
from lfpo.plan.flops import model_flops
from lfpo.plan.model import adapter_size, model_config, model_shape, skeleton
from lfpo.plan.times import seconds, whole_run
from lfpo.plan.ways import command, ways
from lfpo.plan.work import count, sampling_work
from lfpo.rollout.sampling import rollout
from small_runs import LFPO_PAPER
from soon import soon

CPU = torch.device("cpu")
PROMPT, COMPLETION = 24, 40


def recipe(**changes: Any) -> LFPOConfig:
    return recipe_of(PROMPT, COMPLETION, **changes)


def small(args: LFPOConfig, gpus: int = 1) -> Estimate:
    """The plan of a small model on CPUs."""
    return Estimate(args, MODEL, gpus=gpus, prompt_length=PROMPT, device="cpu")


def large(gpus: int = 1, **changes: Any) -> Estimate:
    """The plan of LLaDA-8B."""
    return Estimate(recipe(**changes), model_config("llada-8b"), gpus=gpus)


@pytest.fixture
def simple_activations(monkeypatch: pytest.MonkeyPatch) -> None:
    """So many bytes a token, for tests of other parts of a plan: to measure those of one more shape takes seconds."""
    size = {"full": 20_000.0, "checkpointed": 2_000.0, "forward": 2_000.0}

    def activations(kind: str, config: Any, rows: int, length: int, *_: Any) -> tuple[float, float]:
        return size[kind] * rows * length, size[kind] * rows * length

    monkeypatch.setattr("lfpo.plan.estimate.activations", activations)


@pytest.mark.long
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"gradient_checkpointing": True, "update_tokens": 1024},
        {"prompts_per_iteration": 1, "num_generations": 2, "gradient_checkpointing": True},
        {"lora": {"r": 8}, "dtype": "bfloat16", "objective": {"name": "diffu_grpo"}},
        {"optim": "adamw_8bit", "offload_reference": True},
        {"lora": {"r": 8}, "load_in_4bit": True},
    ],
    ids=["full", "checkpointed", "one pass", "lora", "light", "4-bit"],
)
def test_peaks_are_those_of_real_steps(changes: dict[str, Any]):
    if "optim" in changes or "load_in_4bit" in changes:
        pytest.importorskip("bitsandbytes")
    args = recipe(**changes)
    found = peaks(MODEL, args, "a" * PROMPT, CPU)
    plan = small(args)
    standing = sum(plan.parts[name][2] for name in ("weights", "reference", "optimiser", "libraries"))
    held = sum(p.numel() * p.element_size() for p in found.trainer.model.parameters())
    counted = plan.parts["weights"][1] + (plan.parts["reference"][1] if args.lora else 0)
    # Scales of 4-bit weights are not among the parameters.
    assert counted == pytest.approx(held, rel=0.02 if args.load_in_4bit else 1e-12)
    if args.optim == "adamw_8bit":
        tensors = [v for fields in found.trainer.optimizer.state.values() for k, v in fields.items() if k[0] in "as"]
        assert plan.parts["optimiser"][2] == pytest.approx(sum(torch.as_tensor(v).nbytes for v in tensors), rel=0.02)
    assert plan.totals[1] - standing == pytest.approx(found.rollouts, rel=TOLERANCE)
    assert plan.totals[2] - standing == pytest.approx(found.update, rel=TOLERANCE)


def test_parameter_counts_by_hand():
    sizes = model_shape(model_config("llada-8b"))[0]
    assert sizes.layers == 32 * (4 * 4096**2 + 3 * 4096 * 12288 + 2 * 4096)
    assert sizes.head == 126464 * 4096
    assert sizes.total == 8_015_581_184
    assert model_shape(model_config("apple/DiffuCoder-7B-Instruct"))[0].total == 7_615_616_512


@pytest.mark.usefixtures("simple_activations")
def test_offloading_by_hand():
    """LLaDA-8B on one GPU with an offloaded reference and paged moments: 26 GiB of layers are in CPU memory only."""
    heavy: dict[str, Any] = {"gradient_checkpointing": True, "prompts_per_iteration": 2}
    sizes = model_shape(model_config("llada-8b"))[0]
    plan = large(offload_reference=True, optim="paged_adamw_8bit", **heavy)
    assert set(plan.parts["reference"]) == {4 * sizes.outside}
    assert list(plan.parts["copies for sampling"]) == [0, 2 * sizes.matrices, 0, 0]
    norms = sizes.layers - sizes.matrices
    assert list(plan.parts["reference's layers on the GPU"]) == [0, 4 * norms, 4 * sizes.layer, 0]
    assert plan.parts["optimiser"] == pytest.approx((0, 0, 2 * (1 + 4 / 256) * sizes.head, 0), rel=1e-4)  # one tensor's
    assert plan.host == {"reference": 4 * sizes.layers, "optimiser": 2 * (1 + 4 / 256) * sizes.total}
    # A step of 16 rollouts of 4 views each, one view of 296 tokens a pass, and three transfers besides.
    assert plan.transfers == 64 + 3
    whole = large(optim="adamw_8bit", **heavy)
    assert whole.parts["optimiser"][2] == 2 * (1 + 4 / 256) * sizes.total
    assert whole.parts["reference"][2] == 4 * sizes.total
    assert (whole.host, whole.transfers) == ({}, 0)
    assert "copies for sampling" not in large(2, fsdp=True, **heavy).parts


@pytest.mark.usefixtures("simple_activations")
def test_a_base_in_four_bits_by_hand():
    sizes = model_shape(model_config("llada-8b"))[0]
    plan = large(lora={"r": 64}, dtype="bfloat16", load_in_4bit=True)
    adapter = 32 * 64 * (4 * (4096 + 4096) + 3 * (4096 + 12288))
    assert plan.trained == adapter
    base = sizes.matrices * (0.5 + 1 / 64 + 4 / 64 / 256) + 2 * (sizes.total - sizes.matrices)
    assert max(plan.parts["weights"]) == min(plan.parts["weights"]) == pytest.approx(base + 4 * adapter)
    assert plan.parts["one matrix outside 4 bits"] == pytest.approx((0, *[2 * 4096 * 12288] * 3))
    assert list(plan.parts["copies for sampling"]) == [0, 2 * 2 * adapter, 0, 0]


@pytest.mark.parametrize("experts", [False, True])
def test_an_adapter_counts_the_layers_that_have_experts(experts: bool):
    """Of LLaDA2's layers the first two are dense here; a mixture of 2 and 3 layers alone would have other ones."""
    config = {**model_config("llada2-mini"), "num_hidden_layers": 4, "first_k_dense_replace": 2}
    settings, model = LoraSettings(r=2, experts=experts), skeleton(config)
    inject(model, settings)
    assert adapter_size(config, settings) == sum(p.numel() for _, p in model.factors())


QUARTER: dict[str, Any] = {"prompts_per_iteration": 4, "gradient_checkpointing": True}


@pytest.mark.usefixtures("simple_activations")
@pytest.mark.long
def test_splitting_divides_all_weights():
    """LLaDA-8B on four GPUs. A pass holds the heads of both policies, two layers in bfloat16, a gradient in bfloat16
    and one on its way in float32."""

    def gathered(**changes: Any) -> list[float]:
        return list(large(4, fsdp=True, **{**QUARTER, **changes}).parts["gathered weights"])

    split = large(4, fsdp=True, **QUARTER)
    sizes, head = split.sizes, 126464 * 4096
    for name in ("weights", "reference"):
        assert list(split.parts[name]) == 4 * [sizes.total]  # float32, a quarter: from the start
    assert split.parts["gradients"][2] == sizes.total
    assert split.parts["optimiser"][2] == 2 * sizes.total
    in_rollouts = 2 * sizes.matrices + 4 * (sizes.total - sizes.matrices)
    in_updates = 4 * 2 * head + (2 * 2 + 2 + 4) * sizes.layer
    assert gathered() == [0, in_rollouts, in_updates, 0]
    assert gathered(bf16=False)[1] == 4 * sizes.total
    assert gathered(rollout_gather="layer")[1] == 4 * head + 3 * 2 * sizes.layer
    # Two machines of two: each holds a copy, and each GPU half of it.
    assert large(4, fsdp=True, fsdp_size=2, **QUARTER).parts["weights"][1] == 2 * sizes.total
    lora: dict[str, Any] = {"lora": {"r": 64}, "dtype": "bfloat16"}
    adapters = large(4, fsdp=True, **lora, **QUARTER)
    factors = adapters.trained
    assert list(adapters.parts["weights"]) == 4 * [sizes.total / 2 + 4 * factors]
    in_rollouts, in_updates = 2 * sizes.total + 8 * sizes.matrix, 2 * head + 3 * 2 * sizes.layer
    assert gathered(**lora) == [0, in_rollouts, in_updates, 0]
    assert gathered(**lora, merge_lora=False)[1] == 2 * sizes.total + 4 * factors


@pytest.mark.parametrize("name", sorted(OBJECTIVES))
def test_the_work_of_every_objective_is_counted(name: str):
    sampler = SamplerConfig(temperature=1.0).for_length(8)
    work = count(make_objective({"name": name}), sampler)
    if name == "mdpo":
        assert work.views == 8
    assert work.views > 0
    assert 0 < work.most_targets <= 12
    assert sampling_work(sampler, 4, False) == (8, 8 * 12)


def test_work_by_hand():
    lfpo = make_objective({**LFPO_PAPER, "timesteps": 2})
    sampler = SamplerConfig(gen_length=8, block_length=4, steps=4, temperature=1.0, cache="dual")
    work = count(lfpo, sampler)
    assert (work.views, work.unit, work.others) == (2, 1, 1)
    # Two blocks of two forwards: the first runs all twelve tokens, the second the block and the token before it.
    assert sampling_work(sampler, 4, True) == (4, 2 * (12 + 5))
    assert count(make_objective({"name": "diffu_grpo"}), sampler).others == 2


def test_the_work_of_a_block_model(tmp_path: Path):
    model = load_model(golden("sdar", tmp_path / "sdar"))
    lfpo = make_objective({**LFPO_PAPER, "timesteps": 2})
    sampler = SamplerConfig(temperature=1.0, remasking="low_confidence_static").for_length(12, 4)
    forwards, tokens = sampling_work(sampler, 8, False, structure=Structure(4))
    # Prompt and first block once, eleven other forwards of a block, and two that store a finished one.
    assert (forwards, tokens) == (12, 12 + 11 * 4 + 2 * 4)
    model.eos_id = 131  # never drawn
    found = rollout(model, [list(range(8)), list(range(9, 17))], sampler, [1, 2])
    assert found.queries.tolist() == [tokens] * 2
    # A view replays two of the four steps of all three blocks; its targets are their masked positions.
    work = count(lfpo, sampler, structure=Structure(4))
    assert (work.views, work.unit) == (2, 1)
    assert 12 < work.targets <= 2 * 12
    assert sampling_work(sampler, 8, False, structure=Structure(4), group=4)[1] == 12 / 4 + 13 * 4


@pytest.mark.long
def test_a_plan_for_a_block_model_counts_both_halves_of_its_views():
    args, config = recipe(sampler={"gen_length": 40, "temperature": 1.0}), model_config("sdar-1.7b")
    blocks = Estimate(args, config)
    assert blocks.view_tokens == 2 * blocks.length - 256  # the prompt stands there once
    full = Estimate(args, {**config, "model_type": "Dream", "mlp_bias": False})
    assert full.view_tokens == full.length
    assert 1.1 * full.update_flops < blocks.update_flops < 1.2 * full.update_flops
    assert blocks.rollout_flops < full.rollout_flops / 10


def test_known_hub_names_need_no_network():
    for name in PUBLISHED:
        config = model_config(name)
        ids = (5, 100, 50284, 126336, 151666, 151669, 156895)
        assert config["mask_token_id"] in ids if "mask_token_id" in config else config["canvas_length"] == 256


def printed_plan(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["plan", *arguments]) == 0
    return capsys.readouterr().out


@pytest.mark.usefixtures("simple_activations")
def test_the_command_prints_each_way_that_fits_with_its_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("COLUMNS", "200")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(MODEL))  # and no weights
    output = tmp_path / "plan.json"
    base = ["--model", str(tmp_path / "model"), "--task", "choice", "--tflops", "100", "--tflops_float32", "10"]
    base += ["--output", str(output), "--objective.timesteps", "2"]
    same = f"--output_dir runs/mine --model {tmp_path / 'model'} --task choice --objective.timesteps 2"
    assert f"\nlfpo train {same}\n" in printed_plan(capsys, *base, "--gpu_memory", "80")
    plan = json.loads(output.read_text())
    assert plan["fits"]
    assert [(way["way"], way["gpus"]) for way in plan["ways"]] == [("as it stands", 1), ("as it stands", 8)]
    needed = str(max(plan["total"]) / 2**30 - 0.05)
    printed = printed_plan(capsys, *base, "--gpu_memory", needed, "--price_per_hour", "2")
    assert "It does not fit." in printed
    assert f"\nlfpo train {same} --gradient_checkpointing true" in printed
    assert f"\ntorchrun --nproc_per_node 2 -m lfpo train {same} --gradient_checkpointing true --fsdp true" in printed
    for way in json.loads(output.read_text())["ways"]:
        assert way["bytes"] < max(plan["total"])
        assert way["command"] in printed
        hours = way["training_hours"] + way["evaluation_hours"]
        assert way["cost"] == pytest.approx(2 * way["gpus"] * hours)
        # 40 iterations of 16 prompts x 8 rollouts of 4 tokens
        assert way["tokens"] == 40 * 16 * 8 * 4


@pytest.mark.usefixtures("simple_activations")
def test_a_plan_counts_the_prompts_that_a_task_makes_and_says_what_it_assumes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    rates = ["--tflops", "100", "--tflops_float32", "10"]
    assert "(prompt 19)" in printed_plan(capsys, "sudoku", *rates)
    assert "(prompt 30)" in printed_plan(capsys, "sudoku", *rates, "--prompt_length", "30")
    (tmp_path / "config.json").write_text(json.dumps(MODEL))  # and no tokenizer
    assumed = printed_plan(capsys, "sudoku", *rates, "--model", str(tmp_path))
    assert "(prompt 256, assumed; set --prompt_length)" in assumed
    monkeypatch.setenv("COLUMNS", "200")
    numbers = sorted(re.findall(r"\d+\.\d\d\b", printed_plan(capsys, "sudoku", *rates)))
    for columns in ("20", "40", "60", "80"):
        monkeypatch.setenv("COLUMNS", columns)
        assert sorted(re.findall(r"\d+\.\d\d\b", printed_plan(capsys, "sudoku", *rates))) == numbers


@pytest.mark.usefixtures("simple_activations")
def test_a_prompt_beyond_the_models_context_is_an_error_or_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    most = load_model("embedded").max_length - 8
    (tmp_path / "rows.jsonl").write_text(f'{{"prompt": "1 2"}}\n{{"prompt": "{"1" * (most + 1)}"}}\n')
    rows = [
        "--data_file",
        str(tmp_path / "rows.jsonl"),
        "--reward_funcs",
        "lfpo.rewards.formats.tag_format",
        "--sampler.gen_length",
        "8",
    ]
    for arguments, tokens, left in (
        (rows, most + 1, most),
        (["--task", "countdown", "--prompt_length", str(most + 1)], most + 1, most),
        (["--task", "countdown", "--sampler.gen_length", "100000"], 19, 0),
    ):
        assert main(["plan", *arguments]) == 2
        said = capsys.readouterr().err
        assert f"a completion leaves {left};" in said and (left == 0 or f"a prompt of {tokens} tokens" in said)
    rates = ["--tflops", "100", "--tflops_float32", "10"]
    assert "(prompt 3)" in printed_plan(capsys, *rows, "--filter_overlong_prompts", "true", *rates)
    assert f"(prompt {most})" in printed_plan(capsys, "--task", "countdown", "--prompt_length", str(most), *rates)


def test_a_plan_that_cannot_be_written_is_printed_all_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    folder = tmp_path / "here"
    folder.mkdir()
    assert main(["plan", "sudoku", "--tflops", "1", "--tflops_float32", "1", "--output", str(folder)]) == 2
    said = capsys.readouterr()
    assert "\nlfpo train sudoku\n" in said.out
    assert said.err == f"error: {folder}: could not be written (Is a directory); give --output the name of a new file\n"
    assert list(tmp_path.iterdir()) == [folder]


@pytest.mark.usefixtures("simple_activations")
def test_nothing_fits_is_an_error(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("lfpo.plan.command.ways", lambda *_: [])
    assert main(["plan", "sudoku", "--gpu_memory", "0.01"]) == 2
    assert capsys.readouterr().err == (
        "error: no way to run sudoku fits 0.01 GiB a GPU; take more or larger GPUs (--gpus, --gpu_memory), or a "
        "smaller model\n"
    )


def test_bitsandbytes_does_not_speak_when_it_is_imported():
    """On some CPUs it warns of a missing package; peft imports it."""
    assert not logging.getLogger("bitsandbytes.backends.cpu.ops").isEnabledFor(logging.WARNING)


MANY: dict[str, Any] = {"num_generations": 64, "update_tokens": 4096, "rollout_tokens": 4096}


@pytest.mark.usefixtures("simple_activations")
def test_ways_of_a_recipe_with_8_bit_moments():
    """More GPUs are tried with adamw_torch, since FSDP cannot split 8-bit moments."""
    args = recipe(optim="adamw_8bit", gradient_checkpointing=True, prompts_per_iteration=2, **MANY)
    needed = small(args, 1).peak
    found = {(way.label, way.estimate.gpus): way.changes for way in ways(small, args, 1, memory=needed - 1)}
    assert found["all weights, FSDP", 2]["optim"] == "adamw_torch"
    assert found["LoRA", 1]["dtype"] == "bfloat16"
    assert found["LoRA, 4-bit base", 1]["load_in_4bit"] is True
    assert found["all weights", 1] == {"update_tokens": 2048, "rollout_tokens": 2048}
    assert ways(small, args, 1, memory=0) == []


@pytest.mark.usefixtures("simple_activations")
def test_a_stated_number_of_gpus_is_kept():
    args = recipe(prompts_per_iteration=4, **MANY)
    found = ways(small, args, 4, memory=0.9 * small(args, 4).peak)
    assert {way.estimate.gpus for way in found} == {4}
    assert {way.label for way in found} == {"all weights", "all weights, FSDP", "LoRA", "LoRA, 4-bit base"}


@pytest.mark.usefixtures("simple_activations")
def test_settings_that_exclude_each_other_are_changed_together():
    args = recipe(prompts_per_iteration=4, fsdp=True, fsdp_size=2, **MANY)
    found = {way.label: way.changes for way in ways(small, args, 4, memory=0.9 * small(args, 4).peak)}
    assert (found["LoRA, 4-bit base"]["fsdp"], found["LoRA, 4-bit base"]["fsdp_size"]) == (False, 0)
    args = recipe(lora={"r": 4}, load_in_4bit=True, **MANY)
    assert [way.label for way in ways(small, args, 1, memory=0.9 * small(args, 1).peak)] == ["LoRA, 4-bit base"]


@pytest.mark.usefixtures("simple_activations")
def test_hours_and_cost_by_hand():
    sizes = {"prompts_per_iteration": 4, "num_generations": 2, "optimizer_steps_per_iteration": 2}
    args = recipe(task="sudoku", max_steps=10, eval_steps=5, eval_size=7, **sizes)
    found = Estimate(args, MODEL, gpus=4, prompt_length=PROMPT, device="cpu")
    run = whole_run(found, 1e12, 3.0)
    assert run.training_hours == pytest.approx(10 * (found.rollout_flops + found.update_flops) / 4e12 / 3600)
    assert run.evaluation_hours == pytest.approx(found.evaluation_flops / 4e12 / 3600)
    # One of three ranks has 4 of 8 rollouts.
    assert Estimate(args, MODEL, gpus=3, prompt_length=PROMPT).fullest == 4 / (8 / 3)
    assert run.cost == pytest.approx(3 * 4 * (run.training_hours + run.evaluation_hours))
    assert run.tokens == 10 * 8 * COMPLETION
    # Before the first iteration, after 5 and after 10: two samplers of at most one token a forward each.
    shape, model = model_shape(MODEL)
    forwards = COMPLETION * (PROMPT + COMPLETION)
    one = model_flops(
        model.backbone.config, shape.active, forwards, forwards * (PROMPT + COMPLETION), COMPLETION * COMPLETION
    )
    assert found.evaluation_flops == pytest.approx(3 * 7 * 2 * one)
    for every, steps, due in ((5, 14, 4), (7, 14, 3), (20, 14, 2), (1, 10**12, 10**12 + 1)):
        asked = Estimate(replace(args, eval_steps=every, max_steps=steps), MODEL, gpus=4, prompt_length=PROMPT)
        assert asked.evaluation_flops == pytest.approx(due * 7 * 2 * one)
    assert Estimate(recipe(task="sudoku", eval_steps=0), MODEL).evaluation_flops == 0
    assert Estimate(recipe(data_file="x"), MODEL).evaluation_flops == 0


@pytest.mark.usefixtures("simple_activations")
def test_layers_that_run_one_after_the_other_and_disk_by_hand():
    """MODEL has two layers. A row is 64 tokens, so 16 rows of 2 prompts x 8 rollouts fit a forward of 1,024 tokens."""
    sizes: dict[str, Any] = {"prompts_per_iteration": 2, "num_generations": 8, "optimizer_steps_per_iteration": 2}
    args = recipe(max_steps=10, save_steps=4, save_total_limit=2, rollout_tokens=1024, update_tokens=256, **sizes)
    found = Estimate(args, MODEL, gpus=1, prompt_length=PROMPT)
    layers, views = found.hf.num_hidden_layers, math.ceil(8 * found.work.views)  # of one of two optimiser steps
    assert found.rollout_layers == layers * found.forwards
    passes = found.objective.num_iterations * 2 * math.ceil(views / found.rows)
    assert found.update_layers == layers * passes * (3 + found.work.others)
    assert Estimate(replace(args, rollout_tokens=512), MODEL, prompt_length=PROMPT).rollout_layers == (
        2 * found.rollout_layers
    )
    assert seconds(found, 1e30)[0] == pytest.approx(layers * found.forwards * 30 * 5e-6)
    assert seconds(Estimate(args, MODEL, prompt_length=PROMPT, device="cpu"), 1e30)[2] < 1e-9
    weights = 4 * found.sizes.total
    assert found.disk == {"3 checkpoints": 3 * (2 + 2) * weights, "the trained model": weights}


def test_the_speed_is_that_of_the_gpu_or_of_one_with_its_memory(capsys: pytest.CaptureFixture[str]):
    assert [fastest(memory) for memory in (8, 24, 40, 80, 100, 141)] == [
        *("l4", "rtx4090", "a100-40gb", "h100", "h100", "h200"),
    ]
    for arguments, said in (
        (["--gpu", "l4"], "48.4 TFLOP/s in bfloat16 (40% of the peak of l4)"),
        (["--gpu_memory", "24"], "66 TFLOP/s in bfloat16 (40% of the peak of rtx4090)"),
        (["--gpu", "a100", "--tflops", "100"], "100 TFLOP/s in bfloat16 (stated)"),
        (["--gpu", "h200"], "of 140 GiB (h200)"),
    ):
        assert said in printed_plan(capsys, "sudoku", *arguments)
    assert main(["plan", "sudoku", "--gpu", "h1000"]) == 2
    assert "gpu 'h1000' is not known (set gpu_memory and tflops); did you mean 'h100'?" in capsys.readouterr().err


def test_a_command_for_several_machines():
    given = {"sampler": {"steps": 4}, "eval_samplers": {}, "objective": {"name": "spg"}, "reward_funcs": ["a.b", "c.d"]}
    line = command("my.yaml", given, {"fsdp": True, "lora": {"r": 8}}, 16, 8)
    assert line == (
        "torchrun --nnodes 2 --rdzv_backend c10d --rdzv_endpoint FIRST_MACHINE:29500 --nproc_per_node 8 -m lfpo train "
        "my.yaml --sampler.steps 4 --eval_samplers '{}' --objective.name spg --reward_funcs '[a.b, c.d]' --fsdp true "
        "--lora '{r: 8}'"
    )
    assert parse_overrides(shlex.split(line)[13:]) == {**given, "fsdp": True, "lora": {"r": 8}}


@pytest.mark.long
def test_the_table_of_ways_in_the_docs_is_what_the_command_finds():
    args = build(LFPOConfig, {"output_dir": "unused", **load_yaml("llada-8b-gsm8k")})
    config = model_config(args.model)

    def plan(args: LFPOConfig, gpus: int) -> Estimate:
        return Estimate(args, config, gpus=gpus)

    found = [
        f"| {way.label} | {way.estimate.gpus} | {way.estimate.peak / 2**30:.1f} |"
        for way in ways(plan, args, 1, 80 * 2**30)
    ]
    page = (Path(__file__).parents[2] / "docs" / "scaling.md").read_text()
    table = page.split("| way | GPUs | peak, GiB |\n| --- | ---: | ---: |\n")[1].split("\n\n")[0]
    assert table.splitlines() == found


@pytest.mark.parametrize(
    ("parameters", "text"),
    [(8_015_581_184, "8.02 B"), (999_600_000, "1.00 B"), (335_544_320, "336 M"), (1_375_360, "1.38 M")],
)
def test_small_models_are_counted_in_millions(parameters: int, text: str):
    assert readable(parameters) == text


def test_rollouts_by_workers_beside_the_update():
    """By hand: 8 PFLOP of rollouts on 4 workers, 2 PFLOP of update on 2 GPUs, 1.5 of them on one, at 1 PFLOP/s each."""

    def taken(layers: int = 0, **engine: Any) -> tuple[float, float, float]:
        args = build(LFPOConfig, {"output_dir": "unused", "engine": engine})
        flops = {"rollout_flops": 8e15, "update_flops": 2e15, "rollout_layers": layers, "update_layers": layers}
        found: Any = SimpleNamespace(args=args, gpus=2, device="cuda", fullest=1.5, **flops)
        return seconds(found, 1e15)

    workers: dict[str, Any] = {"name": "ray", "workers": 4, "gpus_per_worker": 1.0}
    assert taken() == (4.0, 1.5, 5.5)
    assert taken(max_staleness=1) == (4.0, 1.5, 5.5)  # the local engine samples ahead, in the same processes
    assert taken(**workers) == (2.0, 1.5, 3.5)
    assert taken(**workers, max_staleness=1) == (2.0, 1.5, 2.0)
    assert taken(layers=20_000) == pytest.approx((4.0, 3.0, 7.0))  # 30 kernels of 5 microseconds a layer


@pytest.mark.usefixtures("simple_activations")
@pytest.mark.parametrize("experts", soon([False, True], 0))
def test_an_export_merges_one_adapted_matrix_at_a_time(experts: bool):
    """LLaDA-MoE-7B has 64 experts in a layer. Without adapters their stacked matrices are written as they are."""
    lora = {"r": 2, "experts": experts}
    args = build(LFPOConfig, {"task": "sudoku", "lora": lora, "dtype": "bfloat16", "output_dir": "-"})
    found = Estimate(args, LAYOUTS["llada-moe-7b"], device="cpu")
    matrix = 64 * 2 * 1024 * 2048 if experts else 2048 * 2048
    assert found.parts["one tensor to write"][3] == 2 * 4 * matrix
