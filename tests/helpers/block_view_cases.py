"""Views of rollouts in blocks, and what an objective asks of their replay."""

from pathlib import Path
from typing import Any

import pytest
import torch

from lfpo.config.sampler import SamplerConfig
from lfpo.core.model import BASE, CURRENT, OLD
from lfpo.core.predictions import Predictions
from lfpo.core.trajectory import Trajectory
from lfpo.core.views import Views
from lfpo.models import MaskedDiffusionLM, load_model
from lfpo.objectives import make_objective
from lfpo.rollout.sampling import rollout
from tiny import random_ids, write_llada

PROMPTS = [random_ids(1, n, seed=n)[0].tolist() for n in (1, 4, 6, 11, 8)]
SEEDS = list(range(len(PROMPTS)))
BLOCK = 4


def rolled(model: MaskedDiffusionLM) -> Trajectory:
    """Prompts end inside a block, and steps reveal several tokens or none. The second rollout, of four prompt tokens,
    draws an EOS at the second position of its second block, and other tokens after it."""
    sampler = SamplerConfig(gen_length=12, temperature=1.0, alg="origin", steps=24)
    model.eos_id = int(rollout(model, PROMPTS, sampler, SEEDS).tokens[1, BLOCK + 1])
    return rollout(model, PROMPTS, sampler, SEEDS)


def model_and_rollouts(folder: Path, dtype: torch.dtype = torch.float32) -> tuple[MaskedDiffusionLM, Trajectory]:
    model = load_model(write_llada(folder / "blocks", block_length=BLOCK), dtype=dtype)
    return model, rolled(model)


def policies(model: MaskedDiffusionLM) -> dict[str, Any]:
    return dict.fromkeys((CURRENT, OLD, BASE), model)


def views_for(name: str, t: Trajectory, **knobs: Any) -> Views:
    signal = torch.ones(len(t), dtype=torch.float64)
    return make_objective({"name": name, **knobs}).views(t.in_rounds(), signal, range(len(t)), 0)


replayed = pytest.mark.parametrize(
    ("name", "knobs"),
    [("cj_grpo", {"after_eos": True}), ("trace_rl", {"shrink": 1}), ("egspo", {"steps": 99}), ("agrpo", {})],
    ids=lambda x: x if isinstance(x, str) else "",
)
Write = tuple[int, int, int]  # row, position and step of a token that was written


def asked_of_replay(name: str, views: Views, t: Trajectory, model: MaskedDiffusionLM) -> list[Write]:
    """What the views of rounds `t` ask about: every token that the objective scores, once, with the log-probability
    that was recorded when it was written."""
    step_BW, confidence_BW = t.with_edits("reveal_step"), t.with_edits("confidence")
    place_BW = t.at_writes(torch.arange(t.tokens.shape[1]).expand_as(t.tokens))
    recorded: dict[Write, float] = {
        (row, int(place_BW[row, w]), int(step_BW[row, w])): float(confidence_BW[row, w])
        for row, w in (step_BW >= 0).nonzero().tolist()
    }
    view, column = views.target.nonzero().unbind(-1)
    place = (column - t.prompt_ids.shape[1]).tolist()
    if name == "trace_rl":  # whose views have no numbers: of each row one a step, in order
        number = [step for row in range(len(t)) for step in t.distinct_steps()[row].tolist()]
    else:
        number = views.state.tolist()
    asked = [(int(views.row[v]), p, number[v]) for v, p in zip(view.tolist(), place, strict=True)]
    drawn = torch.tensor([recorded[key] for key in asked])
    torch.testing.assert_close(Predictions(views, policies(model)).logp(), drawn.log(), rtol=0, atol=1e-4)
    scored = t.scored(after_eos=name in ("cj_grpo", "egspo"))
    every = {key for key in recorded if bool(scored[key[0], key[1]])}
    assert set(asked) <= every and (name == "agrpo" or set(asked) == every) and len(asked) == len(set(asked))
    return asked
