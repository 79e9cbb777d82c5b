"""lfpo.contrib.sglang against a server of the same contract: no real one was ever at hand."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from lfpo.config.build import build
from lfpo.config.errors import CannotGoOn, ProcessLost, UserError
from lfpo.config.train import LFPOConfig
from lfpo.contrib import sglang
from lfpo.core.engine import Request
from lfpo.models import load_model
from lfpo.rollout.sampling import local_engine
from lfpo.train.rl import LFPOTrainer
from sglang_server import Server

THRESHOLD = 0.9


def config(folder: Path, **changes: Any) -> LFPOConfig:
    """Two iterations of LFPO on Sudoku in blocks."""
    values: dict[str, Any] = {"output_dir": str(folder), "model": "embedded-block", "task": "sudoku", "max_steps": 2}
    values |= {"prompts_per_iteration": 2, "num_generations": 4, "eval_size": 4, "eval_steps": 2, "threads": 1}
    values |= {
        "sampler": {"temperature": 1.0, "threshold": THRESHOLD},
        "objective": {"name": "lfpo", "num_iterations": 1},
    }
    values["reward_funcs"] = ["reward_samples.even_tokens"]
    values["eval_samplers"] = {"threshold": {"threshold": THRESHOLD}}
    return build(LFPOConfig, {**values, **changes}, "test")


@contextlib.contextmanager
def servers(count: int = 1, **how: Any) -> Iterator[list[Server]]:
    running = [Server("embedded-block", THRESHOLD, **how) for _ in range(count)]
    try:
        yield running
    finally:
        for server in running:
            server.close()


def engine_of(running: list[Server], folder: Path, **changes: Any) -> sglang.SGLangEngine:
    return sglang.SGLangEngine(config(folder, engine={"name": "sglang", "urls": [s.url for s in running], **changes}))


def request_of(args: LFPOConfig, model: Any, generations: int = 4) -> Request:
    """Prompts that end in the middle of a block, and at its end."""
    prompts = [[5, 6, 7, 8, 9], [5, 6, 7, 8, 9, 10, 11, 12]]
    rows = [prompt for prompt in prompts for _ in range(generations)]
    return Request(rows, list(range(len(rows))), args.sampler.for_length(16, model.block_length), generations)


def test_tokens_are_those_of_the_local_engine(tmp_path: Path):
    model = load_model("embedded-block")
    with servers(2) as running:
        engine = engine_of(running, tmp_path)
        request, told = request_of(config(tmp_path), model), list[int]()
        engine.update(0, model)
        found = engine.sample(request, lambda index, part: told.extend(index))
        local = local_engine(config(tmp_path))
        local.update(0, model)
        expected = local.sample(request)
        engine.close()
    assert told == list(range(8))
    assert torch.equal(found.prompt_ids, expected.prompt_ids) and torch.equal(found.prompt_mask, expected.prompt_mask)
    assert found.completion_ids() == expected.completion_ids()
    assert torch.equal(found.was_revealed, expected.was_revealed) and found.structure == expected.structure
    # One request a rollout, in turns to both servers; weights before them, and nothing left of them.
    assert [[path for path, _ in s.seen] for s in running] == [
        ["pause_generation", "update_weights_from_disk", "continue_generation", *["generate"] * 4]
    ] * 2
    assert not list((tmp_path / "sglang").iterdir())


@pytest.mark.parametrize(
    "lora", [{}, pytest.param({"lora": {"r": 4}}, marks=pytest.mark.long)], ids=["weights", "LoRA"]
)
def test_two_iterations_have_the_local_engine_s_metrics(tmp_path: Path, lora: dict[str, Any]):
    def metrics(name: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]

    LFPOTrainer(args=config(tmp_path / "local", **lora)).train()
    with servers() as running:
        engine = {"name": "sglang", "urls": [running[0].url]}
        LFPOTrainer(args=config(tmp_path / "served", engine=engine, **lora)).train()
    # What a server does not tell: forwards, steps, entropy, and the FLOPs that follow from them.
    untold = ("time/", "engine/", "flops", "nfe", "steps", "entropy/rollout")
    for served, local in zip(metrics("served"), metrics("local"), strict=True):
        keys = [k for k in local if not k.startswith(untold) and not k.endswith(("/nfe", "/steps"))]
        assert {k: served[k] for k in keys} == pytest.approx({k: local[k] for k in keys}, rel=1e-5, abs=1e-7)
    assert metrics("served")[1]["grad_norm"] > 0


def test_a_lost_server_ends_the_run_as_a_lost_rank_does(tmp_path: Path):
    with servers() as running:
        engine = engine_of(running, tmp_path)
    with pytest.raises(ProcessLost, match=f"{running[0].url} does not answer .* continue with --resume"):
        engine.update(0, load_model("embedded-block"))


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        ({"refuse": "no such file"}, r"refused the weights in .*sglang.0 \(no such file\)"),
        ({"stale": True}, "sampled with weights 'default', and the run is at '0'"),
        ({"greedy": True}, "all 4 rollouts of each prompt are equal, so the server decodes greedily .* 27943"),
    ],
)
def test_a_server_that_cannot_be_learned_from_is_one_sentence(tmp_path: Path, how: dict[str, Any], sentence: str):
    model = load_model("embedded-block")

    def roll(engine: sglang.SGLangEngine) -> None:
        engine.update(0, model)
        engine.sample(request_of(config(tmp_path), model))

    with servers(**how) as running, pytest.raises(CannotGoOn, match=sentence):
        roll(engine_of(running, tmp_path))
    assert not running[0].paused  # also after a refused update


def test_what_a_server_cannot_do_is_one_sentence(tmp_path: Path):
    with servers() as running:
        engine = engine_of(running, tmp_path)
        with pytest.raises(UserError, match=r"SGLang samples LLaDA2\.x and SDAR"):
            engine.update(0, load_model("embedded"))
        model = load_model("embedded-block")
        engine.update(0, model)
        engine.sample(request_of(config(tmp_path), model))
        other = config(tmp_path, sampler={"temperature": 1.0, "threshold": 0.5})
        with pytest.raises(
            UserError, match=r"one threshold, that of `sampler` is 0\.9, and that of an evaluation 0\.5"
        ):
            engine.sample(request_of(other, model))
    with pytest.raises(UserError, match="'urls'"):
        config(tmp_path, engine={"name": "sglang"})
    with pytest.raises(UserError, match="'urls' is for the engine 'sglang'"):
        config(tmp_path, engine={"name": "local", "urls": ["http://x"]})
