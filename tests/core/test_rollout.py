import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lfpo.config.build import build
from lfpo.config.errors import UserError
from lfpo.config.sampler import SamplerConfig
from lfpo.core.compiled import bucket
from lfpo.core.forward import FORWARD_TOKENS, pieces
from lfpo.core.rng import uniform
from lfpo.core.rule import PLAN, Proposal, Reveal, Rule
from lfpo.core.structure import FULL
from lfpo.core.trajectory import Trajectory
from lfpo.models import MaskedDiffusionLM, load_model
from lfpo.rollout.reveal.published import dynamic, origin_steps
from lfpo.rollout.reveal.rules import probability
from lfpo.rollout.sampling import rollout
from reference_sampler import dream_generate, generate
from rollout_cases import assert_same_rows, blocks_of_code, count_forwards
from soon import soon
from tiny import write_dream


@pytest.fixture
def model(checkpoint: Path) -> MaskedDiffusionLM:
    """Each family in float64, so that batched and single rows agree far below any gap between two logits. Its
    predictions are sharpened, so that rows need different numbers of forwards under the rules without a schedule."""
    model = load_model(checkpoint, dtype=torch.float64)
    model.backbone.lm_head.weight.data *= 4
    return model


PROMPTS = [[5, 6, 7, 8], [9, 10], [40, 41, 42, 43, 44, 45, 46], [100]]


@pytest.mark.parametrize("checkpoint", ["llada"], indirect=True)
@pytest.mark.parametrize(("steps", "block", "cfg"), [(16, 16, 0.0), (6, 8, 0.0), (32, 8, 0.0), (16, 8, 1.5)])
def test_greedy_tokens_equal_the_published_procedure(model: MaskedDiffusionLM, steps: int, block: int, cfg: float):
    """Six steps in two blocks are three for 8 tokens: uneven counts."""
    sampler = SamplerConfig(gen_length=16, block_length=block, steps=steps, cfg_scale=cfg)
    batch = rollout(model, PROMPTS, sampler, [0] * 4)
    for row, prompt in enumerate(PROMPTS):
        expected = generate(model, prompt, steps=steps, gen_length=16, block_length=block, cfg_scale=cfg)
        assert batch.tokens[row].tolist() == expected
    assert batch.scheduled_steps.tolist() == [steps] * 4
    assert batch.nfe.tolist() == [min(steps, 16) * (2 if cfg else 1)] * 4  # guidance runs two forwards a step


@pytest.mark.parametrize("schedule", ["llada", "uniform"])
def test_idle_steps_run_no_forward_but_are_counted(model: MaskedDiffusionLM, schedule: Literal["llada", "uniform"]):
    sampler = SamplerConfig(gen_length=8, block_length=4, steps=32, schedule=schedule)
    result = rollout(model, PROMPTS, sampler, [0] * 4)
    assert result.nfe.tolist() == [8] * 4
    assert result.scheduled_steps.tolist() == [32] * 4
    expected = [0, 1, 2, 3] if schedule == "llada" else [3, 7, 11, 15]
    assert sorted(result.reveal_step[0, :4].tolist()) == expected
    assert sorted(result.reveal_step[0, 4:].tolist()) == [e + 16 for e in expected]


ROWS = [*PROMPTS, PROMPTS[0]]  # two of the same prompt share their first forward
SEEDS = [11, 12, 13, 14, 15]


def make_eos_common(model: MaskedDiffusionLM, sampler: SamplerConfig) -> None:
    """Make the token that is revealed soonest at a row's first position the EOS."""
    whole = rollout(model, ROWS, replace(sampler, early_stop="none"), SEEDS)
    model.eos_id = int(whole.tokens[whole.reveal_step[:, 0].argmin(), 0])


BATCHED: list[dict[str, Any]] = [
    {},
    {"remasking": "random", "block_length": 4},
    {"threshold": 0.4},
    {"early_stop": "both", "early_stop_threshold": 0.15, "block_length": 4},
    {"cfg_scale": 0.5},
    {"entropy_bound": 1.0, "early_stop": "eos"},
    {"rule": "tau_budget", "threshold": 0.2, "block_length": 4},
    {"rule": "plackett_luce", "alg_temp": 0.5, "steps": 4},
    {"alg": "origin", "block_length": 4},
    {"alg": "maskgit_plus", "top_k": 5, "steps": 16, "early_stop": "eos"},
    {"temperature": 0.0, "alg": "topk_margin", "steps": 6},
    {"alg": "entropy", "alg_temp": 0.5, "top_p": 0.9, "block_length": 4, "steps": 4},
    {"threshold": 0.4, "block_length": 4, "cache": "dual"},
    {"factor": 1.0, "block_length": 4, "cache": "prefix"},
    {"alg": "origin", "steps": 8, "cache": "prefix", "cache_refresh": 3, "block_length": 4, "early_stop": "eos"},
    {"steps": 16, "block_length": 4, "early_stop": "eos"},
    {"steps": 4, "block_length": 4, "cache": "dual", "cache_refresh": 2, "early_stop": "eos"},
]


@pytest.mark.parametrize(
    ("checkpoint", "settings"),
    soon(
        [*(("llada", settings) for settings in BATCHED), *(("dream", BATCHED[i]) for i in (0, 5, 12, 14))],
        *(0, 1, 4, 6, 9, 12, 14, 16, 17, 19, 21, 23),
    ),
    indirect=["checkpoint"],
)
def test_a_row_does_not_depend_on_its_batch_mates_nor_on_the_device(
    model: MaskedDiffusionLM, settings: dict, monkeypatch: pytest.MonkeyPatch
):
    sampler = SamplerConfig(**{"gen_length": 8, "temperature": 1.0, **settings})
    if sampler.stops_at_eos:
        make_eos_common(model, sampler)
    together = rollout(model, ROWS, sampler, SEEDS)
    if sampler.rule_keys.schedule is None or sampler.alg == "origin" or sampler.stops_at_eos:
        assert len(set(together.nfe.tolist())) > 1  # else rows would leave and enter together
    # Two rows at a time: when one is finished, the next prompt takes its place while the other is still in flight.
    refilled = rollout(model, ROWS[::-1], sampler, SEEDS[::-1], rollout_tokens=34)
    assert_same_rows(refilled, together, [4, 3, 2, 1, 0])
    for row in (1, 4):
        alone = rollout(model, [ROWS[row]], sampler, [SEEDS[row]])
        assert_same_rows(alone, together, [row])
    # On a GPU the device is not asked which positions are masked, nor which rows are finished if the plan says it.
    monkeypatch.setattr("lfpo.core.denoise.LOOK_EVERY", {"cpu": 4})
    monkeypatch.setattr(torch.Tensor, "is_cuda", True, raising=False)
    assert_same_rows(rollout(model, ROWS, sampler, SEEDS, rollout_tokens=34), together, [0, 1, 2, 3, 4])


def assert_published(model: MaskedDiffusionLM, steps: int, settings: dict[str, Any]) -> Trajectory:
    """Tokens and reveal steps are those of Dream's procedure."""
    batch = rollout(model, PROMPTS, SamplerConfig(gen_length=8, steps=steps, **settings), [0] * 4)
    for row in (0, 3):
        tokens, reveal = dream_generate(model, PROMPTS[row], steps=steps, gen_length=8, **settings)
        assert batch.tokens[row].tolist() == tokens
        assert batch.reveal_step[row].tolist() == reveal
    return batch


@pytest.fixture(scope="module")
def wide_dream(tmp_path_factory: pytest.TempPathFactory) -> MaskedDiffusionLM:
    """Dream in float64."""
    return load_model(write_dream(tmp_path_factory.mktemp("wide") / "dream"), dtype=torch.float64)


@pytest.mark.parametrize("steps", [8, 5, 24, 1])
@pytest.mark.parametrize(
    "settings", [{"alg": "maskgit_plus"}, {"alg": "topk_margin"}, {"alg": "entropy"}, {"alg": "entropy", "top_k": 3}]
)
def test_dreams_samplers_equal_the_published_procedure(wide_dream: MaskedDiffusionLM, settings: dict, steps: int):
    batch = assert_published(wide_dream, steps, settings)
    assert batch.scheduled_steps.tolist() == [steps] * 4
    assert batch.nfe.tolist() == [len(set(row)) for row in batch.reveal_step.tolist()]


@pytest.mark.parametrize("steps", [8, 3])
@pytest.mark.parametrize("alg", ["maskgit_plus", "topk_margin", "entropy"])
def test_positions_with_a_nucleus_of_one_token_tie_and_go_from_the_left(dream: Path, alg: Any, steps: int):
    """Their scores are exactly 1 (entropy: the same number), however sure the model is."""
    model = load_model(dream, dtype=torch.float64)
    model.backbone.lm_head.weight.data *= 20
    batch = assert_published(model, steps, {"alg": alg, "top_p": 0.8})
    assert ((batch.confidence > 0.8) & (batch.confidence < 1)).sum() >= 8  # nuclei of one token, not ties by confidence


@pytest.mark.parametrize(("steps", "eps"), [(6, 1e-3), (40, 0.2)])
def test_origin_reveals_each_position_at_the_step_drawn_for_it(model: MaskedDiffusionLM, steps: int, eps: float):
    sampler = SamplerConfig(gen_length=12, block_length=6, steps=steps, alg="origin", eps=eps, temperature=1.0)
    result = rollout(model, PROMPTS, sampler, [3, 4, 5, 6])
    noise = uniform(torch.tensor([[3], [4], [5], [6]]), PLAN, torch.arange(12))
    plan = origin_steps(noise, steps // 2, eps) + torch.tensor([0] * 6 + [steps // 2] * 6)
    assert result.reveal_step.tolist() == plan.tolist()
    assert not bool((result.tokens == model.mask_id).any())
    assert result.nfe.tolist() == [len(set(row)) for row in plan.tolist()]
    assert result.scheduled_steps.tolist() == [steps] * 4
    other = rollout(model, PROMPTS, sampler, [7, 8, 9, 10])
    assert not torch.equal(other.reveal_step, result.reveal_step)


@pytest.mark.parametrize(
    "settings", [{}, {"cfg_scale": 1.0}, {"cache": "dual", "block_length": 2}, {"cache": "prefix", "cache_refresh": 1}]
)
def test_rows_with_one_prompt_share_their_first_forward(
    model: MaskedDiffusionLM, monkeypatch: pytest.MonkeyPatch, settings: dict
):
    shapes = count_forwards(model, monkeypatch)
    sampler = SamplerConfig(gen_length=4, temperature=1.0, **settings)
    # Guidance runs two forwards a step; with the dual cache whole rows only when a block starts.
    each, states = (2 if sampler.cfg_scale else 1), (2 if sampler.cache == "dual" else 4)
    result = rollout(model, [[5, 6, 7]] * 8, sampler, range(8))
    assert [n for n, _ in shapes] == each * [1] + (states - 1) * each * [8]
    assert len(set(map(tuple, result.tokens.tolist()))) > 1  # each row still draws its own tokens
    shapes.clear()
    rollout(model, [[5, 6, 7]] * 4 + [[5, 6]] + [[8, 6, 7]] * 3, sampler, range(8))
    assert shapes[0][0] == 3
    if not settings:  # rows that enter later share it too
        shapes.clear()
        rollout(model, [[5, 6, 7]] * 6, sampler, range(6), rollout_tokens=21)
        assert [n for n, _ in shapes] == [1, 3, 3, 3, 1, 3, 3, 3]


@given(st.lists(st.integers(1, 40), min_size=1, max_size=8), st.integers(1, 200), st.sampled_from([1, 4]))
def test_the_pieces_are_the_cheapest(lengths: list[int], budget: int, step: int):
    def cost(slices: list[slice]) -> float:
        total = 0
        for s in slices:
            rows, longest = len(lengths[s]), max(lengths[s])
            if rows > 1 and rows * longest > budget:
                return math.inf
            total += FORWARD_TOKENS
            total += rows * longest if step == 1 else bucket(rows) * (longest + -longest % step)
        return total

    found = pieces(tuple(lengths), budget, step)
    assert [i for piece in found for i in range(len(lengths))[piece]] == list(range(len(lengths)))
    n = len(lengths)
    for cuts in itertools.product([False, True], repeat=n - 1):
        ends = [0, *(i + 1 for i, cut in enumerate(cuts) if cut), n]
        assert cost(found) <= cost([slice(a, b) for a, b in itertools.pairwise(ends)])


def test_buckets_of_rows():
    assert [bucket(n) for n in range(1, 14)] == [1, 2, 3, 4, 6, 6, 8, 8, 12, 12, 12, 12, 16]


def test_short_rows_are_not_padded_to_the_longest(model: MaskedDiffusionLM, monkeypatch: pytest.MonkeyPatch):
    sampler = SamplerConfig(gen_length=4, temperature=1.0)
    expected = rollout(model, PROMPTS, sampler, [0] * 4)
    shapes = count_forwards(model, monkeypatch)
    monkeypatch.setattr("lfpo.core.forward.PIECE_TOKENS", {"cpu": 16})
    assert_same_rows(rollout(model, PROMPTS, sampler, [0] * 4), expected, [0, 1, 2, 3])
    # Prompts of 7, 4, 2 and 1 and 4 tokens each: at most 16 together, and the last two are padded least.
    assert shapes == [(1, 11), (1, 8), (2, 6)] * 4


@pytest.mark.parametrize("settings", [{"temperature": 1.0}, {"alg": "entropy", "temperature": 0.5, "top_k": 4}])
def test_confidence_and_entropy_are_the_models_own_where_the_token_was_drawn(model: MaskedDiffusionLM, settings: dict):
    result = rollout(model, PROMPTS[:2], SamplerConfig(gen_length=4, block_length=2, **settings), [1, 2])
    for row, prompt in enumerate(PROMPTS[:2]):
        for column, step in enumerate(result.reveal_step[row].tolist()):
            state = result.state_before(torch.full((2,), step))[row].tolist()
            with torch.no_grad():
                p = model(torch.tensor([prompt + state]))[0, len(prompt) + column].softmax(-1)
            sure = p[result.tokens[row, column]]
            assert result.confidence[row, column].item() == pytest.approx(sure.item(), rel=1e-5)
            assert result.entropy[row, column].item() == pytest.approx(-(p * p.log()).sum().item(), rel=1e-5)


class Scripted(MaskedDiffusionLM):
    """Not a network: position j of the completion always predicts script[j] with the given probability."""

    def __init__(self, base: MaskedDiffusionLM, script: list[int], sure: list[float]):
        torch.nn.Module.__init__(self)
        self.backbone, self.mask_id, self.eos_id, self.pad_id = base.backbone, base.mask_id, base.eos_id, base.pad_id
        self.script, self.sure = script, sure
        self.block_length, self.head_precision = None, "auto"
        self.causal_context = False
        self.vocab_size, self.max_length, self.family = base.vocab_size, base.max_length, base.family

    def hidden(self, input_ids_BL, attention_mask_BL=None, cache=None, *, structure=FULL, run=None):
        """Its states are the logits themselves."""
        length = len(self.script)
        logits = torch.zeros(*input_ids_BL.shape, self.vocab_size)
        for j, (token, p) in enumerate(zip(self.script, self.sure, strict=True)):
            at = input_ids_BL.shape[1] - length + j
            logits[:, at, token] = float(torch.tensor(p * (self.vocab_size - 1) / (1 - p)).log())
        return logits

    def head(self, hidden):
        return hidden


def test_eos_stop_ends_when_everything_before_it_is_revealed(llada: Path):
    base = load_model(llada)
    eos = base.eos_id
    model = Scripted(base, [5, eos, 6, 7], [0.5, 0.9, 0.8, 0.7])
    result = rollout(model, [[1, 2]], SamplerConfig(gen_length=4, early_stop="eos"), [0])
    # Order of confidence is EOS, third, fourth, first: the first position comes last and only then the row may end.
    assert result.reveal_step.tolist() == [[3, 0, 1, 2]]
    sooner = Scripted(base, [5, eos, 6, 7], [0.95, 0.9, 0.8, 0.7])
    result = rollout(sooner, [[1, 2]], SamplerConfig(gen_length=4, early_stop="eos"), [0])
    assert result.reveal_step.tolist() == [[0, 1, -1, -1]]
    assert result.tokens.tolist() == [[5, eos, base.pad_id, base.pad_id]]
    assert result.scheduled_steps.tolist() == [2]
    assert result.lengths.tolist() == [2]
    assert result.confidence[0, 2:].tolist() == [0.0, 0.0]


def test_confidence_stop_commits_the_block_and_saves_its_steps(llada: Path):
    base = load_model(llada)
    model = Scripted(base, [5, 6, 7, 8], [0.95, 0.96, 0.95, 0.5])
    settings: dict[str, Any] = {"gen_length": 4, "block_length": 2, "steps": 8, "schedule": "uniform"}
    sampler = SamplerConfig(**settings, early_stop="confidence", early_stop_threshold=0.9)
    result = rollout(model, [[1, 2]], sampler, [0])
    # Block 1 is confident at step 0. Block 2 is not at step 1; its first scheduled reveal is at the second of its four
    # steps (step 2) and takes the confident token. The other stays below the threshold and is revealed as scheduled.
    assert result.reveal_step.tolist() == [[0, 0, 2, 4]]
    assert result.scheduled_steps.tolist() == [5]
    assert result.nfe.tolist() == [3]
    plain = rollout(model, [[1, 2]], SamplerConfig(**settings), [0])
    assert (plain.scheduled_steps.tolist(), plain.nfe.tolist()) == ([8], [4])


def test_the_rule_in_contributing_works_from_outside_the_package(
    llada: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "left_to_right.py").write_text(blocks_of_code("Add a reveal rule")[0], encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    model = Scripted(load_model(llada), [5, 6, 7, 8, 9, 10], [0.3, 0.9, 0.5, 0.6, 0.7, 0.8])
    sampler = SamplerConfig(gen_length=6, block_length=3, steps=4, rule="left_to_right:left_to_right")
    result = rollout(model, [[1, 2]], sampler, [0])
    # Two steps for each block of three: the schedule reveals 2 and 1.
    assert result.tokens.tolist() == [[5, 6, 7, 8, 9, 10]]
    assert result.reveal_step.tolist() == [[0, 0, 1, 2, 2, 3]]
    assert (result.nfe.tolist(), result.scheduled_steps.tolist()) == ([4], [4])
    idle = rollout(model, [[1, 2]], replace(sampler, steps=10, schedule="uniform"), [0])
    assert idle.reveal_step.tolist() == [[1, 3, 4, 6, 8, 9]]
    assert (idle.nfe.tolist(), idle.scheduled_steps.tolist()) == ([6], [10])


QUOTA = Rule(dynamic, needs="threshold", reads=("threshold",), score=probability)


def test_a_rule_with_keys_and_a_score_of_its_own(llada: Path):
    """As block-diffusion models decode: a threshold with a quota, on confidences after temperature."""
    model = Scripted(load_model(llada), [5, 6, 7, 8, 9, 10], [0.6, 0.95, 0.9, 0.5, 0.4, 0.3])
    settings: dict[str, Any] = {"gen_length": 6, "block_length": 3, "steps": 6, "rule": "test_rollout:QUOTA"}
    result = rollout(model, [[1, 2]], SamplerConfig(**settings, threshold=0.8), [0])
    assert result.reveal_step.tolist() == [[1, 0, 0, 2, 3, 4]]
    assert (result.nfe.tolist(), result.scheduled_steps.tolist()) == ([5], [5])
    # At temperature 0.2 all positions are nearly certain.
    sure = SamplerConfig(**settings, threshold=0.9, temperature=0.2)
    assert rollout(model, [[1, 2]], sure, [0]).reveal_step.tolist() == [[0, 0, 0, 1, 1, 1]]
    with pytest.raises(UserError, match="the reveal rule 'test_rollout:QUOTA' needs a number for threshold"):
        build(SamplerConfig, settings, "sampler")


def reveal_all(step: Proposal) -> Reveal:
    return Reveal(torch.ones_like(step.eligible))


def reveal_never(step: Proposal) -> Reveal:
    return Reveal(torch.zeros_like(step.eligible))


def test_only_eligible_positions_are_revealed_and_a_rule_that_reveals_nothing_is_an_error(llada: Path):
    model = Scripted(load_model(llada), [5, 6, 7, 8], [0.6, 0.95, 0.9, 0.5])
    result = rollout(model, [[1, 2]], SamplerConfig(gen_length=4, block_length=2, rule="test_rollout:reveal_all"), [0])
    assert result.tokens.tolist() == [[5, 6, 7, 8]]
    assert result.reveal_step.tolist() == [[0, 0, 1, 1]]
    with pytest.raises(UserError, match="'test_rollout:reveal_never': no row was finished in 5 forwards"):
        rollout(model, [[1, 2]], SamplerConfig(gen_length=4, rule="test_rollout:reveal_never"), [0])


def reveal_mask(step: Proposal) -> torch.Tensor:
    return step.eligible


def reveal_counts(step: Proposal) -> Reveal:
    return Reveal(step.eligible.int())


def reveal_late(step: Proposal) -> Reveal:
    return Reveal(step.eligible, step.block_step[:, None])


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (reveal_mask, "returned Tensor, expected a Reveal"),
        (reveal_counts, r"positions must be a tensor \[1, 4\] torch.bool, found \[1, 4\] torch.int32"),
        (reveal_late, r"at_step must be a tensor \[1\] torch.int64, found \[1, 1\] torch.int64"),
    ],
)
def test_what_is_no_reveal_rule_is_named(rule: Callable[..., Any], expected: str, llada: Path):
    name = f"test_rollout:{rule.__name__}"
    with pytest.raises(UserError, match=f"rule '{name}'.*{expected}"):
        rollout(load_model(llada), [[1, 2]], SamplerConfig(gen_length=4, rule=name), [0])


@pytest.mark.parametrize(
    "settings",
    [{"alg": "maskgit_plus", "alg_temp": 0.25}, {"rule": "plackett_luce", "alg_temp": 2.0}, {"remasking": "random"}],
)
def test_positions_are_drawn_without_replacement(llada: Path, settings: dict):
    base = load_model(llada)
    sure = torch.tensor([0.8, 0.5, 0.2], dtype=torch.float64)
    model = Scripted(base, [5, 6, 7], sure.tolist())
    n = 3000
    sampler = SamplerConfig(gen_length=3, schedule="llada", **settings)
    orders = rollout(model, [[1, 2]] * n, sampler, list(range(n))).reveal_step.argsort(-1).tolist()
    score = sure / (1 - (1 - sure) / (base.vocab_size - 1))  # the mask token cannot be drawn
    weight = (score / 0.25).softmax(-1) if sampler.alg_temp else torch.full((3,), 1 / 3)
    weight = score.sqrt() / score.sqrt().sum() if sampler.rule else weight
    for order in itertools.permutations(range(3)):
        first, second, _ = (float(weight[i]) for i in order)
        expected = first * second / (1 - first)
        share = orders.count(list(order)) / n
        assert abs(share - expected) < 5 * (expected * (1 - expected) / n) ** 0.5


def test_bad_prompts_are_one_line_errors(llada: Path):
    model = load_model(llada)
    sampler = SamplerConfig(gen_length=4)
    for prompts, named in (
        ([], "no prompts"),
        ([[1], []], "prompt 1: it has no tokens"),
        ([[1, model.mask_id]], "mask token"),
        ([[1] * (model.max_length - 3)], "context"),
    ):
        with pytest.raises(UserError, match=named):
            rollout(model, prompts, sampler, [0] * len(prompts))
