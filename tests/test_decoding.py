from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lfpo.config import build
from lfpo.decoding import above_threshold, reveal_counts, top_k_per_row
from lfpo.errors import UserError
from lfpo.sampler import SamplerConfig


def test_llada_schedule_reveals_early_then_idles():
    assert reveal_counts(5, 3, "llada").tolist() == [2, 2, 1]
    assert reveal_counts(3, 8, "llada").tolist() == [1, 1, 1, 0, 0, 0, 0, 0]


def test_uniform_schedule_spreads_reveals():
    assert reveal_counts(3, 6, "uniform").tolist() == [0, 1, 0, 1, 0, 1]
    assert reveal_counts(5, 3, "uniform").tolist() == [1, 2, 2]


@given(st.integers(1, 64), st.integers(1, 300), st.sampled_from(["llada", "uniform"]))
def test_schedules_reveal_the_whole_block(length: int, steps: int, schedule: str):
    counts = reveal_counts(length, steps, schedule)
    assert len(counts) == steps
    assert int(counts.sum()) == length
    assert int(counts.min()) >= 0
    assert int(counts.max()) <= -(-length // steps)


def test_top_k_takes_eligible_best_and_breaks_ties_to_the_left():
    score = torch.tensor([[0.9, 0.5, 0.5, 0.1], [0.2, 0.8, 0.9, 0.7]])
    eligible = torch.tensor([[False, True, True, True], [True, True, True, True]])
    chosen = top_k_per_row(score, eligible, torch.tensor([1, 3]))
    assert chosen.tolist() == [[False, True, False, False], [False, True, True, True]]


def test_top_k_of_more_than_there_are_takes_all_eligible():
    chosen = top_k_per_row(torch.tensor([[0.3, 0.2]]), torch.tensor([[True, False]]), torch.tensor([5]))
    assert chosen.tolist() == [[True, False]]


def test_threshold_takes_all_above_and_always_the_best():
    confidence = torch.tensor([[0.95, 0.91, 0.2], [0.1, 0.3, 0.2]])
    eligible = torch.ones(2, 3, dtype=torch.bool)
    assert above_threshold(confidence, eligible, 0.9).tolist() == [[True, True, False], [False, True, False]]


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"gen_length": 10, "block_length": 4}, "block_length 4 does not divide gen_length 10"),
        ({"gen_length": 8, "block_length": 4, "steps": 7}, "steps 7"),
        ({"threshold": 0.0}, "threshold"),
        ({"threshold": 1.5}, "threshold"),
        ({"threshold": 0.9, "steps": 4}, "steps"),
        ({"threshold": 0.9, "remasking": "random"}, "remasking"),
        ({"threshold": 0.9, "early_stop": "both"}, "early_stop"),
        ({"temperature": -1.0}, "temperature"),
        ({"cfg_scale": -0.1}, "cfg_scale"),
        ({"remasking": "lowconfidence"}, "low_confidence"),
    ],
)
def test_bad_settings_are_one_line_errors(fields: dict, named: str):
    with pytest.raises(UserError, match=named) as caught:
        build(SamplerConfig, fields)
    assert "\n" not in str(caught.value)


def test_defaults_are_filled_in_from_the_task():
    full = SamplerConfig().for_length(12)
    assert (full.gen_length, full.block_length, full.steps) == (12, 12, 12)
    assert SamplerConfig(threshold=0.9).for_length(12).steps is None
    with pytest.raises(ValueError, match="does not divide"):
        SamplerConfig(block_length=5).for_length(12)


def test_other_tools_names_are_understood():
    sampler = build(SamplerConfig, {"max_completion_length": 8, "diffusion_steps": 16, "block_size": 4})
    assert (sampler.gen_length, sampler.steps, sampler.block_length) == (8, 16, 4)
