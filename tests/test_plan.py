"""Plans against torch's allocator, against numbers by hand, and through the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import lfpo.rollout.collect
from gpu.memory import TOLERANCE, peak
from gpu.shapes import SMALL as MODEL
from lfpo.base.config import build
from lfpo.cli.command_line import main
from lfpo.models import init_model, load_tokenizer
from lfpo.objectives import OBJECTIVES, make_objective
from lfpo.rollout.sampler import SamplerConfig
from lfpo.train.algorithm import optimizer_step
from lfpo.train.config import LFPOConfig
from lfpo.train.flops import Meter
from lfpo.train.plan import Estimate, estimate
from lfpo.train.plan.changes import suggestions
from lfpo.train.plan.shapes import PUBLISHED, model_config, sizes_of, skeleton
from lfpo.train.plan.work import count
from lfpo.train.rl import LFPOTrainer

CPU = torch.device("cpu")
PROMPT, COMPLETION = 24, 40


def recipe(**changes: Any) -> LFPOConfig:
    settings = {
        "output_dir": "unused",
        "model": "embedded",
        "prompts_per_iteration": 1,
        "num_generations": 8,
        "optimizer_steps_per_iteration": 1,
        "sampler": {"gen_length": COMPLETION, "temperature": 1.0, "steps": 4},
        "update_tokens": 512,
        "rollout_tokens": 512,
        "threads": 1,
    }
    return build(LFPOConfig, {**settings, **changes})


def grade(prompts: list[str], completions: list[str], **columns: Any) -> list[float]:
    return [i / len(prompts) for i in range(len(prompts))]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"gradient_checkpointing": True, "update_tokens": 1024},
        {"lora": {"r": 8}, "dtype": "bfloat16", "objective": {"name": "diffu_grpo"}},
        {"optim": "adamw_8bit", "offload_reference": True},
        {"lora": {"r": 8}, "load_in_4bit": True},
    ],
    ids=["full", "checkpointed", "lora", "light", "4-bit"],
)
def test_peaks_are_those_of_real_steps(changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch):
    if "optim" in changes or "load_in_4bit" in changes:
        pytest.importorskip("bitsandbytes")
    args = recipe(**changes)
    monkeypatch.setattr(
        lfpo.rollout.collect, "encode_rows", lambda rows, *_: [list(range(5, 5 + PROMPT)) for _ in rows]
    )
    model = init_model(MODEL, seed=0, dtype=getattr(torch, args.dtype))
    rows = [{"prompt": "a"}]
    trainer = LFPOTrainer(model, grade, args=args, train_dataset=rows, tokenizer=load_tokenizer("embedded"))
    batches: list[Any] = []
    rollouts = peak(lambda: batches.append(trainer.sample_and_score(0)), CPU)
    signal = trainer.objective.signal(batches[0].reward_B, batches[0].group_B)

    def step() -> None:
        optimizer_step(
            trainer, trainer.objective, batches[0], signal, torch.arange(len(signal)), (0, 0, 0), Meter(), {}
        )

    step()  # creates the optimiser's state
    update = peak(step, CPU)
    plan = estimate(args, MODEL, prompt_length=PROMPT, device="cpu")
    standing = sum(plan.parts[name][2] for name in ("weights", "reference", "optimiser"))
    held = sum(p.numel() * p.element_size() for p in model.parameters())
    counted = plan.parts["weights"][1] + (plan.parts["reference"][1] if args.lora else 0)
    # Scales of 4-bit weights are not among the parameters.
    assert counted == pytest.approx(held, rel=0.02 if args.load_in_4bit else 1e-12)
    if args.optim == "adamw_8bit":
        tensors = [v for fields in trainer.optimizer.state.values() for k, v in fields.items() if k[0] in "as"]
        assert plan.parts["optimiser"][2] == pytest.approx(sum(torch.as_tensor(v).nbytes for v in tensors), rel=0.02)
    assert plan.totals[1] - standing == pytest.approx(rollouts, rel=TOLERANCE)
    assert plan.totals[2] - standing == pytest.approx(update, rel=TOLERANCE)


def test_parameter_counts_by_hand():
    sizes = sizes_of(skeleton(model_config("llada-8b")))
    assert sizes.layers == 32 * (4 * 4096**2 + 3 * 4096 * 12288 + 2 * 4096)
    assert sizes.head == 126464 * 4096
    assert sizes.total == 8_015_581_184
    assert sizes_of(skeleton(model_config("apple/DiffuCoder-7B-Instruct"))).total == 7_615_616_512


def test_offloading_by_hand():
    """LLaDA-8B on one GPU with an offloaded reference and paged moments: 26 GiB of layers are in CPU memory only."""
    heavy: dict[str, Any] = {"gradient_checkpointing": True, "prompts_per_iteration": 2}
    sizes = sizes_of(skeleton(model_config("llada-8b")))
    light = recipe(offload_reference=True, optim="paged_adamw_8bit", **heavy)
    plan = estimate(light, model_config("llada-8b"))
    assert set(plan.parts["reference"]) == {4 * sizes.outside}
    assert list(plan.parts["bfloat16 copies for sampling"]) == [0, 2 * sizes.matrices, 0]
    norms = sizes.layers - sizes.matrices
    assert list(plan.parts["reference's layers on the GPU"]) == [0, 4 * norms, 4 * sizes.layer]
    assert plan.parts["optimiser"] == pytest.approx((0, 0, 2 * (1 + 4 / 256) * sizes.head), rel=1e-4)  # one tensor's
    assert plan.host == {"reference": 4 * sizes.layers, "optimiser": 2 * (1 + 4 / 256) * sizes.total}
    # A step of 16 rollouts of 4 views each, one view of 296 tokens a pass, and three transfers besides.
    assert plan.transfers == 64 + 3
    whole = estimate(recipe(optim="adamw_8bit", **heavy), model_config("llada-8b"))
    assert whole.parts["optimiser"][2] == 2 * (1 + 4 / 256) * sizes.total
    assert whole.parts["reference"][2] == 4 * sizes.total
    assert (whole.host, whole.transfers) == ({}, 0)
    split = estimate(recipe(fsdp=True, **heavy), model_config("llada-8b"), gpus=2)
    assert "bfloat16 copies for sampling" not in split.parts


def test_a_base_in_four_bits_by_hand():
    sizes = sizes_of(skeleton(model_config("llada-8b")))
    plan = estimate(recipe(lora={"r": 64}, dtype="bfloat16", load_in_4bit=True), model_config("llada-8b"))
    adapter = 32 * 64 * (4 * (4096 + 4096) + 3 * (4096 + 12288))
    assert plan.trained == adapter
    base = sizes.matrices * (0.5 + 1 / 64 + 4 / 64 / 256) + 2 * (sizes.total - sizes.matrices)
    assert max(plan.parts["weights"]) == min(plan.parts["weights"]) == pytest.approx(base + 4 * adapter)
    assert plan.parts["one dequantised matrix"] == pytest.approx((0, 2 * 4096 * 12288, 2 * 4096 * 12288))
    assert list(plan.parts["bfloat16 copies for sampling"]) == [0, 2 * 2 * adapter, 0]


def test_splitting_divides_only_the_layers():
    args = recipe(fsdp=True, prompts_per_iteration=4, optimizer_steps_per_iteration=1)
    whole, split = (estimate(args, MODEL, gpus=n, prompt_length=PROMPT, device="cpu") for n in (1, 4))
    sizes = whole.sizes
    assert whole.parts["optimiser"][2] == 8 * sizes.total
    assert split.parts["optimiser"][2] == 8 * (sizes.layers / 4 + sizes.outside)
    assert split.parts["gathered layers"][1] == 4 * sizes.layers  # rollouts gather all layers
    assert split.parts["weights"][0] == 4 * sizes.total  # each rank loads the whole model


@pytest.mark.parametrize("name", sorted(OBJECTIVES))
def test_the_work_of_every_objective_is_counted(name: str):
    tree = [2, 3] if name == "dtree_rpo" else []
    work = count(make_objective({"name": name}), SamplerConfig(temperature=1.0).for_length(8), 4, False, tree)
    if tree:
        assert (work.views, work.unit) == ((2 + 6) / 6, 3)
    if name == "mdpo":
        assert work.views == 8
    assert work.views > 0
    assert 0 < work.most_targets <= 12
    assert work.forwards == 8
    assert work.tokens == 8 * 12


def test_work_by_hand():
    lfpo = make_objective({"name": "lfpo", "timesteps": 2})
    sampler = SamplerConfig(gen_length=8, block_length=4, steps=4, temperature=1.0, cache="dual")
    work = count(lfpo, sampler, 4, True)
    assert (work.views, work.unit, work.others) == (2, 1, 1)
    # Two blocks of two forwards: the first runs all twelve tokens, the second the block and the token before it.
    assert (work.forwards, work.tokens) == (4, 2 * (12 + 5))
    assert count(make_objective({"name": "diffu_grpo"}), sampler, 4, True).others == 2


def test_known_hub_names_need_no_network():
    for name in PUBLISHED:
        assert model_config(name)["mask_token_id"] in (126336, 151666)


def test_the_command_says_whether_it_fits_and_what_to_change(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("COLUMNS", "200")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(MODEL))  # and no weights
    output = tmp_path / "plan.json"
    base = ["plan", "--model", str(tmp_path / "model"), "--task", "choice", "--tflops", "100", "--tflops_float32", "10"]
    assert main([*base, "--gpu_memory", "80", "--output", str(output)]) == 0
    assert "It fits." in capsys.readouterr().out
    plan = json.loads(output.read_text())
    assert plan["fits"]
    assert plan["changes"] == []
    needed = max(plan["total"]) / 2**30
    assert main([*base, "--gpu_memory", str(needed - 0.05), "--output", str(output)]) == 0
    printed = capsys.readouterr().out
    assert "It does not fit." in printed
    assert "gradient_checkpointing: true" in printed
    changes = json.loads(output.read_text())["changes"]
    assert changes[0]["change"] == "gradient_checkpointing: true"
    assert changes[0]["bytes"] < max(plan["total"])


def test_changes_to_a_recipe_with_8_bit_moments():
    """More GPUs are tried with adamw_torch, since FSDP cannot split 8-bit moments."""
    tried = []

    def plan(args: LFPOConfig, gpus: int) -> Estimate:
        tried.append((gpus, args.fsdp, args.optim))
        return estimate(args, MODEL, gpus=gpus, prompt_length=PROMPT, device="cpu")

    args = recipe(optim="paged_adamw_8bit", gradient_checkpointing=True, prompts_per_iteration=2)
    labels = [change.label for change in suggestions(plan, args, 1, memory=0)]
    assert labels == ["offload_reference: true", "or lora: {r: 128}, dtype: bfloat16", "load_in_4bit: true"]
    assert (2, True, "adamw_torch") in tried


def test_mistakes_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["plan", "--model", "llada-9b"]) == 2
    assert "llada-8b" in capsys.readouterr().err
    assert main(["plan", "--gpus", "0"]) == 2
    assert "gpus 0 must be at least 1" in capsys.readouterr().err
    assert main(["plan", "--update_token", "8"]) == 2
    assert "update_tokens" in capsys.readouterr().err
