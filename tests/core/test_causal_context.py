"""Block diffusion over a causal context (Nemotron-Labs-Diffusion): rollouts against golden runs and in any batch, and
views that give the sampler's own probabilities."""

import dataclasses
import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from golden_families import FOLDER
from lfpo.config.errors import UserError
from lfpo.config.sampler import SamplerConfig
from lfpo.config.sft import SFTConfig
from lfpo.core.doubled import noised_hidden, training_structure
from lfpo.core.learner import accumulate_gradients
from lfpo.core.model import BASE, CURRENT, OLD
from lfpo.core.predictions import Predictions
from lfpo.core.rng import generator
from lfpo.core.structure import CAUSAL, Structure
from lfpo.core.trajectory import Trajectory
from lfpo.core.views import BlockViews, Views
from lfpo.eval.likelihood import Pair, likelihood_bounds
from lfpo.models import MaskedDiffusionLM, load_model
from lfpo.objectives import OBJECTIVES, make_objective
from lfpo.objectives.needs import check_rollouts
from lfpo.plan.flops import forward_flops, rollout_flops
from lfpo.plan.work import count, sampling_work
from lfpo.rollout.sampling import rollout
from lfpo.train.examples import sampled_length
from lfpo.train.sft import accumulate_sft_gradients
from rollout_cases import assert_same_rows, count_forwards
from soon import soon
from tiny import write_llada

GOLDEN = FOLDER / "nemotron_labs_diffusion"
BLOCK = 8
PROMPTS = [[105, 14, 50, 21, 106], [9], list(range(10, 27)), [105, 14, 50, 21, 106], [33, 34, 35, 36, 37, 38, 39, 40]]
SEEDS = [11, 12, 13, 14, 15]
SAMPLING: dict[str, Any] = {"gen_length": 24, "temperature": 1.0}


@pytest.fixture(scope="module")
def loaded() -> tuple[MaskedDiffusionLM, int]:
    """The model in float64, and a token of the second block of some of its rollouts."""
    model = load_model(GOLDEN, dtype=torch.float64)
    model.eos_id = 2
    return model, int(rollout(model, PROMPTS, SamplerConfig(**SAMPLING), SEEDS).tokens[1, BLOCK + 2])


@pytest.fixture
def model(loaded: tuple[MaskedDiffusionLM, int]) -> MaskedDiffusionLM:
    """In float64. That token is the EOS, so that rows end at different blocks."""
    model, eos_id = loaded
    model.zero_grad()
    model.eos_id = eos_id
    return model


@pytest.fixture(scope="module")
def sampled(loaded: tuple[MaskedDiffusionLM, int]) -> Callable[..., Trajectory]:
    """Rollouts of the prompts under changed settings, made once for all tests."""

    @functools.cache
    def made(**changes: Any) -> Trajectory:
        model, eos_id = loaded
        model.eos_id = eos_id
        return rollout(model, PROMPTS, SamplerConfig(**SAMPLING, **changes), SEEDS)

    return made


def policies(model: MaskedDiffusionLM) -> dict[str, Any]:
    return dict.fromkeys((CURRENT, OLD, BASE), model)


@pytest.mark.parametrize("store_blocks", [True, False])
@pytest.mark.parametrize("case", range(4))
def test_the_sampler_gives_the_golden_tokens_at_the_golden_forwards(case: int, store_blocks: bool):
    run = json.loads((GOLDEN / "expected.json").read_text())["cases"][case]
    model = load_model(GOLDEN)
    sampler = SamplerConfig(gen_length=run["gen_length"], threshold=run["threshold"])
    found = rollout(model, [run["prompt"]], sampler, [0], store_blocks=store_blocks)
    assert found.tokens[0].tolist() == run["tokens"]
    assert found.in_rounds().reveal_step[0].tolist() == [forward for block in run["reveal"] for forward in block]
    # The causal passes, which reveal a token each, count here.
    assert int(found.nfe[0]) == int(found.scheduled_steps[0]) == run["forwards"] + len(run["reveal"])


SETTINGS: list[dict[str, Any]] = [
    {},
    {"threshold": 0.3, "early_stop": "eos"},
    {"first_token": "masked", "threshold": 0.3},
    {"first_token": "masked", "remasking": "random", "steps": 12},
    {"remasking": "low_confidence_static", "steps": 6, "top_k": 20},
    {"remasking": "sequential", "temperature": 0.7, "first_token": "causal"},
    {"alg": "origin", "steps": 48},
    {"early_stop": "both", "early_stop_threshold": 0.15},
]


@pytest.mark.parametrize("settings", soon(SETTINGS, 0, 7))
def test_a_row_is_the_same_alone_together_refilled_and_without_stored_blocks(
    model: MaskedDiffusionLM, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]
):
    sampler = SamplerConfig(**{**SAMPLING, **settings})
    together = rollout(model, PROMPTS, sampler, SEEDS)
    assert len(set(together.nfe.tolist())) > 1  # else rows would leave and enter together
    assert together.structure == Structure(BLOCK, causal=True)
    every = [0, 1, 2, 3, 4]
    plain = rollout(model, PROMPTS, sampler, SEEDS, store_blocks=False)
    assert_same_rows(plain, together, every, but=("queries",))
    assert bool((together.queries < plain.queries).all())
    # A few rows at a time: when one is finished, the next prompt takes its place while others are still in flight.
    assert_same_rows(rollout(model, PROMPTS[::-1], sampler, SEEDS[::-1], rollout_tokens=24), together, every[::-1])
    assert_same_rows(rollout(model, PROMPTS[2:3], sampler, SEEDS[2:3]), together, [2])
    # On a GPU finished rows are looked for now and then.
    monkeypatch.setattr("lfpo.core.denoise.LOOK_EVERY", {"cpu": 4})
    monkeypatch.setattr(torch.Tensor, "is_cuda", True, raising=False)
    assert_same_rows(rollout(model, PROMPTS, sampler, SEEDS, rollout_tokens=24), together, every)


def test_the_first_token_is_the_causal_prediction_of_what_stands_before_it(model: MaskedDiffusionLM):
    t = rollout(model, PROMPTS[:1], SamplerConfig(gen_length=16), [0])
    row = torch.tensor([PROMPTS[0] + t.tokens[0].tolist()])
    with torch.no_grad():
        logits = model.head(model.hidden(row, structure=CAUSAL))[0]
    logits[:, model.mask_id] = -torch.inf
    for first in (0, BLOCK):
        before = len(PROMPTS[0]) + first - 1
        assert int(t.tokens[0, first]) == int(logits[before].argmax())
        block = t.in_rounds().reveal_step[0, first : first + BLOCK]
        assert int(block[0]) == 0 and sorted(block.tolist()) == list(range(BLOCK))
    masked = rollout(model, PROMPTS[:1], SamplerConfig(gen_length=16, first_token="masked"), [0])
    assert sorted(masked.in_rounds().reveal_step[0].tolist()) == sorted([*range(BLOCK)] * 2)
    # One token more comes from each block's own forwards, and causal passes that reveal nothing are not counted.
    assert masked.nfe.tolist() == t.nfe.tolist() == [16]
    assert int(masked.queries[0]) == len(PROMPTS[0]) + (16 + 1) * BLOCK
    assert int(t.queries[0]) == len(PROMPTS[0]) + (16 - 1) * BLOCK


def test_blocks_of_one_token_are_autoregressive_decoding(model: MaskedDiffusionLM):
    t = rollout(model, PROMPTS[:1], SamplerConfig(gen_length=6, block_length=1), [0])
    row = list(PROMPTS[0])
    for token in t.tokens[0].tolist():
        with torch.no_grad():
            logits = model.head(model.hidden(torch.tensor([row]), structure=CAUSAL))[0, -1]
        logits[model.mask_id] = -torch.inf
        assert int(logits.argmax()) == token
        row.append(token)


def test_early_stop_eos_ends_a_row_inside_its_block(model: MaskedDiffusionLM):
    sampler = SamplerConfig(**SAMPLING, threshold=0.3)
    whole, ended = (
        rollout(model, PROMPTS, s, SEEDS) for s in (sampler, dataclasses.replace(sampler, early_stop="eos"))
    )
    assert bool(whole.has_eos.any())
    for row in whole.has_eos.nonzero().flatten().tolist():
        assert whole.completion_ids()[row] == ended.completion_ids()[row]
        shown = ended.reveal_step[row] >= 0
        assert ended.tokens[row][shown].tolist() == whole.tokens[row][shown].tolist()
        assert int(ended.nfe[row]) <= int(whole.nfe[row])


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"editing_threshold": 0.5, "remasking": "low_confidence_dynamic", "threshold": 0.5}, "not trained to revise"),
        ({"cache": "dual", "block_length": 4}, "cache 'dual' is for models with full attention"),
    ],
)
def test_settings_that_do_not_go_with_it_are_refused(model: MaskedDiffusionLM, changes: dict[str, Any], said: str):
    with pytest.raises(UserError, match=said):
        rollout(model, PROMPTS, SamplerConfig(**{**SAMPLING, **changes}), SEEDS)


def test_first_token_is_refused_without_a_causal_context(tmp_path: Path):
    for block_length in (None, 4):
        other = load_model(write_llada(tmp_path / str(block_length), block_length=block_length))
        with pytest.raises(UserError, match="first_token 'masked' is for models with a causal context, and llada"):
            rollout(other, PROMPTS, SamplerConfig(gen_length=8, first_token="masked"), SEEDS)


def views_for(name: str, t: Trajectory, **knobs: Any) -> Views:
    signal = torch.ones(len(t), dtype=torch.float64)
    return make_objective({"name": name, **knobs}).views(t.in_rounds(), signal, range(len(t)), 0)


@pytest.mark.parametrize("first_token", ["causal", "masked"])
@pytest.mark.parametrize(
    ("name", "knobs"),
    [("cj_grpo", {"after_eos": True}), ("egspo", {"steps": 99}), ("agrpo", {}), ("justgrpo", {})],
)
def test_a_replay_gives_the_probabilities_that_the_sampler_drew_with(
    name: str, knobs: dict[str, Any], first_token: str, model: MaskedDiffusionLM, sampled: Callable[..., Trajectory]
):
    t = sampled(first_token=first_token, **({"remasking": "sequential"} if name == "justgrpo" else {"threshold": 0.2}))
    views, rounds = views_for(name, t, **knobs), t.in_rounds()
    view, column = views.target.nonzero().unbind(-1)
    row, place = views.row[view], column - t.prompt_ids.shape[1]
    step = rounds.reveal_step[row, place]
    assert name == "justgrpo" or torch.equal(step, views.state[view])
    logp = Predictions(views, policies(model)).logp().detach()
    torch.testing.assert_close(logp, t.confidence[row, place].double().log(), rtol=0, atol=1e-5)
    every = int(t.scored(after_eos=True).sum())
    assert len(logp) == every or name == "agrpo"
    assert len({*zip(row.tolist(), place.tolist(), strict=True)}) == len(logp)
    first = place % BLOCK == 0
    assert isinstance(views, BlockViews)
    assert bool((views.from_clean is not None) == (first_token == "causal"))
    if views.from_clean is not None:
        assert torch.equal(views.from_clean[views.target], first)


@pytest.mark.parametrize("first_token", ["causal", "masked"])
def test_block_justgrpo_multiplies_the_probabilities_of_its_steps(
    first_token: str, model: MaskedDiffusionLM, sampled: Callable[..., Trajectory]
):
    """block_size passes; a rollout's log-probability is the sum of those recorded at its steps, and of those of the
    states that the sampler met, one token after the other."""
    t = sampled(remasking="sequential", first_token=first_token)
    views = views_for("justgrpo", t)
    assert all(int((views.row == row).sum()) == BLOCK for row in range(len(t)))
    found = torch.zeros(len(t), dtype=torch.float64)
    logp_T = Predictions(views, policies(model)).logp().detach()
    found.index_add_(0, views.row[views.target.nonzero()[:, 0]], logp_T)
    scored = t.scored(after_eos=True)
    recorded = t.confidence.double().log().masked_fill(~scored, 0).sum(-1)
    torch.testing.assert_close(found, recorded, rtol=0, atol=1e-5)
    by_hand = 0.0
    for place in range(int(scored[1].sum())):
        start = place - place % BLOCK
        context, own = PROMPTS[1] + t.tokens[1, :start].tolist(), t.tokens[1, start:place].tolist()
        block = own + [model.mask_id] * (BLOCK - len(own))
        clean, prompt = torch.tensor([context + block]), torch.tensor([len(context)])
        with torch.no_grad():
            noised, causal = noised_hidden(
                model, clean, clean, torch.ones_like(clean), prompt, structure=training_structure(model)
            )
            led = first_token == "causal" and place == start
            state = causal[0, len(context) - 1] if led else noised[0, place - start]
            by_hand += float(model.head(state).log_softmax(-1)[t.tokens[1, place]])
    assert float(found[1]) == pytest.approx(by_hand, abs=1e-9)


def test_fast_block_justgrpo_scores_the_least_confident_quarter_of_each_block(
    model: MaskedDiffusionLM, sampled: Callable[..., Trajectory]
):
    t = sampled(remasking="sequential")
    views = views_for("justgrpo", t, token_fraction=0.25)
    assert len(views) == 2 * len(t)  # a quarter of eight tokens
    width = t.prompt_ids.shape[1]
    for row in range(len(t)):
        chosen = views.target[views.row == row][:, width:].sum(0)
        for start in range(0, int((t.reveal_step[row] >= 0).sum()), BLOCK):
            own = slice(start, start + BLOCK)
            lowest = t.confidence[row, own].argsort(stable=True)[:2].sort().values
            assert chosen[own].nonzero().flatten().tolist() == lowest.tolist()
    # The same tokens have the same probabilities as in all views.
    whole = Predictions(views_for("justgrpo", t), policies(model))
    at = {
        (int(r), int(c)): float(x)
        for r, c, x in zip(whole.views.row[whole.view_T], whole.column_T, whole.logp().detach(), strict=True)
    }
    some = Predictions(views, policies(model))
    for r, c, x in zip(views.row[some.view_T], some.column_T, some.logp().detach(), strict=True):
        assert float(x) == pytest.approx(at[int(r), int(c)], abs=1e-9)


@pytest.mark.parametrize("first_token", ["causal", "masked"])
@pytest.mark.parametrize("states", ["noised", "stratified"])
def test_lfpo_shows_first_tokens_and_predicts_them_from_the_context(
    states: str, first_token: str, model: MaskedDiffusionLM, sampled: Callable[..., Trajectory]
):
    t = sampled(threshold=0.2, first_token=first_token)
    views, width = views_for("lfpo", t, states=states, timesteps=3), t.prompt_ids.shape[1]
    hidden = (views.input_ids == model.mask_id)[:, width:] & views.attention_mask[:, width:].bool()
    first = torch.arange(24) % BLOCK == 0
    assert bool(hidden[:, ~first].any()) and bool(hidden[:, first].any()) == (first_token == "masked")
    assert bool(views.target[:, width:][:, first].any())
    assert bool((views.target[:, width:] & ~hidden & ~first).sum() == 0)
    # What a target is predicted from, alone: the context, and of its own block what is shown.
    predictions = Predictions(views, policies(model))
    logits, alone = predictions.logits().detach(), dict[tuple[int, int], tuple[torch.Tensor, torch.Tensor]]()
    for at in range(0, len(logits), 7):
        view, column = int(predictions.view_T[at]), int(predictions.column_T[at])
        start = width - int(views.prompt[view])
        place = column - width
        block = width + place - place % BLOCK
        if (view, block) not in alone:
            clean = views.labels[view : view + 1, start:block]
            shown = torch.cat([clean, views.input_ids[view : view + 1, block : block + BLOCK]], dim=1)
            with torch.no_grad():
                alone[view, block] = noised_hidden(
                    model,
                    shown,
                    shown,
                    torch.ones_like(shown),
                    torch.tensor([block - start]),
                    structure=training_structure(model),
                )
        noised, causal = alone[view, block]
        led = first_token == "causal" and place % BLOCK == 0
        state = causal[0, block - start - 1] if led else noised[0, place % BLOCK]
        torch.testing.assert_close(logits[at], model.head(state).detach(), rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", soon(["lfpo", "agrpo", "trace_rl", "espo", "justgrpo", "rejection"], 0, 2, 4))
def test_a_gradient_does_not_depend_on_passes_or_batch_mates(
    name: str, model: MaskedDiffusionLM, sampled: Callable[..., Trajectory]
):
    t = sampled(remasking="sequential")
    objective = make_objective({"name": name, "num_iterations": 1})
    signal = objective.signal(torch.tensor([1.0, 0.0, 1.0, 0.0, 1.0], dtype=torch.float64), torch.zeros(5).long())
    gradients = []
    for budget in (10_000, 1):
        model.zero_grad()
        views = objective.views(t.in_rounds(), signal, SEEDS, 0)
        accumulate_gradients(objective, policies(model), views, signal, update_tokens=budget)
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]))
    assert gradients[0].norm() > 0
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-8, atol=1e-10)


def test_objectives_that_need_full_attention_are_refused():
    sampler = SamplerConfig(**SAMPLING).for_length(24, BLOCK)
    for name in ("spg", "stable_drl", "mask_aware", "mdpo", "justgrpo"):
        with pytest.raises(UserError, match="needs"):
            check_rollouts(make_objective({"name": name}), sampler, trained_block=BLOCK)
    left_to_right = SamplerConfig(**SAMPLING, remasking="sequential").for_length(24, BLOCK)
    check_rollouts(make_objective({"name": "justgrpo", "token_fraction": 0.25}), left_to_right, trained_block=BLOCK)
    two_at_once = SamplerConfig(**SAMPLING, remasking="sequential", steps=12).for_length(24, BLOCK)
    with pytest.raises(UserError, match="one at a time from left to right"):
        check_rollouts(make_objective({"name": "justgrpo"}), two_at_once, trained_block=BLOCK)


@pytest.mark.parametrize("update_tokens", [10_000, 1])
def test_supervised_loss_is_the_masked_one_and_that_of_each_next_token(model: MaskedDiffusionLM, update_tokens: int):
    """0.3 times the mean over the completion of the masked tokens' loss over t, and the mean causal loss up to the
    first EOS; both computed from the definition, row by row."""
    model.eos_id = 2
    examples = [([5, 6, 7], [20, 21, 22, 23, 24, 25, 2, 2]), ([8] * 9, [*range(30, 45), 2])]
    config = SFTConfig(
        output_dir="unused", model="unused", tasks={"choice": 1.0}, batch_size=2, update_tokens=update_tokens
    )
    loss = accumulate_sft_gradients(model, config, dict(enumerate(examples)), generator(3, "t"))
    gradient = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    model.zero_grad()
    rng = generator(3, "t")
    t_B = (torch.arange(2) + torch.rand((), generator=rng)) / 2
    t_B = t_B.clamp(min=1e-3)[torch.randperm(2, generator=rng)]
    root, expected = int(torch.randint(2**62, (), generator=rng)), torch.zeros((), dtype=torch.float64)
    for i, (prompt, completion) in enumerate(examples):
        size, first, clean = len(completion), len(prompt), torch.tensor([prompt + completion])
        masked = torch.rand(size, generator=generator(root, i)) < t_B[i]
        hide = torch.cat([torch.zeros(first).bool(), masked])
        noised, causal = noised_hidden(
            model,
            *(clean.masked_fill(hide, model.mask_id), clean, torch.ones_like(clean), torch.tensor([first])),
            structure=training_structure(model),
        )
        cross_entropy = torch.nn.functional.cross_entropy
        labels = clean[0, first:]
        in_block = cross_entropy(model.head(noised[0, -size:]), labels, reduction="none")
        after = cross_entropy(model.head(causal[0, first - 1 : -1]), labels, reduction="none")
        through = completion.index(2) + 1
        expected = expected + 0.3 * in_block[masked].sum() / (t_B[i] * size) / 2 + after[:through].mean() / 2
    expected.backward()
    assert loss == pytest.approx(expected.item(), rel=1e-6)
    again = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    assert (gradient - again).norm() < 1e-6 * again.norm()  # weights of tokens are float32
    model.zero_grad()


def test_completions_end_with_blocks_of_their_own(model: MaskedDiffusionLM):
    model.eos_id = 2
    assert sampled_length([1] * 5, [7, 8, 2, 2, 2, 2, 2, 2, 2], model) == BLOCK
    assert sampled_length([1] * 8, [7] * 8 + [2], model) == 2 * BLOCK
    assert rollout(model, PROMPTS, SamplerConfig(gen_length=13), SEEDS).tokens.shape[1] == 2 * BLOCK


@torch.no_grad()
def test_the_bound_of_an_answer_is_that_of_its_masked_blocks(model: MaskedDiffusionLM):
    """By every way of masking its two tokens, after the causal prompt."""
    prompt, answer = PROMPTS[0], [7, 8]

    def logp(shown: list[int]) -> torch.Tensor:
        """Of the answer's tokens, with those of `shown` that are not the mask."""
        row = torch.tensor([prompt + shown + [model.mask_id] * (BLOCK - 2)])
        noised, _ = noised_hidden(
            model, row, row, torch.ones_like(row), torch.tensor([len(prompt)]), structure=training_structure(model)
        )
        return model.head(noised[0, :2]).log_softmax(-1)[torch.arange(2), torch.tensor(answer)]

    first, second, both = logp([model.mask_id, 8])[0], logp([7, model.mask_id])[1], logp([model.mask_id] * 2).sum()
    (bound,) = likelihood_bounds(model, [Pair(prompt, answer, 0)], mc_num=4)
    assert bound == pytest.approx(float(first + second + both) / 2, abs=1e-9)


@pytest.mark.parametrize("first_token", ["causal", "masked"])
def test_flops_and_plans_count_what_a_rollout_runs(
    first_token: str, model: MaskedDiffusionLM, monkeypatch: pytest.MonkeyPatch
):
    shapes, positions, head = count_forwards(model, monkeypatch), list[int](), model.head

    def counting_head(x: torch.Tensor) -> torch.Tensor:
        positions.append(len(x))
        return head(x)

    monkeypatch.setattr(model, "head", counting_head)
    model.eos_id = 159  # not drawn here
    sampler = SamplerConfig(**SAMPLING, first_token=first_token)
    t = rollout(model, PROMPTS, sampler, SEEDS)
    assert not bool(t.has_eos.any()) and shapes
    lengths = t.prompt_mask.sum(-1) + 24 / 2
    assert rollout_flops(model, t) == pytest.approx(forward_flops(model, lengths, sum(positions), t.queries))
    forwards, tokens = sampling_work(sampler.for_length(24, BLOCK), 5, False, structure=model.structure)
    assert (forwards, tokens) == (int(t.nfe[0]), int(t.queries[0]))
    work = count(make_objective({"name": "lfpo"}), sampler.for_length(24, BLOCK), structure=model.structure)
    assert work.views == 1 and 0 < work.targets <= 24


def test_every_objective_that_is_taken_is_counted(model: MaskedDiffusionLM):
    sampler = SamplerConfig(**SAMPLING, remasking="sequential").for_length(24, BLOCK)
    for name in set(OBJECTIVES) - {"spg", "stable_drl", "mask_aware", "mdpo"}:
        knobs = {"p_mask_prompt": 0.0} if name in ("diffu_grpo", "wd1") else {}
        assert count(make_objective({"name": name, **knobs}), sampler, structure=model.structure).views > 0
