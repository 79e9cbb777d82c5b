from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import pytest
import torch

from lfpo.errors import UserError
from lfpo.models import MaskedDiffusionLM, load_model
from lfpo.rollout import rollout
from lfpo.sampler import SamplerConfig
from reference_sampler import generate

PROMPTS = [[5, 6, 7, 8], [9, 10], [40, 41, 42, 43, 44, 45, 46], [100]]


@pytest.fixture
def model(checkpoint: Path) -> MaskedDiffusionLM:
    """Each family in float64: batched and single rows then agree far below any gap between two logits."""
    return load_model(checkpoint, dtype=torch.float64)


@pytest.mark.parametrize(
    ("steps", "block", "cfg"), [(16, 16, 0.0), (16, 4, 0.0), (4, 16, 0.0), (12, 8, 0.0), (64, 8, 0.0), (16, 8, 1.5)]
)
def test_greedy_tokens_equal_the_published_procedure(model: MaskedDiffusionLM, steps: int, block: int, cfg: float):
    if steps == 12:
        steps = 6  # 3 steps for 8 tokens: uneven counts
    sampler = SamplerConfig(gen_length=16, block_length=block, steps=steps, cfg_scale=cfg)
    batch = rollout(model, PROMPTS, sampler, [0] * 4)
    for row, prompt in enumerate(PROMPTS):
        expected = generate(model, prompt, steps=steps, gen_length=16, block_length=block, cfg_scale=cfg)
        assert batch.tokens[row].tolist() == expected
    assert batch.scheduled_steps.tolist() == [steps] * 4


@pytest.mark.parametrize("schedule", ["llada", "uniform"])
def test_idle_steps_run_no_forward_but_are_counted(model: MaskedDiffusionLM, schedule: Literal["llada", "uniform"]):
    sampler = SamplerConfig(gen_length=8, block_length=4, steps=32, schedule=schedule)
    result = rollout(model, PROMPTS, sampler, [0] * 4)
    assert result.nfe.tolist() == [8] * 4
    assert result.scheduled_steps.tolist() == [32] * 4
    expected = [0, 1, 2, 3] if schedule == "llada" else [3, 7, 11, 15]
    assert sorted(result.reveal_step[0, :4].tolist()) == expected
    assert sorted(result.reveal_step[0, 4:].tolist()) == [e + 16 for e in expected]


def test_both_schedules_give_the_same_greedy_tokens(model: MaskedDiffusionLM):
    samplers = [SamplerConfig(gen_length=8, steps=24, schedule=s) for s in ("llada", "uniform")]
    first, second = (rollout(model, PROMPTS, s, [0] * 4).tokens for s in samplers)
    assert torch.equal(first, second)


def test_guidance_counts_two_forwards(model: MaskedDiffusionLM):
    result = rollout(model, PROMPTS, SamplerConfig(gen_length=4, cfg_scale=1.0), [0] * 4)
    assert result.nfe.tolist() == [8] * 4


@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": 1.0},
        {"temperature": 0.7, "remasking": "random", "block_length": 4},
        {"temperature": 1.0, "threshold": 0.05},
        {"temperature": 1.0, "early_stop": "both", "early_stop_threshold": 0.02, "block_length": 4},
        {"temperature": 1.0, "cfg_scale": 0.5},
    ],
)
def test_a_row_does_not_depend_on_its_batch_mates(model: MaskedDiffusionLM, settings: dict):
    sampler = SamplerConfig(gen_length=12, **settings)
    seeds = [11, 12, 13, 14]
    together = rollout(model, PROMPTS, sampler, seeds)
    split = rollout(model, PROMPTS, sampler, seeds, rollout_tokens=20)
    reverse = rollout(model, PROMPTS[::-1], sampler, seeds[::-1])
    for row in range(4):
        alone = rollout(model, [PROMPTS[row]], sampler, [seeds[row]])
        for other, index in ((alone, 0), (split, row), (reverse, 3 - row)):
            for name in ("tokens", "reveal_step", "scheduled_steps", "nfe"):
                assert torch.equal(getattr(together, name)[row], getattr(other, name)[index]), name


def test_seeds_decide_the_noise(model: MaskedDiffusionLM):
    sampler = SamplerConfig(gen_length=12, temperature=1.0)
    same = rollout(model, [PROMPTS[0]] * 2, sampler, [1, 1])
    other = rollout(model, [PROMPTS[0]] * 2, sampler, [1, 2])
    assert torch.equal(same.tokens[0], same.tokens[1])
    assert not torch.equal(other.tokens[0], other.tokens[1])


@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": 1.0, "steps": 24, "schedule": "uniform", "block_length": 6},
        {"temperature": 1.0, "threshold": 0.05, "block_length": 6},
        {"temperature": 1.0, "early_stop": "confidence", "early_stop_threshold": 0.02, "steps": 24, "block_length": 6},
        {"temperature": 1.0, "early_stop": "eos"},
    ],
)
def test_a_trajectorys_state_is_what_the_sampler_saw(model: MaskedDiffusionLM, settings: dict):
    seen: list[tuple[int, int, list[int]]] = []

    def watch(rows: torch.Tensor, states: torch.Tensor, clocks: torch.Tensor) -> None:
        seen.extend(zip(rows.tolist(), clocks.tolist(), states.tolist(), strict=True))

    result = rollout(model, PROMPTS, SamplerConfig(gen_length=12, **settings), [3, 4, 5, 6], observer=watch)
    assert len(seen) == int(result.nfe.sum())
    for row, clock, state in seen:
        assert result.rows(torch.tensor([row])).state_before(torch.tensor([clock]))[0].tolist() == state


def test_temperature_draws_from_the_softmax(llada: Path):
    model = load_model(llada)
    with torch.no_grad():
        logits = model(torch.tensor([[5, 6, model.mask_id]]))[0, 2].double()
        logits[model.mask_id] = -torch.inf
        expected = (logits / 2).softmax(-1)
    n = 4000
    drawn = rollout(model, [[5, 6]] * n, SamplerConfig(gen_length=1, temperature=2.0), list(range(n))).tokens[:, 0]
    counts = torch.bincount(drawn, minlength=len(expected)).double() / n
    top = expected.topk(20).indices
    error = (expected * (1 - expected) / n).sqrt()
    assert bool(((counts - expected).abs() < 5 * error)[top].all())
    assert counts[model.mask_id] == 0


class Scripted(MaskedDiffusionLM):
    """Not a network: position j of the completion always predicts script[j] with the given probability."""

    def __init__(self, base: MaskedDiffusionLM, script: list[int], sure: list[float]):
        torch.nn.Module.__init__(self)
        self.backbone, self.mask_id, self.eos_id, self.pad_id = base.backbone, base.mask_id, base.eos_id, base.pad_id
        self.script, self.sure = script, sure

    def hidden(self, input_ids_BL, attention_mask_BL=None, memory=None):
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
    # Block 1 clears the bar in the state first met at step 0. Block 2 does not at step 1; its scheduled reveal is the
    # second of its four steps (step 2), which takes the sure token; the unsure one never clears and waits for the last.
    assert result.reveal_step.tolist() == [[0, 0, 2, 4]]
    assert result.scheduled_steps.tolist() == [5]
    assert result.nfe.tolist() == [3]
    plain = rollout(model, [[1, 2]], SamplerConfig(**settings), [0])
    assert (plain.scheduled_steps.tolist(), plain.nfe.tolist()) == ([8], [4])


def test_threshold_reveals_all_sure_tokens_at_once(llada: Path):
    base = load_model(llada)
    model = Scripted(base, [5, 6, 7, 8], [0.95, 0.5, 0.92, 0.4])
    result = rollout(model, [[1, 2]], SamplerConfig(gen_length=4, threshold=0.9), [0])
    assert result.reveal_step.tolist() == [[0, 1, 0, 2]]
    assert result.scheduled_steps.tolist() == result.nfe.tolist() == [3]


def test_bad_prompts_are_one_line_errors(llada: Path):
    model = load_model(llada)
    sampler = SamplerConfig(gen_length=4)
    for prompts, named in (
        ([], "no prompts"),
        ([[1], []], "prompt 1 has no tokens"),
        ([[1, model.mask_id]], "mask token"),
        ([[1] * (model.max_length - 3)], "context"),
    ):
        with pytest.raises(UserError, match=named):
            rollout(model, prompts, sampler, [0] * len(prompts))
