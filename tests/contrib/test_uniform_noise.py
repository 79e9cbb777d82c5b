"""Objectives where noise is uniform over the vocabulary: their states, what conditions them, and which need masks."""

import dataclasses
from typing import Any

import pytest
import torch

from lfpo.config.errors import UserError
from lfpo.config.sampler import SamplerConfig
from lfpo.contrib.canvases.cap import Cap
from lfpo.contrib.canvases.noise import CanvasViews, with_noise
from lfpo.contrib.canvases.trajectory import NEVER, CanvasTrajectory
from lfpo.core.completions import tensor_fields
from lfpo.core.doubled import noised_hidden
from lfpo.core.lfpo import LFPO
from lfpo.core.model import BASE, CURRENT, NO_TOKEN, OLD, MaskedDiffusionLM
from lfpo.core.predictions import Predictions
from lfpo.core.rectified import rectified_loss
from lfpo.core.trajectory import join
from lfpo.core.views import in_passes
from lfpo.core.visited import stratified_indices
from lfpo.models import load_model
from lfpo.objectives import OBJECTIVES, make_objective
from lfpo.objectives.agrpo import logp_as_drawn
from lfpo.objectives.needs import check_rollouts
from lfpo.rollout.sampling import rollout
from lfpo.train.queue import kind_of, part
from small_runs import same
from tiny_gemma import CANVAS, CHARACTERS, VOCABULARY, write_gemma

CARRY_OVER = ["lfpo", "unigrpo", "agrpo", "dtm", "rejection"]
SEEDS = [5, 6, 7]
STEPS = 6


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> MaskedDiffusionLM:
    return load_model(write_gemma(tmp_path_factory.mktemp("gemma") / "checkpoint", std=0.1), dtype=torch.float64)


@pytest.fixture(scope="module")
def rollouts(model: MaskedDiffusionLM) -> CanvasTrajectory:
    """Two canvases each, over prompts of several lengths; some canvases come to rest early."""
    rng = torch.Generator().manual_seed(5)
    prompts = [torch.randint(CHARACTERS, (n,), generator=rng).tolist() for n in (13, 4, 9)]
    settings = {"max_denoising_steps": STEPS, "entropy_bound": 8.0, "t_min": 0.01, "t_max": 0.2}
    sampler = SamplerConfig(rule="canvas", gen_length=2 * CANVAS, confidence_threshold=10.0, **settings)
    t = rollout(model, prompts, sampler, SEEDS)
    assert isinstance(t, CanvasTrajectory)
    assert len(t.steps_of_canvas.unique()) > 1 and not t.has_eos.any()
    return t


@pytest.fixture(scope="module")
def other(model: MaskedDiffusionLM) -> MaskedDiffusionLM:
    """A policy that differs from the one that sampled."""
    copy, rng = model.frozen_copy(), torch.Generator().manual_seed(1)
    for p in copy.parameters():
        p.data.add_(0.02 * torch.randn(p.shape, generator=rng, dtype=p.dtype))
    return copy.requires_grad_(True)


def views_of(name: str, t: CanvasTrajectory, seeds: list[int] = SEEDS, inner: int = 0, **knobs: Any) -> CanvasViews:
    views = make_objective({"name": name, **knobs}).views(t.in_rounds(), torch.ones(len(t)), seeds, inner)
    return with_noise(views, seeds, inner, VOCABULARY)


def test_noised_states_hold_random_tokens_and_ask_about_all(rollouts: CanvasTrajectory):
    views, width = views_of("lfpo", rollouts, timesteps=40), rollouts.prompt_ids.shape[1]
    row_S = rollouts.rows(views.row)
    assert torch.equal(views.input_ids[:, :width], row_S.prompt_ids) and (views.input_ids >= 0).all()
    assert torch.equal(views.target[:, width:], row_S.until_eos) and not views.target[:, :width].any()
    assert torch.equal(views.labels[:, width:], row_S.tokens)
    # Sizes of the noise are stratified from one token to all: half of the tokens on average, of uniform values.
    changed = views.input_ids[:, width:] != row_S.tokens
    assert changed.double().mean().item() == pytest.approx(0.5, abs=0.05)
    drawn = views.input_ids[:, width:][changed].double()
    assert drawn.mean().item() == pytest.approx(VOCABULARY / 2, abs=5) and drawn.max() > VOCABULARY - 3
    # Half of the states are conditioned on themselves, the others on nothing.
    assert torch.equal(views.before, views.input_ids)
    assert set(views.temperature.unique().tolist()) == {0.0, 1.0} and not views.temperature[:, :width].any()
    whole = views.temperature[:, width:].mean(-1)
    assert set(whole.tolist()) == {0.0, 1.0} and whole.mean().item() == pytest.approx(0.5, abs=0.15)


def test_the_noise_of_a_rollout_is_its_own(rollouts: CanvasTrajectory):
    """The same beside other rollouts; another in the next pass."""
    every, again = views_of("lfpo", rollouts, timesteps=2), views_of("lfpo", rollouts, inner=1, timesteps=2)
    index = torch.tensor([2, 0])
    some = rollouts.rows(index)
    assert isinstance(some, CanvasTrajectory)
    few = views_of("lfpo", some, [SEEDS[2], SEEDS[0]], timesteps=2)
    for name in ("input_ids", "before", "temperature"):
        expected = getattr(every, name).unflatten(0, (3, 2))[index].flatten(0, 1)
        assert torch.equal(getattr(few, name), expected), name
    assert not torch.equal(every.input_ids, again.input_ids)


def test_visited_states_are_the_canvases_of_the_sampler(rollouts: CanvasTrajectory):
    """Each from another step, conditioned on the canvas before it at the temperature of its step."""
    t, width = rollouts, rollouts.prompt_ids.shape[1]
    views = views_of("lfpo", t, states="stratified", timesteps=STEPS)
    seen = 0
    for s, row in enumerate(views.row.tolist()):
        n = s - views.row.tolist().index(row)  # with as many states as steps every step is drawn
        for first in (0, CANVAS):
            here, at = slice(width + first, width + first + CANVAS), slice(first, first + CANVAS)
            if n < int(t.steps_of_canvas[row, first]):
                assert torch.equal(views.input_ids[s, here].int(), t.canvases[row, n, at])
                assert views.target[s, here].all()
                if n:
                    assert torch.equal(views.before[s, here].int(), t.canvases[row, n - 1, at])
                assert (
                    views.temperature[s, here] - (t.sampler.canvas.temperature(n - 1) if n else 0)
                ).abs().max() < 1e-6
                seen += 1
            else:  # the canvas is finished
                assert torch.equal(views.input_ids[s, here], t.tokens[row, at])
                assert not views.target[s, here].any() and not views.temperature[s, here].any()
    assert seen == int(t.nfe.sum())
    assert torch.equal(stratified_indices(STEPS, STEPS, torch.Generator()), torch.arange(STEPS))


def test_replayed_predictions_are_those_of_the_sampler(model: MaskedDiffusionLM, rollouts: CanvasTrajectory):
    """Of the first two steps, whose conditioning needs no earlier one: entropies at temperature 1."""
    views = views_of("lfpo", rollouts, states="stratified", timesteps=STEPS)
    for n in (0, 1):
        first = [views.row.tolist().index(row) + n for row in range(3)]
        piece = views.select(torch.tensor(first))
        logits = Predictions(piece, {CURRENT: model, OLD: model}).logits(OLD)
        entropy = torch.special.entr(logits.softmax(-1)).sum(-1)
        torch.testing.assert_close(entropy.float(), rollouts.entropies[:, n][rollouts.until_eos], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("states", ["noised", "stratified"])
def test_policies_see_one_conditioning_and_equal_ones_agree(
    model: MaskedDiffusionLM,
    other: MaskedDiffusionLM,
    rollouts: CanvasTrajectory,
    monkeypatch: pytest.MonkeyPatch,
    states: str,
):
    views, signals = views_of("lfpo", rollouts, states=states, timesteps=3), []

    def recorded(self: MaskedDiffusionLM, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("signal") is not None:
            signals.append((self, kwargs["signal"]))
        return noised_hidden(self, *args, **kwargs)

    monkeypatch.setattr("lfpo.core.views.noised_hidden", recorded)
    equal = Predictions(views, {CURRENT: model, OLD: model.frozen_copy()})
    assert torch.equal(equal.logp(CURRENT), equal.logp(OLD))
    signals.clear()
    predictions = Predictions(views, {CURRENT: other, OLD: model})
    assert (predictions.logp(CURRENT) - predictions.logp(OLD)).abs().max() > 1e-3
    (_, of_theta), (_, of_old) = signals
    assert of_theta is of_old and of_old.abs().sum() > 0
    assert [policy for policy, _ in predictions.ran] == [OLD, CURRENT, OLD]
    # It is theta_old's, whichever policy runs first.
    alone = Predictions(views, {CURRENT: other, OLD: model})
    alone.logp(OLD)
    assert torch.equal(signals[-1][1], of_old)


@pytest.mark.parametrize("states", ["noised", "stratified"])
def test_lfpo_s_loss_is_that_of_capped_logits(
    model: MaskedDiffusionLM,
    other: MaskedDiffusionLM,
    rollouts: CanvasTrajectory,
    monkeypatch: pytest.MonkeyPatch,
    states: str,
):
    """Value and gradient beside plain autograd through the model's own head, in one pass and in many."""
    for policy in (model, other):
        monkeypatch.setattr(policy, "logit_map", Cap(2.0))
    objective = LFPO(states=states, timesteps=2, target_weight="equal")  # type: ignore[arg-type]
    signal = torch.tensor([1.0, 0.0, 0.7], dtype=torch.float64)
    views, found = views_of("lfpo", rollouts, states=states, timesteps=2), []
    for update_tokens in (10_000, 1):
        loss = torch.zeros(())
        for piece in in_passes(views, update_tokens)[0]:
            loss = loss + objective.loss(Predictions(piece, {CURRENT: other, OLD: model}), signal)[0]
        found.append((loss, torch.autograd.grad(loss, list(other.parameters()), allow_unused=True)))
    p = Predictions(views, {CURRENT: other, OLD: model})
    assert 1.5 < p.logits().abs().max() < 2
    plain = rectified_loss(p.logits(), p.logits(OLD), p.labels_T, p.at_targets(signal), beta=objective.beta).sum()
    expected = torch.autograd.grad(plain, list(other.parameters()), allow_unused=True)
    for loss, gradients in found:
        assert loss.item() == pytest.approx(plain.item(), rel=1e-6)
        for gradient, wanted in zip(gradients, expected, strict=True):
            assert (gradient is None) == (wanted is None)
            if wanted is not None:
                torch.testing.assert_close(gradient, wanted, rtol=1e-5, atol=1e-6)


def test_the_stepwise_policy_gradient_scores_what_steps_accepted(model: MaskedDiffusionLM, rollouts: CanvasTrajectory):
    """At the temperature of the step; a canvas's last step draws nothing."""
    t, width = rollouts, rollouts.prompt_ids.shape[1]
    views = views_of("agrpo", t, mc_samples=200)
    targets = 0
    for s, (row, n) in enumerate(zip(views.row.tolist(), views.state.tolist(), strict=True)):
        assert torch.equal(views.target[s, width:], t.accepted[row, n])
        for column in t.accepted[row, n].nonzero().flatten().tolist():
            assert views.labels[s, width + column] == t.canvases[row, n + 1, column]
            targets += 1
    assert targets == int(t.accepted.sum()) > 0
    last_BC = t.steps_of_canvas - 1
    assert not t.accepted.gather(1, last_BC[:, None]).any()
    predictions = Predictions(views, {CURRENT: model, OLD: model})
    temperature_T = torch.tensor([t.sampler.canvas.temperature(n) for n in views.state[predictions.view_T].tolist()])
    logp = (predictions.logits(OLD) / temperature_T[:, None]).log_softmax(-1)
    expected = logp.gather(1, predictions.labels_T[:, None]).squeeze(1)
    torch.testing.assert_close(logp_as_drawn(predictions, OLD), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", CARRY_OVER)
def test_objectives_that_carry_over_learn(
    name: str, model: MaskedDiffusionLM, other: MaskedDiffusionLM, rollouts: CanvasTrajectory
):
    """A step along the gradient raises what good rollouts wrote above what bad ones did."""
    objective = make_objective({"name": name})
    check_rollouts(objective, rollouts.sampler, trained_block=CANVAS)
    signal = objective.signal(torch.tensor([1.0, 0.0, 1.0], dtype=torch.float64), torch.tensor([0, 0, 0]))
    views = with_noise(objective.views(rollouts.in_rounds(), signal, SEEDS, 0), SEEDS, 0, VOCABULARY)
    assert not (views.input_ids == NO_TOKEN).any()
    policies = {CURRENT: other, OLD: model, BASE: model}
    loss, _ = objective.loss(Predictions(views, policies), signal)
    parameters = [p for p in other.parameters() if p.requires_grad]
    gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
    norm = sum(float(g.square().sum()) for g in gradients if g is not None) ** 0.5
    assert 0 < norm < float("inf")
    with torch.no_grad():
        for sign in (-1, 1):
            for p, g in zip(parameters, gradients, strict=True):
                p.add_(sign * 1e-4 / norm * (g if g is not None else 0))
            if sign == -1:
                after, _ = objective.loss(Predictions(views, policies), signal)
    assert after < loss


def test_imitation_weighs_every_token_alike(rollouts: CanvasTrajectory):
    views = views_of("rejection", rollouts, masks=2)
    assert views.weight[views.target].unique().tolist() == pytest.approx([1 / (2 * CANVAS)])
    assert torch.equal(views.target.sum(-1), torch.full((6,), 2 * CANVAS))


@pytest.mark.parametrize("name", sorted(set(OBJECTIVES) - set(CARRY_OVER)))
def test_objectives_that_need_masks_say_so(name: str):
    sampler = SamplerConfig(rule="canvas").for_length(CANVAS, CANVAS)
    with pytest.raises(UserError, match="needs masked tokens, at which its probabilities are defined, and where"):
        check_rollouts(make_objective({"name": name}), sampler, trained_block=CANVAS)


def test_rollouts_are_joined_and_parted(model: MaskedDiffusionLM, rollouts: CanvasTrajectory):
    """As engines, queues and ranks do, over prompts of other lengths."""
    parts = [part(rollouts, first, count) for first, count in ((0, 1), (1, 2))]
    assert parts[1].prompt_ids.shape[1] < rollouts.prompt_ids.shape[1]
    joined = join(parts, model.pad_id)
    assert isinstance(joined, CanvasTrajectory) and same(joined, rollouts)
    assert kind_of(tensor_fields(joined)) is CanvasTrajectory


def test_steps_count_on_over_canvases_and_rounds_begin_anew(rollouts: CanvasTrajectory):
    t = rollouts
    one, rounds = t.with_edits("reveal_step"), t.in_rounds()
    assert torch.equal(one.amax(-1) + 1, t.scheduled_steps)
    assert torch.equal(rounds.reveal_step, t.steps_of_canvas - 1)
    for s in (0, 2):  # the tokens before a step, by either count
        first_BC = t.reveal_step - rounds.reveal_step
        assert torch.equal(rounds.tokens_before(torch.full_like(t.tokens, s)), t.tokens_before(first_BC + s))
    gone = dataclasses.replace(t, canvases=torch.full_like(t.canvases, NEVER), reveal_step=t.reveal_step * 0 - 1)
    assert not gone.pending_before(torch.zeros(3, dtype=torch.long)).any()
