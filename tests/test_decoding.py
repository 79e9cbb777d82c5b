from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lfpo.base.config import build
from lfpo.base.errors import UserError
from lfpo.rollout.reveal import (
    above_threshold,
    kept_tokens,
    origin_steps,
    reveal_counts,
    top_k_per_row,
    within_entropy,
    within_factor,
)
from lfpo.rollout.sampler import SamplerConfig


def test_llada_schedule_reveals_early_then_idles():
    assert reveal_counts(5, 3, "llada").tolist() == [2, 2, 1]
    assert reveal_counts(3, 8, "llada").tolist() == [1, 1, 1, 0, 0, 0, 0, 0]


def test_uniform_schedule_spreads_reveals():
    assert reveal_counts(3, 6, "uniform").tolist() == [0, 1, 0, 1, 0, 1]
    assert reveal_counts(5, 3, "uniform").tolist() == [1, 2, 2]


@pytest.mark.parametrize(
    ("length", "steps", "idle", "last"),
    [(512, 512, 1, 2), (512, 1024, 514, 3), (512, 2048, 1539, 4), (256, 128, 0, 3)],
)
def test_dream_schedule_rounds_down_and_leaves_the_rest_to_the_last_step(length: int, steps: int, idle: int, last: int):
    counts = reveal_counts(length, steps, "dream")
    assert int((counts == 0).sum()) == idle
    assert int(counts[-1]) == last


def test_dream_schedule_by_hand():
    # With eps 1/4 and 3 steps time is 1, 3/4, 1/2, 1/4: of 10 a quarter goes, of the 8 left a third, then all 6.
    assert reveal_counts(10, 3, "dream", 0.25).tolist() == [2, 2, 6]
    assert reveal_counts(1, 3, "dream").tolist() == [0, 0, 1]
    assert reveal_counts(7, 1, "dream").tolist() == [7]
    # Rounding is float32's, as in the published code: a seventh of 56 falls just short of 8.
    assert reveal_counts(64, 4, "dream", 0.5).tolist() == [8, 7, 8, 41]


@given(
    st.integers(1, 64),
    st.integers(1, 300),
    st.sampled_from(["llada", "uniform", "dream"]),
    st.floats(1e-4, 0.9),
)
def test_schedules_reveal_the_whole_block(length: int, steps: int, schedule: str, eps: float):
    counts = reveal_counts(length, steps, schedule, eps)
    assert len(counts) == steps
    assert int(counts.sum()) == length
    assert int(counts.min()) >= 0
    if schedule != "dream":
        assert int(counts.max()) <= -(-length // steps)


@pytest.mark.parametrize(("steps", "eps"), [(1, 1e-3), (4, 1e-3), (7, 0.3)])
def test_origin_leaves_a_position_masked_with_the_schedules_probability(steps: int, eps: float):
    n = 100_000
    step = origin_steps((torch.arange(n, dtype=torch.float64) + 0.5) / n, steps, eps)  # evenly spread, so no luck
    assert int(step.min()) >= 0
    assert int(step.max()) == steps - 1
    for i in range(steps - 1):
        masked_after = float((step > i).double().mean())
        assert masked_after == pytest.approx(1 - (i + 1) * (1 - eps) / steps, abs=1 / n)


def test_origin_steps_stay_in_range_at_the_ends_of_the_unit_interval():
    ends = torch.tensor([0.0, 1 - 2.0**-53], dtype=torch.float64)
    assert origin_steps(ends, 8, 1e-3).tolist() == [7, 0]
    assert origin_steps(ends, 1, 1e-3).tolist() == [0, 0]


def test_top_k_takes_eligible_best_and_breaks_ties_to_the_left():
    score = torch.tensor([[0.9, 0.5, 0.5, 0.1], [0.2, 0.8, 0.9, 0.7]])
    eligible = torch.tensor([[False, True, True, True], [True, True, True, True]])
    chosen = top_k_per_row(score, eligible, torch.tensor([1, 3]))
    assert chosen.tolist() == [[False, True, False, False], [False, True, True, True]]


def test_ties_go_to_the_left_in_long_blocks_too():
    # Sorts that are not stable keep short runs in order all the same.
    score = (torch.arange(300) % 3).double()[None]
    found = top_k_per_row(score, torch.ones(1, 300, dtype=torch.bool), torch.tensor([7]))
    assert found.nonzero()[:, 1].tolist() == [2, 5, 8, 11, 14, 17, 20]


def test_top_k_of_more_than_there_are_takes_all_eligible():
    chosen = top_k_per_row(torch.tensor([[0.3, 0.2]]), torch.tensor([[True, False]]), torch.tensor([5]))
    assert chosen.tolist() == [[True, False]]


def test_threshold_takes_all_above_and_always_the_best():
    confidence = torch.tensor([[0.95, 0.91, 0.2], [0.1, 0.3, 0.2]])
    eligible = torch.ones(2, 3, dtype=torch.bool)
    assert above_threshold(confidence, eligible, 0.9).tolist() == [[True, True, False], [False, True, False]]


def test_threshold_of_equal_confidences_takes_the_leftmost():
    confidence = torch.tensor([[0.9, 0.3, 0.3]])
    assert above_threshold(confidence, torch.tensor([[False, True, True]]), 0.5).tolist() == [[False, True, False]]
    # At the threshold is enough.
    assert above_threshold(confidence, torch.tensor([[False, True, True]]), 0.3).tolist() == [[False, True, True]]


def chosen(mask: torch.Tensor) -> list[list[int]]:
    """Columns of each row's True entries."""
    return [row.nonzero().flatten().tolist() for row in mask]


def test_factor_takes_the_longest_run_that_is_sure_enough():
    # The n-th must reach 1 - 1 / (n + 1): 1/2, 2/3, 3/4, 4/5.
    confidence = torch.tensor(
        [
            [0.9, 0.79, 0.76, 0.95],  # the last candidate, 0.76, fails 4/5 and is not taken
            [0.9, 0.75, 0.7, 0.95],  # 3/4 is just enough
            [0.1, 0.4, 0.35, 0.2],  # nobody is: the best all the same
            [0.65, 0.65, 0.65, 0.65],  # fails at n = 2
        ],
        dtype=torch.float64,
    )
    eligible = torch.ones(4, 4, dtype=torch.bool)
    assert chosen(within_factor(confidence, eligible, 1.0)) == [[0, 1, 3], [0, 1, 3], [1], [0]]
    # Twice the factor: 0, 1/3, 1/2, 3/5.
    assert chosen(within_factor(confidence, eligible, 2.0)) == [[0, 1, 2, 3], [0, 1, 2, 3], [1, 2], [0, 1, 2, 3]]


def test_factor_counts_eligible_positions_only():
    confidence = torch.tensor([[0.99, 0.7, 0.98, 0.2], [0.99, 0.99, 0.99, 0.99]], dtype=torch.float64)
    eligible = torch.tensor([[False, True, False, True], [False, False, False, False]])
    # Counted among the revealed ones too, 0.7 would be third and fail.
    assert chosen(within_factor(confidence, eligible, 1.0)) == [[1], []]


def test_entropy_bound_adds_up_all_but_the_largest():
    entropy = torch.tensor([[0.5, 0.125, 1.0, 0.25], [3.0, 2.0, 4.0, 5.0]], dtype=torch.float64)
    eligible = torch.ones(2, 4, dtype=torch.bool)
    assert chosen(within_entropy(entropy, eligible, 0.375)) == [[0, 1, 3], [1]]  # 1/8 + 1/4 is just within it
    assert chosen(within_entropy(entropy, eligible, 0.374)) == [[1, 3], [1]]
    assert chosen(within_entropy(entropy, eligible, 9.0)) == [[0, 1, 2, 3], [0, 1, 2, 3]]


def test_entropy_bound_takes_the_least_uncertain_whatever_the_bound():
    entropy = torch.tensor([[0.0, 0.5, 0.0, 0.2], [0.4, 0.4, 0.4, 0.4]], dtype=torch.float64)
    eligible = torch.tensor([[False, True, True, True], [True, True, True, True]])
    # Row 0: after a certain token one more is free, at a bound of nothing. Row 1: ties go to the left.
    assert chosen(within_entropy(entropy, eligible, 0.0)) == [[2, 3], [0]]


@given(
    st.lists(st.floats(0.01, 1.0), min_size=1, max_size=8),
    st.floats(0.05, 3.0),
    st.integers(0, 255),
)
def test_self_pacing_rules_take_what_their_definitions_say(values: list[float], bound: float, dropped: int):
    """Against the definitions, tried for every n."""
    score = torch.tensor([values], dtype=torch.float64)
    eligible = torch.tensor([[not dropped >> i & 1 for i in range(len(values))]])
    kept = [i for i in range(len(values)) if eligible[0, i]]
    sure = sorted(kept, key=lambda i: (-values[i], i))
    lead = [values[i] - (1 - bound / (n + 1)) for n, i in enumerate(sure, start=1)]
    runs = [n for n, x in enumerate(lead, start=1) if x >= 0]
    if all(abs(x) > 1e-6 for x in lead):  # at the very bound rounding decides
        assert chosen(within_factor(score, eligible, bound)) == [sorted(sure[: max([1, *runs])])]
    calm = sorted(kept, key=lambda i: (values[i], i))
    counts = [n for n in range(1, len(calm) + 1) if sum(values[i] for i in calm[: n - 1]) <= bound]
    near = any(abs(sum(values[i] for i in calm[:n]) - bound) < 1e-9 for n in range(len(calm)))
    if not near:
        assert chosen(within_entropy(score, eligible, bound)) == [sorted(calm[: max([1, *counts])])]


def test_top_k_and_nucleus_of_a_distribution_by_hand():
    never = -torch.inf
    scores = torch.tensor([[0.1, 0.5, 0.0, 0.25, 0.15]]).log()
    assert scores[0, 2] == never
    assert chosen(kept_tokens(scores, 2, None)) == [[1, 3]]
    assert chosen(kept_tokens(scores, None, 0.6)) == [[1, 3]]  # 0.25 crosses the bound and stays
    assert chosen(kept_tokens(scores, None, 0.8)) == [[1, 3, 4]]
    assert chosen(kept_tokens(scores, 2, 0.8)) == chosen(kept_tokens(scores, 2, None))
    assert chosen(kept_tokens(scores, 3, 0.4)) == [[1]]
    assert chosen(kept_tokens(scores, 99, 1.0)) == [[0, 1, 3, 4]]  # what has no probability is out in any case
    assert chosen(kept_tokens(torch.tensor([[1.0, 2.0, 1.0]]), 2, None)) == [[0, 1, 2]]  # as probable as the second


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
        ({"temperature": float("nan")}, "temperature"),
        ({"gen_length": 0}, "gen_length 0"),
        ({"gen_length": 8, "block_length": 0}, "block_length 0"),
        ({"gen_length": 8, "steps": 0}, "steps 0"),
        ({"alg": "confidence"}, "alg"),
        ({"alg": "entropy", "alg_temp": -0.5}, "alg_temp -0.5"),
        ({"alg_temp": 0.5}, "alg_temp"),
        ({"alg": "origin", "alg_temp": 0.5}, "alg_temp"),
        ({"alg": "origin", "schedule": "llada"}, "schedule 'llada'"),
        ({"alg": "entropy", "remasking": "random"}, "remasking 'random'"),
        ({"alg": "entropy", "threshold": 0.9}, "alg and threshold"),
        ({"factor": 1.0, "entropy_bound": 0.1}, "factor and entropy_bound"),
        ({"factor": 0.0}, "factor 0.0"),
        ({"factor": 1.0, "steps": 4}, "'steps'"),
        ({"factor": 1.0, "schedule": "uniform"}, "'schedule'"),
        ({"factor": 1.0, "early_stop": "confidence"}, "early_stop 'confidence'"),
        ({"entropy_bound": -0.1}, "entropy_bound -0.1"),
        ({"entropy_bound": 0.1, "steps": 4}, "'steps'"),
        ({"entropy_bound": 0.1, "remasking": "random"}, "remasking 'random'"),
        ({"top_k": 0}, "top_k 0"),
        ({"top_p": 0.0}, "top_p 0.0"),
        ({"top_p": 1.1}, "top_p 1.1"),
        ({"eps": 0.0}, "eps 0.0"),
        ({"eps": 1.0}, "eps 1.0"),
        ({"early_stop_threshold": 0.0}, "early_stop_threshold 0.0"),
        ({"schedule": "cosine"}, "schedule"),
        ({"cache": "both"}, "cache"),
        ({"cache": "prefix", "cfg_scale": 1.0}, "cfg_scale"),
        ({"cache_refresh": 4}, "cache_refresh"),
        ({"cache": "dual", "cache_refresh": 0}, "cache_refresh 0"),
        ({"cache": "dual", "gen_length": 8}, "block_length"),
        ({"cache": "prefix", "gen_length": 8, "block_length": 8}, "cache_refresh"),
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


def test_settings_that_go_together_are_accepted():
    for fields in (
        {"alg": "origin", "schedule": "dream"},
        {"alg": "maskgit_plus", "schedule": "uniform", "alg_temp": 0.1, "top_k": 1, "top_p": 1.0},
        {"factor": 1.0, "early_stop": "eos", "cache": "dual"},
        {"entropy_bound": 0.0},
        {"cache": "prefix", "gen_length": 8, "block_length": 4},
        {"cache": "dual", "gen_length": 8, "cache_refresh": 1},
    ):
        build(SamplerConfig, fields)
    for sampler in (SamplerConfig(factor=1.0), SamplerConfig(entropy_bound=0.1)):
        assert sampler.for_length(12).steps is None
    # Whether there is one block only the task's length may tell.
    with pytest.raises(ValueError, match="one block"):
        SamplerConfig(cache="dual").for_length(8)


def test_other_tools_names_are_understood():
    sampler = build(SamplerConfig, {"max_completion_length": 8, "diffusion_steps": 16, "block_size": 4})
    assert (sampler.gen_length, sampler.steps, sampler.block_length) == (8, 16, 4)
