"""`python -m benchmarks` on small models, the plain loop it measures against, and its measuring instruments."""

import json
import math
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import tiny
from benchmarks.__main__ import main
from benchmarks.iteration import Iteration
from benchmarks.measure import measured, median_and_range, peak_memory
from benchmarks.modes import Mode
from benchmarks.peers.__main__ import DEFAULTS, Side, write_model
from benchmarks.peers.__main__ import main as peers
from benchmarks.plain import plain_rollout
from benchmarks.problem import Problem
from benchmarks.rollout import describe
from benchmarks.spent import recorded
from benchmarks.true_size import main as true_size
from benchmarks.update import FORMS, BenchUpdateConfig, padding_cases, run_bench_update
from benchmarks.update import LAYOUTS as UPDATE_LAYOUTS
from lfpo.config.sampler import SamplerConfig
from lfpo.core.encoding import encode_rows
from lfpo.models import load_model, load_tokenizer
from lfpo.models.layouts import LAYOUTS
from lfpo.plan.flops import forward_flops, rollout_flops
from lfpo.prompts.tasks import get_task
from lfpo.rollout.sampling import rollout
from lfpo.sandbox import Sandbox
from reference_sampler import generate
from soon import soon

pytestmark = pytest.mark.long  # all of checks/


CPU = torch.device("cpu")
# Without the unused ids at the end: there a layout's special tokens are the last ones.
SMALL: dict[str, dict[str, Any]] = {
    "llada": {**tiny.LLADA_CONFIG, "embedding_size": tiny.LLADA_VOCAB},
    "dream": {**tiny.DREAM_CONFIG, "vocab_size": tiny.DREAM_VOCAB},
}


@pytest.mark.parametrize(("block", "steps"), soon([(8, 8), (4, 6), (4, 32)], 0, 1))
def test_the_plain_loop_is_the_published_procedure(checkpoint: Path, block: int, steps: int):
    model = load_model(checkpoint, dtype=torch.float64)
    prompts = [[5, 6, 7, 8], [9, 10]]
    settings: dict[str, Any] = {"gen_length": 8, "block_length": block, "steps": steps}
    plain, forwards = plain_rollout(model, prompts, **settings)
    assert forwards == steps
    alone = [generate(model, prompt, **settings) for prompt in prompts]
    assert plain.tolist() == alone
    # Unmasked, the longest row is the same, and the padding of the other is part of its prompt.
    unmasked, _ = plain_rollout(model, prompts, **settings, mask_padding=False)
    assert unmasked.tolist() == [alone[0], generate(model, [model.pad_id] * 2 + prompts[1], **settings)]
    every: list[dict[str, Any]] = [{"skip_idle": True}, {"masked_logits": True}]
    for switches in (*every, every[0] | every[1]):
        tokens, forwards = plain_rollout(model, prompts, **settings, **switches)
        assert torch.equal(tokens, plain)
        assert forwards == (min(steps, 8) if "skip_idle" in switches else steps)


def bench(folder: Path, *arguments: str) -> dict[str, Any]:
    assert main(["rollout", "--repeats", "1", "--output", str(folder), *arguments]) == 0
    return json.loads((folder / "rollout.json").read_text())


def test_bench_on_tasks_writes_numbers_and_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    # Three prompts and a twin of each.
    small = ("--n", "3", "--generations", "2", "--tasks", "[words, choice]", "--gen_length", "4", "--block_length", "2")
    result = bench(tmp_path / "deep", *small, "--lora", "0")
    assert f"wrote {tmp_path / 'deep' / 'rollout.json'}" in capsys.readouterr().out
    tables = (tmp_path / "deep" / "rollout.md").read_text().split("\n\n")
    assert [table.split(" |")[0].rstrip() for table in tables] == [
        f"| {group}" for group in dict.fromkeys(row["group"] for row in result["rows"])
    ]
    assert [len(table.splitlines()) - 2 for table in tables] == [6, 6, 10]
    assert result["matmul_peak"] > 0
    assert {"environment", "versions"} <= result.keys()
    rows = {(row["group"], row["mode"]): row for row in result["rows"]}
    assert len(rows) == len(result["rows"]) == 2 * 6 + 9 + 1
    for steps in (4, 16):
        group = f"exact, {steps} steps for 4 tokens"
        ladder = [row for row in result["rows"] if row["group"] == group]
        unmasked = ladder.pop(1)
        assert unmasked["mode"] == "without its mask of padding, as published" and unmasked["nfe"] == steps
        assert [row["same"] for row in ladder] == [1.0] * 5
        assert len({row["accuracy"] for row in ladder}) == 1
        assert [row["nfe"] for row in ladder[:4]] == [steps, 4, 4, 4]
        assert ladder[4]["nfe"] <= 4
        assert ladder[0]["speedup"] == 1.0
        assert ladder[3]["speedup"] == pytest.approx(ladder[0]["seconds"] / ladder[3]["seconds"])
    approximate = "approximate, against the exact engine"
    assert rows[approximate, "exact, EOS stop"]["same"] == 1.0
    assert rows[approximate, "threshold 0.9"]["nfe"] < rows[approximate, "exact, EOS stop"]["nfe"]
    exact = [row["spent_over_needed"] for row in ladder]  # four steps for a token
    assert exact[0] / exact[1] == pytest.approx(4)  # one step of four reveals a token
    assert exact[1] > exact[2] >= exact[3] > exact[4]  # logits; padding and shared first forwards; EOS
    assert rows[approximate, "bfloat16 autocast"]["same"] > 0.5


def test_the_numbers_of_a_mode_by_hand(llada: Path):
    model = load_model(llada)
    eos = model.eos_id
    problem = Problem(model, [[5, 6], [7]], 4, None)
    mode = Mode("group", "mode", model, lambda: (torch.zeros(0), 0))
    reference = torch.tensor([[8, eos, 1, 1], [1, 2, 3, 4]])
    result = torch.tensor([[8, eos, 2, 2], [1, 2, eos, 4]])
    taken = {"seconds": 4.0, "peak_memory": 77}
    row = describe(problem, mode, (result, 3), (reference, 5), taken, 1e6, spent=9e6, needed=6e6)
    # Up to the reference's first EOS six tokens count, and one of them differs.
    assert row["same"] == pytest.approx(5 / 6)
    assert row["tokens_per_second"] == pytest.approx((2 + 3) / 4.0)
    assert (row["seconds"], row["nfe"], row["accuracy"], row["peak_memory"]) == (4.0, 3.0, None, 77)
    assert row["spent_over_needed"] == 1.5
    assert row["share_of_peak"] == pytest.approx(9 / 4)  # the plain loop's own work
    row = describe(problem, mode, (result, 3), (reference, 5), taken, 1e6, spent=1, needed=None)
    assert row["spent_over_needed"] is None


@pytest.mark.parametrize("cache", ["none", "dual"])
def test_the_flops_spent_are_those_of_padded_rows(llada: Path, cache: str):
    """Prompts of 2 and 5 tokens and 4 tokens of completion in blocks of 2, one token a forward."""
    model = load_model(llada)
    sampler = SamplerConfig(gen_length=4, block_length=2, cache=cache)
    with recorded(model) as forwards:
        trajectory = rollout(model, [[5, 6], [7, 8, 9, 10, 11]], sampler, [0, 1])
    # Each forward has both rows; the head runs at 2 and 1 masked positions of each block and row.
    run = [9] * 8 if cache == "none" else [9, 9, 2, 2] * 2
    expected = forward_flops(model, torch.full((8,), 9), 12, torch.tensor(run))
    assert forwards.flops(model) == pytest.approx(expected)
    assert forwards.predicted == 12
    assert forwards.flops(model) > rollout_flops(model, trajectory)
    alone = rollout_flops(model, trajectory)
    for prompt in ([5, 6], [7, 8, 9, 10, 11]):
        with recorded(model) as forwards:
            rollout(model, [prompt], sampler, [0])
        alone -= forwards.flops(model)
    assert alone == pytest.approx(0, abs=1e-6 * expected)  # without padding, all is needed
    with recorded(model) as forwards:
        plain_rollout(model, [[5, 6]], gen_length=4, block_length=4, steps=4)
    assert forwards.flops(model) == pytest.approx(forward_flops(model, torch.full((4,), 6), 4 * 6))


@pytest.mark.parametrize("family", ["llada", "dream"])
def test_bench_on_a_layout_with_random_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: str):
    monkeypatch.setitem(LAYOUTS, "small", SMALL[family])
    small = ("--model", "small", "--layers", "1", "--n", "2", "--prompt_length", "8", "--gen_length", "8")
    forms = ("--lora", "4", "--compile", "true")
    result = bench(tmp_path, *small, "--block_length", "4", "--tokens_per_step", "[1, 2]", *forms)
    groups = [f"8 tokens in {steps} steps" for steps in (8, 4)]
    assert list(dict.fromkeys(row["group"] for row in result["rows"])) == groups
    for group, steps in zip(groups, (8, 4), strict=True):
        modes = {row["mode"]: row for row in result["rows"] if row["group"] == group}
        more = ["bfloat16 autocast", "LoRA, rank 4", "LoRA, rank 4, merged", "compiled", "dual cache, compiled"]
        more = more if steps == 4 else []
        assert list(modes) == ["plain loop", "engine, exact", "prefix cache", "dual cache", *more]
        assert [row["nfe"] for row in modes.values()] == [steps] * len(modes)
        # With the one layer that is left the caches are exact, too.
        assert [row["same"] for mode, row in modes.items() if "bfloat16" not in mode] == [1.0] * (4 + len(more[1:]))
        assert all(row["accuracy"] is None for row in modes.values())


def test_bench_of_blocks_counts_the_tokens_through_the_model(tmp_path: Path):
    small = ("--n", "2", "--generations", "2", "--tasks", "[words]", "--gen_length", "8", "--block_length", "4")
    blocks = ("--causal_blocks", "true", "--tokens_per_step", "[2]")
    rows = bench(tmp_path, *small, *blocks, "--lora", "0", "--compile", "true")["rows"]
    assert {row["group"] for row in rows} == {"block by block, 8 tokens in 4 steps"}
    assert [row["mode"] for row in rows] == [
        "published loop, no cache",
        "engine, blocks not stored",
        "+ finished blocks stored, prompts run once",
        "bfloat16 autocast",
        "compiled",
    ]
    assert [row["same"] for row in rows[:3]] == [1.0] * 3
    published, plain, stored = (row["model_tokens"] for row in rows[:3])
    assert min(published, plain) > stored


@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="the peak is read from Linux's /proc")
def test_peak_memory_sees_what_was_held_for_a_moment():
    size = 200 * 10**6

    def work() -> None:
        torch.ones(size, dtype=torch.uint8)
        torch.ones(size // 2, dtype=torch.uint8)

    for _ in range(2):  # freed memory is not there for the taking the second time
        peak = peak_memory(work, CPU)
        assert peak is not None
        assert 0.95 * size < peak < 1.2 * size
    # An earlier, higher peak is forgotten.
    peak = peak_memory(lambda: torch.ones(size // 4, dtype=torch.uint8), CPU)
    assert peak is not None
    assert 0.2 * size < peak < 0.4 * size
    # What is held already does not count.
    held = torch.ones(size, dtype=torch.uint8)
    peak = peak_memory(lambda: held[0], CPU)
    assert peak is not None
    assert peak < 0.2 * size


def test_both_layouts_are_the_same_step():
    cases, padding = padding_cases(BenchUpdateConfig(update_tokens=300, prompts=6), CPU)
    losses = [work() for work in cases.values()]
    assert losses == pytest.approx(losses[:1] * 2, rel=1e-5)
    model, tokenizer = load_model("embedded"), load_tokenizer("embedded")
    tasks = [get_task(name) for name in ("choice", "words", "sudoku")]
    rows = [tasks[i % 3].row("train", i) for i in range(6)]
    lengths = [len(p) for p in encode_rows(rows, tokenizer, model, 64)]
    completion = max(task.gen_length for task in tasks)
    real, longest = sum(lengths) / 6 + completion, max(lengths) + completion
    # Each rollout is seen four times, or less often where it took fewer steps.
    assert padding["padded to the longest"] == pytest.approx(1 - real / longest, abs=0.02)
    assert 0 <= padding["like lengths together"] <= padding["padded to the longest"]


@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="the peak is read from Linux's /proc")
def test_bench_update_writes_numbers_and_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    sizes = ("--vocabulary", "2000", "--width", "256", "--tokens", "1024", "--sizes", "[8, 16]", "--prompts", "6")
    assert main(["update", "--repeats", "1", "--output", str(tmp_path), *sizes]) == 0
    printed = capsys.readouterr().out
    rows = {(row["group"], row["case"]): row for row in json.loads((tmp_path / "update.json").read_text())["rows"]}
    plain, fused = (rows["loss", name] for name in ("plain", "fused"))
    assert fused["loss"] == pytest.approx(plain["loss"], rel=1e-5)
    assert fused["peak_memory"] < plain["peak_memory"]
    small, large = (rows["training iteration", f"K x N = {size}"] for size in (8, 16))
    adapted, cached = (rows["training iteration", f"K x N = 8, {form}"] for form in FORMS)
    assert adapted["at_rest"] < small["at_rest"] and cached["seconds"] > 0
    assert 0 < small["update_seconds"] < small["seconds"]
    # Two layers of 4 D^2 + 3 D H + 2 D numbers, D = 64 and H = 256, two tables of 2,000 words and the last norm, each
    # number four times: theta, theta_old and Adam's moments.
    weights = 2 * (4 * 64**2 + 3 * 64 * 256 + 2 * 64) + 2 * 2000 * 64 + 64
    assert small["at_rest"] == pytest.approx(16 * weights, rel=0.5)  # 6 MB, as the system counts them
    for row in (small, large):
        assert row["at_rest"] < row["peak_memory"]
    assert large["memory_ratio"] == large["peak_memory"] / small["peak_memory"]
    for name in ("padded to the longest", "like lengths together"):
        assert f"{name} ({rows['ragged prompts', name]['padding']:.0%} padding)" in printed


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("", "expected one of rollout, update, bfloat16, precision, sandbox"),
        ("training", "found 'training'"),
        ("update --sizes [8,10]", "'sizes' must hold multiples of 4 from 8 up, found [8, 10]"),
        ("update --width 100", "width 100 must be a multiple of 32"),
        ("rollout --repeats 0", "repeats 0 must be at least 1"),
        ("rollout --layer 2", "did you mean 'layers'"),
        ("rollout --tasks []", "'tasks'"),
        ("rollout --tasks [sums]", "unknown task 'sums'"),
        ("rollout --model llada-9b", "no such folder"),
    ],
)
def test_wrong_settings_are_told_at_once(arguments: str, said: str, capsys: pytest.CaptureFixture[str]):
    assert main(arguments.split()) == 2
    assert said in capsys.readouterr().err


def test_cases_run_in_turn():
    ran: list[str] = []
    cases = {name: lambda name=name: ran.append(name) or len(ran) for name in "ab"}  # type: ignore[func-returns-value]
    results, rows = measured(cases, CPU, 2)
    assert "".join(ran) == "ababab"  # the first time for memory
    assert results == {"a": 5, "b": 6}
    assert 0 <= rows["a"]["seconds_least"] <= rows["a"]["seconds"] <= rows["a"]["seconds_most"] < 1
    assert median_and_range([3.0, 1.0, 2.0, 10.0]) == {"seconds": 2.5, "seconds_least": 1.0, "seconds_most": 10.0}


def test_bench_update_goes_on_without_what_cannot_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The plain loss and the iterations do not fit, and then the time is over."""

    def too_much(*_: Any, **__: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    def over(case: Iteration) -> dict[str, Any]:
        monkeypatch.setattr("benchmarks.measure.time.monotonic", lambda: math.inf)
        return too_much()

    monkeypatch.setattr("benchmarks.update.rectified_loss", too_much)
    monkeypatch.setattr("benchmarks.iteration._in_own_process", over)
    config = BenchUpdateConfig(tokens=2, vocabulary=600, width=32, repeats=1, budget=60, output=str(tmp_path))
    rows = json.loads(run_bench_update(config).read_text())["rows"]
    failures = {row["case"]: row.get("failed") for row in rows}
    assert failures == {
        "plain": "does not fit in memory",
        **dict.fromkeys(("fused", "fused, one head", "fused, one head, r 0 or 1")),
        "K x N = 8": "does not fit in memory",
        **dict.fromkeys([f"K x N = {n}" for n in (32, 128, 256)], "not run, out of budget"),
        **dict.fromkeys([f"K x N = 8, {form}" for form in FORMS], "not run, out of budget"),
        **dict.fromkeys(UPDATE_LAYOUTS, "not run, out of budget"),
    }
    assert "plain: does not fit in memory" in (tmp_path / "update.md").read_text()


def test_bench_sandbox_measures_correct_programs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    rung = Sandbox(unsafe="root").rung
    arguments = ["sandbox", "--verdicts", "1", "--repeats", "1", "--workers", "2", "--rungs", f"[{rung}]"]
    arguments += ["--output", str(tmp_path)]
    assert main(arguments) == 0
    rows = json.loads((tmp_path / "sandbox.json").read_text())["rows"]
    assert [row["case"] for row in rows] == ["two assertions", "with numpy", "unittest, together"]
    assert all(row["rung"] == rung and row["verdicts_per_second"] > 0 and row["cpu_milliseconds"] > 0 for row in rows)
    monkeypatch.setattr("benchmarks.sandbox.TESTS", ("assert add(1, 2) == 4",))
    assert main(arguments) == 2
    assert f"a right program failed on rung {rung}: test 0: AssertionError" in capsys.readouterr().err


def test_a_model_of_true_width_trains_resumes_and_exports_within_its_plan(tmp_path: Path):
    """LLaDA-8B with one layer, whose checkpoint takes 2.4 GiB."""
    assert true_size([str(tmp_path), "--rows", "smallest"]) == 0
    row = json.loads((tmp_path / "smallest" / "row.json").read_text())
    assert all(abs(needed - planned) < 0.15 * needed for needed, planned in row["memory"].values()), row["memory"]
    assert row["logits differ by"] < 0.02 * row["of"]
    assert max(row["commands"].values()) < 1, "a bfloat16 checkpoint stays in its files"


def test_a_side_of_the_peers_benchmark_reports_each_turn(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    write_model(tmp_path, 512, 1)
    numbers = {**DEFAULTS, "tokens": 8, "steps": 4, "block": 8, "passes": 2, "lora": 1, "turns": 2}
    side = Side(sys.executable, "ours", tmp_path, numbers)
    for _ in range(2):
        side.turn()
    side.close()
    assert side.process.returncode == 0
    assert all(turn["rollout"] > 0 and turn["update"] > 0 and turn["memory"] >= 0 for turn in side.found)
    assert peers(["--python", sys.executable, "--d1", str(tmp_path)]) == 2
    assert "--d1 must be a copy of" in capsys.readouterr().err
