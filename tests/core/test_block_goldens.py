"""Sampler runs of the published codes, token for token and step for step (tests/golden_families.py)."""

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch

from golden_families import golden, golden_sampler
from lfpo.config.sampler import SamplerConfig
from lfpo.core.trajectory import Trajectory
from lfpo.models import load_model
from lfpo.rollout.sampling import rollout
from soon import soon

# Runs that are not to be reproduced, by the beginning of their `case`, and why.
INELIGIBLE = {
    "hazard": "topk takes one more position than is masked and writes its token again",
    "unpatched": "with top_k 1 and temperature 1 every confidence is 1 in the published sampler",
    "the same with eos_early_stop": "the published path sometimes returns the prompt before the completion",
}
# LLaDA2.1 was also run with a 0/1 mask added to the scores, which lets tokens see later blocks.
SEES_LATER_BLOCKS = "0/1 added to the scores"
BLOCK_FAMILIES = {"sdar": 13, "sdar_moe": 13, "llada2_0": 10, "llada2_1": 11}  # and how many runs are to be reproduced


def eligible(name: str) -> list[dict[str, Any]]:
    runs = [run for run in golden_sampler(name)["runs"] if not str(run.get("case")).startswith(tuple(INELIGIBLE))]
    return [run for run in runs if not str(run.get("mask")).startswith(SEES_LATER_BLOCKS)]


def sampler_of(settings: dict[str, Any]) -> SamplerConfig:
    """Our settings for a published sampler's. Their `denoising_steps` and `steps` are of one block."""
    blocks = settings["gen_length"] // settings["block_length"]
    per_block = settings.get("denoising_steps") or settings["steps"]
    if "threshold" in settings:
        dynamic: dict[str, Any] = {"remasking": "low_confidence_dynamic", "threshold": settings["threshold"]}
    else:
        dynamic = {"remasking": settings["remasking_strategy"], "threshold": settings.get("confidence_threshold")}
    dynamic |= {key: settings[key] for key in ("editing_threshold", "max_post_steps") if key in settings}
    # The goldens were made with argmax, whose probability is the confidence: temperature 0 here.
    lengths = {"gen_length": settings["gen_length"], "block_length": settings["block_length"]}
    return SamplerConfig(**lengths, steps=per_block * blocks, **dynamic)


def with_equal_settings(runs: list[dict[str, Any]]) -> list[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Settings and the runs that have them, which are sampled as one batch."""
    grouped = itertools.groupby(runs, key=lambda run: run["settings"])
    return [(settings, list(alike)) for settings, alike in grouped]


CASES = [*((name, True) for name in BLOCK_FAMILIES), ("sdar", False)]


@pytest.mark.parametrize(("name", "store_blocks"), soon(CASES, CASES.index(("sdar", True))))
def test_block_samplers_give_the_published_tokens_at_the_published_steps(name: str, store_blocks: bool, tmp_path: Path):
    model, runs = load_model(golden(name, tmp_path / name)), eligible(name)
    assert len(runs) == BLOCK_FAMILIES[name]
    for settings, alike in with_equal_settings(runs):
        stop = settings.get("stopping_criteria_idx", [settings.get("eos_id", golden_sampler(name)["eos_id"])])
        model.eos_id = stop[0]
        prompts = [run["prompt"] for run in alike]
        found = rollout(model, prompts, sampler_of(settings), [0] * len(alike), store_blocks=store_blocks)
        for row, run in enumerate(alike):
            check(found.rows(torch.tensor([row])), run)


def check(found: Trajectory, run: dict[str, Any]) -> None:
    skip = len(run["prompt"]) if "tokens" in run else 0  # SDAR returns the prompt too
    tokens = run["tokens" if skip else "completion"][skip:]
    forwards = run.get("forwards", run.get("denoising_forwards"))
    if "trace" in run:
        forwards = check_states(found, run)
    if "reveal_step" not in run:  # only the completion, cut after its EOS
        assert found.completion_ids()[0] == tokens
        return
    steps = run["reveal_step"][skip:]
    revealed = [step is not None for step in steps]
    assert found.reveal_step[0, : len(steps)].tolist() == [-1 if step is None else step for step in steps]
    kept = [token for token, shown in zip(found.tokens[0].tolist(), revealed, strict=False) if shown]
    assert kept == [token for token, shown in zip(tokens, revealed, strict=True) if shown]
    assert int(found.nfe[0]) == forwards


def check_states(found: Trajectory, run: dict[str, Any]) -> int:
    """Each block before each of its forwards is rebuilt from the trajectory; returns the forwards until the block with
    the first EOS, where our rollout ends. The published loop goes on and cuts the text afterwards."""
    ends, clock = len(run["prompt"]) + int(found.lengths[0]), 0
    for block in run["trace"]:
        if block["block_end"] - run["settings"]["block_length"] >= ends:
            break
        for expected in block["block_before_each_forward"]:
            seen = [*run["prompt"], *found.state_before(torch.tensor([clock]))[0].tolist()]
            assert seen[: block["block_end"]][-len(expected) :] == expected
            clock += 1
    return clock


@pytest.mark.parametrize("name", ["llada", "lladamoe"])
def test_full_attention_samplers_give_the_published_tokens_at_the_published_steps(name: str, tmp_path: Path):
    model, runs = load_model(golden(name, tmp_path / name)), eligible(name)
    assert len(runs) == 9
    for settings, alike in with_equal_settings(runs):
        taken = ("steps", "gen_length", "block_length", "temperature", "cfg_scale", "remasking")
        sampler = SamplerConfig(**{k: settings[k] for k in taken})
        found = rollout(model, [run["prompt"] for run in alike], sampler, [0] * len(alike))
        for row, run in enumerate(alike):
            skip = len(run["prompt"])
            assert found.tokens[row].tolist() == run["tokens"][skip:]
            assert found.reveal_step[row].tolist() == run["reveal_step"][skip:]
            assert int(found.nfe[row]) == run["forwards"]
