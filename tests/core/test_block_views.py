"""Views of rollouts of block-diffusion models: one forward replays a step of every block, as the sampler saw it."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

from block_view_cases import BLOCK, SEEDS, asked_of_replay, model_and_rollouts, policies, replayed, rolled, views_for
from lfpo.config.errors import UserError
from lfpo.config.sampler import SamplerConfig
from lfpo.core.learner import accumulate_gradients
from lfpo.core.model import CURRENT
from lfpo.core.predictions import Predictions
from lfpo.core.structure import Structure
from lfpo.core.trajectory import Trajectory
from lfpo.core.views import BlockViews, passes
from lfpo.models import MaskedDiffusionLM, load_model
from lfpo.objectives import OBJECTIVES, make_objective
from lfpo.objectives.needs import check_rollouts
from lfpo.plan.flops import forward_flops, pass_flops
from soon import soon
from tiny import write_llada


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> tuple[MaskedDiffusionLM, Trajectory]:
    return model_and_rollouts(tmp_path_factory.mktemp("float32"))


@pytest.fixture
def model(narrow: tuple[MaskedDiffusionLM, Trajectory]) -> MaskedDiffusionLM:
    return narrow[0]


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> tuple[MaskedDiffusionLM, Trajectory]:
    return model_and_rollouts(tmp_path_factory.mktemp("float64"), torch.float64)


@pytest.fixture
def rollouts(narrow: tuple[MaskedDiffusionLM, Trajectory]) -> Trajectory:
    return narrow[1]


def test_rounds_count_the_steps_of_each_block(rollouts: Trajectory):
    t = dataclasses.replace(
        rollouts.rows(torch.tensor([2])),  # six prompt tokens: the first block of the completion has two positions
        reveal_step=torch.tensor([[3, 1, 9, 9, 5, 14, 20, -1, 19, 30, -1, -1, -1, -1, -1]]),
    )
    assert t.block_BC.tolist() == [[1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4, 5]]
    assert t.in_rounds().reveal_step.tolist() == [[1, 0, 1, 1, 0, 2, 1, -1, 0, 2, -1, -1, -1, -1, -1]]
    assert t.visited_blocks.tolist() == [[True] * 10 + [False] * 5]
    again = rollouts.in_rounds()
    for row in range(len(rollouts)):  # rows do not depend on each other
        alone = rollouts.rows(torch.tensor([row])).in_rounds().reveal_step[0]
        assert torch.equal(again.reveal_step[row], alone)


@replayed
def test_a_replay_gives_the_probabilities_that_the_sampler_drew_with(
    name: str, knobs: dict[str, Any], model: MaskedDiffusionLM, rollouts: Trajectory
):
    views, t = views_for(name, rollouts, **knobs), rollouts.in_rounds()
    assert asked_of_replay(name, views, t, model)
    steps = sum(len(s) for s in rollouts.distinct_steps(after_eos=True))
    assert len(views) <= (int(t.reveal_step.amax()) + 1) * len(rollouts) < steps  # not a forward for each step


def test_lfpo_draws_from_each_segment_of_each_block(rollouts: Trajectory):
    """With K no less than the steps of every block, each block shows each of its steps once."""
    views = views_for("lfpo", rollouts, states="stratified", timesteps=8)
    for row in range(len(rollouts)):
        shown = views.target[views.row == row][:, rollouts.prompt_ids.shape[1] :].sum(0).tolist()
        block, step, counted = rollouts.block_BC[row], rollouts.reveal_step[row], rollouts.until_eos[row]
        for column in range(len(shown)):
            earlier = (block == block[column]) & counted & (step <= step[column])
            assert shown[column] == (len(step[earlier].unique()) if counted[column] else 0)
    # With K = 1 the step is one of each block's own: no block is shown after its last one.
    views = views_for("lfpo", rollouts, states="stratified", timesteps=1)
    for row, target in zip(views.row.tolist(), views.target[:, rollouts.prompt_ids.shape[1] :], strict=True):
        block = rollouts.block_BC[row]
        assert all(target[block == b].any() for b in block[rollouts.until_eos[row]].unique())


def test_blocks_that_were_never_reached_are_padding(rollouts: Trajectory):
    views = views_for("cj_grpo", rollouts)
    width = rollouts.prompt_ids.shape[1]
    assert torch.equal(views.attention_mask[:, width:].bool(), rollouts.visited_blocks[views.row])
    ended = views.select((views.row == 1).nonzero().flatten()).trim()  # four prompt tokens, two blocks, then EOS
    assert ended.input_ids.shape[1] == 4 + 2 * BLOCK
    after = rollouts.tokens[1, BLOCK + 2 : 2 * BLOCK]  # drawn after the EOS, and seen by the clean half
    assert ended.labels[0, -2:].tolist() == after.tolist()
    assert not (after == rollouts.eos_id).any()


@torch.no_grad()
@pytest.mark.parametrize("name", ["espo", "bgpo", "gdpo", "gdsd", "rejection", "unigrpo", "coupled_grpo"])
def test_random_masks_are_predicted_in_all_blocks_at_once(name: str, model: MaskedDiffusionLM, rollouts: Trajectory):
    views = views_for(name, rollouts, num_iterations=1)
    logits = Predictions(views, policies(model)).logits()
    view_T, column_T = views.target.nonzero().unbind(-1)
    width, compared = rollouts.prompt_ids.shape[1], 0
    for number in range(0, len(views), 3):
        row = int(views.row[number])
        start = width - int(rollouts.prompt_mask[row].sum())
        alone: dict[int, torch.Tensor] = {}  # by block
        for at in (view_T == number).nonzero().flatten().tolist()[::3]:
            block = (int(column_T[at]) - start) // BLOCK
            if block not in alone:
                own = slice(start + block * BLOCK, start + (block + 1) * BLOCK)
                ids = torch.cat([views.labels[number, start : own.start], views.input_ids[number, own]])
                alone[block] = model.head(model.hidden(ids[None], structure=Structure(BLOCK))[0])
            torch.testing.assert_close(logits[at], alone[block][int(column_T[at]) - start], rtol=0, atol=1e-4)
            compared += 1
    assert compared > 5


@pytest.mark.parametrize(
    "name", soon(["lfpo", "agrpo", "trace_rl", "rldf", "cj_grpo", "espo", "bgpo", "rejection"], 0, 1, 2, 5)
)
def test_a_gradient_does_not_depend_on_passes_or_batch_mates(name: str, wide: tuple[MaskedDiffusionLM, Trajectory]):
    model, rollouts = wide
    objective = make_objective({"name": name, "num_iterations": 1})
    signal = objective.signal(torch.tensor([1.0, 0.0, 1.0, 0.0, 1.0], dtype=torch.float64), torch.zeros(5).long())
    gradients = []
    for budget in (10_000, 1):
        model.zero_grad()
        views = objective.views(rollouts.in_rounds(), signal, SEEDS, 0)
        accumulate_gradients(objective, policies(model), views, signal, update_tokens=budget)
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]))
    assert gradients[0].norm() > 0
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-8, atol=1e-10)


def test_noised_and_clean_tokens_count(model: MaskedDiffusionLM, rollouts: Trajectory):
    views = views_for("lfpo", rollouts, timesteps=1)
    lengths = views.attention_mask.sum(-1)
    assert isinstance(views, BlockViews)
    tokens = views.structure.tokens(lengths, views.prompt)
    first = views.prompt // BLOCK * BLOCK
    assert tokens.tolist() == (2 * lengths - first).tolist()
    assert len(passes(views, int(tokens.max()) * len(views))) == 1
    assert len(passes(views, int(tokens.max()) * len(views) - 1)) == 2
    config = model.backbone.config
    attention = 4 * config.num_hidden_layers * config.hidden_size
    of_weights = forward_flops(model, tokens, 0) - attention * float((tokens.double() ** 2).sum())
    head = 2 * config.vocab_size * config.hidden_size * int(views.target.sum())
    pairs = float(views.structure.pairs(lengths, views.prompt).sum())
    expected = of_weights + attention * pairs + head
    assert pass_flops(model, views.ran_by(CURRENT, backward=False)) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("shift", [False, True])
def test_the_prompt_stands_once_and_changes_nothing(shift: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Log-probabilities and gradients against the published layout, in which the whole row is noised: prompts within a
    block, of whole blocks and of several, with the logit shift too."""
    model = load_model(write_llada(tmp_path / "blocks", block_length=BLOCK), dtype=torch.float64)
    model.family = dataclasses.replace(model.family, shift=shift)
    rollouts, found = rolled(model), []
    views = views_for("lfpo", rollouts, timesteps=2)
    for whole in (False, True):
        if whole:
            monkeypatch.setattr(Structure, "first_noised", lambda self, prompt_B: torch.zeros_like(prompt_B))
        model.zero_grad()
        logp_T = Predictions(views, policies(model)).logp()
        (logp_T * torch.linspace(-1, 1, len(logp_T))).sum().backward()
        found.append((logp_T.detach(), torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])))
    for once, twice in zip(*found, strict=True):
        assert once.norm() > 0.1
        torch.testing.assert_close(once, twice, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"name": "spg"}, "SPG needs a model with full attention"),
        ({"name": "stable_drl"}, "StableDRL needs a model with full attention"),
        ({"name": "mask_aware"}, "MaskAware needs a model with full attention"),
        ({"name": "mdpo"}, "MDPO needs a model with full attention"),
        ({"name": "justgrpo"}, "JustGRPO needs tokens revealed one at a time"),
        ({"name": "diffu_grpo"}, r"DiffuGRPO needs .* masks prompt tokens \(p_mask_prompt 0"),
        ({"name": "wd1"}, r"WD1 needs .* masks prompt tokens \(p_mask_prompt 0"),
    ],
)
def test_an_objective_that_needs_full_attention_is_refused_in_a_sentence(settings: dict[str, Any], said: str):
    sampler = SamplerConfig(gen_length=8, temperature=1.0).for_length(8, BLOCK)
    with pytest.raises(UserError, match=f"objective {said}.*, and this model attends in blocks of 4 tokens") as caught:
        check_rollouts(make_objective(settings), sampler, trained_block=BLOCK)
    assert "\n" not in str(caught.value)


def test_all_other_objectives_are_taken():
    sampler = SamplerConfig(gen_length=8, temperature=1.0).for_length(8, BLOCK)
    refused = {"spg", "stable_drl", "mask_aware", "mdpo", "justgrpo", "diffu_grpo", "wd1"}
    for name in set(OBJECTIVES) - refused:
        check_rollouts(make_objective({"name": name}), sampler, trained_block=BLOCK)
    for name in ("diffu_grpo", "wd1"):
        check_rollouts(make_objective({"name": name, "p_mask_prompt": 0.0}), sampler, trained_block=BLOCK)
