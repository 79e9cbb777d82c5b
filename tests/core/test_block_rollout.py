"""Rollouts of models that attend block by block: stored blocks change nothing, and what is stored is computed once."""

import dataclasses
import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch

import tiny
from benchmarks.plain_blocks import plain_block_rollout
from block_rollout_cases import SEEDS, count_graphs, count_tokens, edits_of
from lfpo.cli.command_line import main
from lfpo.config import sampler as sampler_module
from lfpo.config.errors import UserError
from lfpo.config.sampler import SamplerConfig
from lfpo.core.structure import Structure
from lfpo.core.trajectory import Trajectory
from lfpo.models import MaskedDiffusionLM, load_model
from lfpo.plan.flops import forward_flops, rollout_flops
from lfpo.rollout.sampling import rollout
from rollout_cases import assert_same_rows
from soon import soon


@pytest.fixture
def model(tmp_path: Path) -> MaskedDiffusionLM:
    """A random LLaDA that attends in blocks of 4, in float64, with sharpened predictions."""
    found = load_model(tiny.write_llada(tmp_path / "blocks", block_length=4), dtype=torch.float64)
    found.backbone.lm_head.weight.data *= 4
    return found


# Of 4, 2, 9, 1 and 4 tokens: in blocks of 4 they leave 0, 2, 1, 1 and 0 in the block that the completion begins in.
PROMPTS = [[5, 6, 7, 8], [9, 10], [40, 41, 42, 43, 44, 45, 46, 47, 48], [100], [5, 6, 7, 8]]


SETTINGS: list[dict[str, Any]] = [
    {},
    {"remasking": "random", "steps": 24},
    {"remasking": "low_confidence_static", "steps": 6, "top_k": 20},
    {"remasking": "low_confidence_dynamic", "threshold": 0.3, "steps": 6},
    {"remasking": "sequential", "temperature": 0.7},
    {"threshold": 0.3},
    {"alg": "origin", "steps": 24},
    {"alg": "entropy", "alg_temp": 0.5},
    {"early_stop": "eos"},
    {"early_stop": "both", "early_stop_threshold": 0.15},
    {"remasking": "low_confidence_dynamic", "threshold": 0.3, "editing_threshold": 0.05, "max_post_steps": 3},
]


def make_eos_common(model: MaskedDiffusionLM, sampler: SamplerConfig) -> None:
    """Make a token of the second block of some rollouts the EOS, so that rows end at different blocks."""
    whole = rollout(model, PROMPTS, sampler, SEEDS)
    model.eos_id = int(whole.tokens[0, 5])


@pytest.mark.parametrize("settings", soon(SETTINGS, 0, 9))
def test_a_row_is_the_same_alone_together_refilled_and_without_stored_blocks(
    model: MaskedDiffusionLM, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]
):
    sampler = SamplerConfig(**{"gen_length": 12, "temperature": 1.0, **settings})
    make_eos_common(model, sampler)
    together = rollout(model, PROMPTS, sampler, SEEDS)
    assert len(set(together.nfe.tolist())) > 1  # else rows would leave and enter together
    assert ("editing_threshold" in settings) == any(edits_of(together))

    def same(found: Trajectory, rows: list[int], *, but: tuple[str, ...] = ()) -> None:
        assert_same_rows(found, together, rows, but=but)
        assert edits_of(found) == [edits_of(together)[row] for row in rows]

    every = [0, 1, 2, 3, 4]
    plain = rollout(model, PROMPTS, sampler, SEEDS, store_blocks=False)
    same(plain, every, but=("queries",))
    assert bool((together.queries < plain.queries).all())
    # A few rows at a time: when one is finished, the next prompt takes its place while others are still in flight.
    told: dict[int, Any] = {}
    few = rollout(
        *(model, PROMPTS[::-1], sampler, SEEDS[::-1]),
        rollout_tokens=12,
        finished=lambda index, t: told.update(zip(index, edits_of(t), strict=True)),
    )
    same(few, every[::-1])
    assert [told[4 - row] for row in every] == edits_of(together)
    same(rollout(model, PROMPTS[2:3], sampler, SEEDS[2:3]), [2])
    # On a GPU the device is not asked which positions are masked, and finished rows are looked for now and then.
    monkeypatch.setattr("lfpo.core.denoise.LOOK_EVERY", {"cpu": 4})
    monkeypatch.setattr(torch.Tensor, "is_cuda", True, raising=False)
    same(rollout(model, PROMPTS, sampler, SEEDS, rollout_tokens=12), every)


@pytest.mark.parametrize("rows", [[0, 1, 2, 3, 4], [1, 3], [3]])
def test_with_the_logit_shift_a_first_block_has_no_token_before_it(model: MaskedDiffusionLM, rows: list[int]):
    """Prompts of two tokens and one, shorter than a block: no row of theirs has a column before the block."""
    model.family = dataclasses.replace(model.family, shift=True)
    sampler = SamplerConfig(gen_length=12, temperature=1.0)
    together = rollout(model, PROMPTS, sampler, SEEDS, store_blocks=False)
    found = rollout(model, [PROMPTS[row] for row in rows], sampler, [SEEDS[row] for row in rows])
    assert_same_rows(found, together, rows, but=("queries",))


def test_rows_end_with_the_whole_block_that_holds_gen_length(model: MaskedDiffusionLM):
    model.eos_id = model.pad_id = 263  # padding of the embedding matrix: its row is random, and it is never the best
    t = rollout(model, PROMPTS, SamplerConfig(gen_length=8), SEEDS)
    assert t.tokens.shape == (5, 8 + 3)
    assert t.structure == Structure(4)
    assert t.sampler.gen_length == 8
    assert t.sampler.block_length == 4
    # Prompt and completion end at place 12, 12, 20, 12 and 12.
    assert t.lengths.tolist() == [8, 10, 11, 11, 8]
    assert not bool(t.has_eos.any())
    assert (t.reveal_step >= 0).sum(-1).tolist() == t.lengths.tolist()
    assert bool((t.tokens[0, 8:] == model.pad_id).all())
    assert t.nfe.tolist() == t.scheduled_steps.tolist() == t.lengths.tolist()
    odd = rollout(model, PROMPTS[:1], SamplerConfig(gen_length=5), [0])
    assert odd.sampler.gen_length == 8  # rounded up to whole blocks


def test_a_row_ends_after_the_block_with_an_eos_and_keeps_what_was_sampled_there(model: MaskedDiffusionLM):
    sampler = SamplerConfig(gen_length=12)
    whole = rollout(model, PROMPTS[:1], sampler, [0])
    first_of = {token: place for place, token in reversed(list(enumerate(whole.tokens[0].tolist())))}
    model.eos_id, place = next((t, p) for t, p in first_of.items() if p in (4, 5, 6))
    ended = rollout(model, PROMPTS[:1], sampler, [0])
    assert ended.lengths.tolist() == [place + 1]
    assert ended.tokens[0, :8].tolist() == whole.tokens[0, :8].tolist()
    assert ended.reveal_step[0].tolist() == whole.reveal_step[0, :8].tolist() + [-1] * 7
    assert ended.completion_ids()[0] == whole.tokens[0, : place + 1].tolist()
    assert bool(ended.scored(after_eos=True)[0, :8].all())
    # `early_stop: eos` ends it inside the block, once all before the EOS is revealed.
    inside = rollout(model, PROMPTS[:1], SamplerConfig(gen_length=12, early_stop="eos"), [0])
    shown = inside.reveal_step[0] >= 0
    assert inside.lengths.tolist() == [place + 1]
    assert inside.tokens[0][shown].tolist() == whole.tokens[0][shown].tolist()
    assert int(inside.nfe[0]) <= int(ended.nfe[0])


@pytest.mark.parametrize(
    ("prompt", "steps", "expected"),
    [
        # The prompt's two blocks and the first forward of the completion's first, then 3 more and one that stores it,
        # and 4 of the last block.
        (8, 8, [12, 4, 4, 4, 4, 4, 4, 4, 4]),
        # Of 5 prompt tokens one is in the first block: 3 forwards of it, the prompt's block stored with the first.
        (5, 8, [8, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4]),
        (8, 4, [12, 4, 4, 4, 4]),  # two tokens a step
        (8, 2, [12, 4, 4]),  # a block a step
    ],
)
def test_queries_by_hand_and_as_the_model_saw_them(
    model: MaskedDiffusionLM, monkeypatch: pytest.MonkeyPatch, prompt: int, steps: int, expected: list[int]
):
    model.eos_id = 263
    shapes = count_tokens(model, monkeypatch)
    t = rollout(model, [list(range(prompt))], SamplerConfig(gen_length=8, steps=steps), [0])
    assert shapes == [(1, n) for n in expected]
    assert t.queries.tolist() == [sum(expected)]
    blocks = -(-(prompt % 4 + 8) // 4)
    assert t.nfe.tolist() == [len(expected) - (blocks - 1)]


def test_flops_of_a_rollout_by_hand(model: MaskedDiffusionLM):
    """A prompt of 5 tokens, so that the first block has 3 masks; one token a step: 3 + 2 + 1 predictions there, and
    4 + 3 + 2 + 1 in each of the other two blocks. On average a forward sees the prompt and half of the completion."""
    model.eos_id = 263
    t = rollout(model, [list(range(5)), list(range(9))], SamplerConfig(gen_length=8), [0, 1]).rows(torch.tensor([0]))
    expected = forward_flops(model, torch.tensor([5 + 11 / 2]), 6 + 10 + 10, t.queries)
    assert rollout_flops(model, t) == pytest.approx(expected)


def test_the_published_loop_without_a_cache_runs_four_times_as_many_tokens(
    model: MaskedDiffusionLM, monkeypatch: pytest.MonkeyPatch
):
    """Prompts of two blocks or more, eight blocks of completion, three rollouts of each prompt."""
    model.eos_id = 263
    prompts = [list(range(n)) for n in (8, 9, 14) for _ in range(3)]
    for steps in (32, 16):
        sampler = SamplerConfig(gen_length=32, steps=steps).for_length(32, 4)
        shapes = count_tokens(model, monkeypatch)
        plain = plain_block_rollout(model, prompts, sampler)
        before = sum(rows * width for rows, width in shapes)
        assert before == int(plain.queries.sum())
        shapes.clear()
        stored = rollout(model, prompts, sampler, range(9))
        for name in ("tokens", "reveal_step", "nfe", "scheduled_steps"):
            assert torch.equal(getattr(stored, name), getattr(plain, name)), name
        assert before > 4 * sum(rows * width for rows, width in shapes)


def test_a_prompt_is_run_once_for_all_its_rollouts(model: MaskedDiffusionLM, monkeypatch: pytest.MonkeyPatch):
    model.eos_id = 263
    shapes = count_tokens(model, monkeypatch)
    sampler = SamplerConfig(gen_length=4, temperature=1.0, steps=2)
    prompts = [list(range(10))] * 6 + [list(range(50, 60))] * 2
    t = rollout(model, prompts, sampler, range(8))
    assert shapes[0] == (2, 12)  # both prompts' two blocks, and the block that prompt and completion share
    assert set(shapes[1:]) == {(8, 4)}
    assert len({tuple(row) for row in t.tokens.tolist()}) > 2  # each row still draws its own tokens
    # One row at a time: rollouts that enter later find their prompt stored.
    shapes.clear()
    one_by_one = rollout(model, prompts, sampler, range(8), rollout_tokens=4)
    assert_same_rows(one_by_one, t, list(range(8)))
    assert [shape for shape in shapes if shape != (1, 4)] == [(1, 12), (1, 12)]


@pytest.mark.long
def test_compiled_blocks_are_the_same_and_have_few_shapes(model: MaskedDiffusionLM, monkeypatch: pytest.MonkeyPatch):
    graphs = count_graphs(monkeypatch)
    sampler = SamplerConfig(gen_length=8, temperature=1.0, threshold=0.3)
    plain = rollout(model, PROMPTS, sampler, SEEDS, rollout_tokens=12)
    compiled = rollout(model, PROMPTS, sampler, SEEDS, rollout_tokens=12, compiled=True)
    assert_same_rows(compiled, plain, [0, 1, 2, 3, 4])
    assert 1 <= len(graphs) <= 3  # 1, 2 and 3 rows


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"cache": "dual", "cache_refresh": 2}, "cache 'dual' is for models with full attention"),
        ({"cache": "prefix", "block_length": 4}, "cache 'prefix' is for models with"),
        ({"cfg_scale": 1.0}, "cfg_scale 1.0 is for models with full attention"),
        ({"steps": 3}, "steps 3 is not a multiple of the number of blocks, 2"),
    ],
)
def test_settings_of_full_attention_are_refused_in_a_sentence(
    model: MaskedDiffusionLM, settings: dict[str, Any], said: str
):
    with pytest.raises(UserError, match=said) as caught:
        rollout(model, [[1, 2]], SamplerConfig(gen_length=8, **settings), [0])
    assert "\n" not in str(caught.value)


def test_another_block_length_is_used_and_warned_of_once(model: MaskedDiffusionLM, caplog: pytest.LogCaptureFixture):
    sampler_module._warn_once.cache_clear()
    model.eos_id = 263
    sampler = SamplerConfig(gen_length=8, block_length=2)
    with caplog.at_level(logging.WARNING):
        first, again = (rollout(model, PROMPTS, sampler, SEEDS, store_blocks=s) for s in (True, False))
    assert [r.getMessage() for r in caplog.records] == [
        "sampler: block_length 2 is not the 4 that the model was trained with; leave it out"
    ]
    assert first.structure == Structure(2)
    assert_same_rows(first, again, [0, 1, 2, 3, 4], but=("queries",))


def test_a_prompt_must_leave_room_for_whole_blocks(model: MaskedDiffusionLM):
    rollout(model, [[1] * 504], SamplerConfig(gen_length=8), [0])
    with pytest.raises(UserError, match="exceeds the model's context of 512"):
        rollout(model, [[1] * 505], SamplerConfig(gen_length=8), [0])


def test_sample_and_eval_take_the_models_block_length(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    source = tiny.write_llada(tmp_path / "blocks", block_length=4)
    settings = ["--sampler.gen_length", "6", "--sampler.remasking", "sequential", "--show_steps"]
    assert main(["sample", "--model", str(source), "--prompt", "abcde", *settings]) == 0
    # 5 prompt tokens and 8 of completion, rounded up from 6, end in the block of places 12 to 15.
    assert " of 11 tokens" in capsys.readouterr().out
    output = tmp_path / "eval.json"
    assert main(["eval", "--model", str(source), "--task", "words", "--n", "2", "--output", str(output)]) == 0
    found = json.loads(output.read_text())
    assert found["sampler"]["block_length"] == 4
    assert found["sampler"]["gen_length"] % 4 == 0
