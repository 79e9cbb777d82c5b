"""`lfpo plan` of models with uniform noise: parameters, and FLOPs beside those of real rollouts and updates."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from lfpo.config.build import build
from lfpo.config.train import LFPOConfig
from lfpo.contrib.canvases.noise import with_noise
from lfpo.core.model import CURRENT, OLD
from lfpo.core.predictions import Predictions
from lfpo.models import load_model
from lfpo.models.layouts import with_layers
from lfpo.plan.estimate import Estimate
from lfpo.plan.flops import pass_flops, rollout_flops
from lfpo.plan.model import activations
from lfpo.rollout.sampling import rollout
from tiny_gemma import CANVAS, CHARACTERS, write_gemma

pytestmark = pytest.mark.long
PROMPT, STEPS, CANVASES = 9, 4, 2
SAMPLER = {"rule": "canvas", "temperature": 0.0, "max_denoising_steps": STEPS, "gen_length": CANVASES * CANVAS}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gemma(tmp_path_factory.mktemp("gemma") / "checkpoint")


def estimate(checkpoint: Path, **changes: Any) -> Estimate:
    values = {"output_dir": "unused", "task": "choice", "sampler": SAMPLER, "eval_samplers": {}, **changes}
    return Estimate(build(LFPOConfig, values), load_model(checkpoint).config, prompt_length=PROMPT, device="cpu")


@pytest.mark.parametrize("states", ["noised", "stratified"])
def test_flops_are_those_of_rollouts_and_passes(checkpoint: Path, states: str):
    """Of rollouts that spend all steps, whose states are conditioned as often as the toy's that the plan counts."""
    planned = estimate(checkpoint, objective={"name": "lfpo", "states": states, "num_iterations": 1})
    model = load_model(checkpoint)
    assert planned.sizes.total == sum(p.numel() for p in model.backbone.parameters())
    size = 8
    prompts = torch.randint(CHARACTERS, (size, PROMPT), generator=torch.Generator().manual_seed(0)).tolist()
    model.eos_id = -2  # no rollout ends early
    t = rollout(model, prompts, replace(planned.sampler, confidence_threshold=1e-9), range(size))
    assert planned.forwards == STEPS * CANVASES and set(t.nfe.tolist()) == {STEPS * CANVASES}
    assert rollout_flops(model, t) * planned.rollouts / size == pytest.approx(planned.rollout_flops)
    views = planned.objective.views(t.in_rounds(), torch.ones(size), range(size), 0)
    views = with_noise(views, list(range(size)), 0, model.vocab_size)
    predictions = Predictions(views, {CURRENT: model, OLD: model.frozen_copy()})
    planned.objective.loss(predictions, torch.ones(size, dtype=torch.float64))
    counted = sum(pass_flops(model, of.ran_by(policy, backward=policy == CURRENT)) for policy, of in predictions.ran)
    assert views.temperature is not None
    assert counted * planned.rollouts / size == pytest.approx(planned.update_flops, rel=1e-6)


def test_activations_grow_by_periods_of_layers(checkpoint: Path):
    """Sliding and full layers in turn: of the four layers as two periods predict them."""
    config = load_model(checkpoint).config
    four, eight, twelve = (
        activations("full", with_layers(config, layers), 2, 40, torch.float32, None, False) for layers in (4, 8, 12)
    )
    assert eight[0] > 1.5 * four[0] and twelve[0] - eight[0] == eight[0] - four[0]
