"""Sampler runs of the published codes, token for token and step for step (tests/golden_families.py)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from golden_families import golden, golden_sampler
from lfpo.base.files import read_json
from lfpo.models import load_model
from lfpo.models.loading import FAMILIES
from lfpo.rollout.denoise import rollout
from lfpo.rollout.sampler import SamplerConfig
from lfpo.rollout.trajectory import Trajectory

# Runs that are not to be reproduced, by the beginning of their `case`, and why.
INELIGIBLE = {
    "hazard": "topk takes one more position than is masked and writes its token again",
    "unpatched": "with top_k 1 and temperature 1 every confidence is 1 in the published sampler",
    "the same with eos_early_stop": "the published path sometimes returns the prompt before the completion",
}
BLOCK_FAMILIES = {"sdar": 4, "sdar_moe": 4, "llada2_0": 8}  # and the block length of their runs


def eligible(name: str) -> list[dict[str, Any]]:
    return [run for run in golden_sampler(name)["runs"] if not str(run.get("case")).startswith(tuple(INELIGIBLE))]


def sampler_of(settings: dict[str, Any]) -> SamplerConfig:
    """Our settings for a published sampler's. Their `denoising_steps` and `steps` are of one block."""
    blocks = settings["gen_length"] // settings["block_length"]
    per_block = settings.get("denoising_steps") or settings["steps"]
    if "threshold" in settings:
        dynamic: dict[str, Any] = {"remasking": "low_confidence_dynamic", "threshold": settings["threshold"]}
    else:
        dynamic = {"remasking": settings["remasking_strategy"], "threshold": settings.get("confidence_threshold")}
    # The goldens were made with argmax, whose probability is the confidence: temperature 0 here.
    return SamplerConfig(gen_length=settings["gen_length"], steps=per_block * blocks, **dynamic)


@pytest.mark.parametrize("store_blocks", [True, False])
@pytest.mark.parametrize("name", BLOCK_FAMILIES)
def test_block_samplers_give_the_published_tokens_at_the_published_steps(name: str, store_blocks: bool, tmp_path: Path):
    source = golden(name, tmp_path / name)
    if not any(read_json(source / "config.json")["model_type"] in f.model_types for f in FAMILIES.values()):
        pytest.skip(f"{name} does not load yet")
    model = load_model(source)
    runs = eligible(name)
    assert len(runs) == {"sdar": 13, "sdar_moe": 13, "llada2_0": 10}[name]
    for run in runs:
        settings = run["settings"]
        model.eos_id = (
            settings.get("stopping_criteria_idx") or [settings.get("eos_id", golden_sampler(name)["eos_id"])]
        )[0]
        found = rollout(model, [run["prompt"]], sampler_of(settings), [0], store_blocks=store_blocks)
        check(found, run)


def check(found: Trajectory, run: dict[str, Any]) -> None:
    skip = len(run["prompt"]) if "tokens" in run else 0  # SDAR returns the prompt too
    tokens = run["tokens" if skip else "completion"][skip:]
    if "reveal_step" not in run:  # only the completion, cut after its EOS
        assert found.completion_ids()[0] == tokens
        return
    steps = run["reveal_step"][skip:]
    revealed = [step is not None for step in steps]
    assert found.reveal_step[0, : len(steps)].tolist() == [-1 if step is None else step for step in steps]
    kept = [token for token, shown in zip(found.tokens[0].tolist(), revealed, strict=False) if shown]
    assert kept == [token for token, shown in zip(tokens, revealed, strict=True) if shown]
    assert int(found.nfe[0]) == run.get("forwards", run.get("denoising_forwards"))
