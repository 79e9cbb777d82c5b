from collections.abc import Sequence
from typing import Any

import pytest
import torch
import yaml
from hypothesis import given
from hypothesis import strategies as st

from lfpo.config.build import build
from lfpo.config.errors import UserError
from lfpo.config.sampler import SamplerConfig
from lfpo.core.schedule import reveal_counts
from lfpo.rollout.local_engine import find_rule
from lfpo.rollout.reveal import Proposal
from lfpo.rollout.reveal.published import origin_steps


def revealed(
    values: torch.Tensor, eligible: torch.Tensor, *, block_step: int = 0, counts: Sequence[int] = (), **fields: Any
) -> list[list[int]]:
    """Columns that a rule reveals of each row. values: the confidences, the rule's scores and the entropies. counts:
    what the schedule reveals at each step."""
    sampler = SamplerConfig(**fields)
    zeros, of_steps = torch.zeros(len(values), dtype=torch.long), torch.tensor(counts, dtype=torch.long)
    token = torch.zeros_like(eligible, dtype=torch.long)
    step = Proposal(eligible, token, values, values, values, zeros + block_step, of_steps, zeros, zeros, sampler)
    return [row.nonzero().flatten().tolist() for row in find_rule(sampler.rule_name).reveal(step).positions]


def test_llada_schedule_reveals_early_then_idles():
    assert reveal_counts(5, 3, "llada").tolist() == [2, 2, 1]
    assert reveal_counts(3, 8, "llada").tolist() == [1, 1, 1, 0, 0, 0, 0, 0]


@pytest.mark.parametrize(
    ("length", "steps", "idle", "last"), [(512, 512, 1, 2), (512, 1024, 514, 3), (512, 2048, 1539, 4), (256, 128, 0, 3)]
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


@given(st.integers(1, 64), st.integers(1, 300), st.sampled_from(["llada", "uniform", "dream"]), st.floats(1e-4, 0.9))
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
    step = origin_steps((torch.arange(n, dtype=torch.float64) + 0.5) / n, steps, eps)  # evenly spaced
    assert int(step.min()) >= 0
    assert int(step.max()) == steps - 1
    for i in range(steps - 1):
        masked_after = float((step > i).double().mean())
        assert masked_after == pytest.approx(1 - (i + 1) * (1 - eps) / steps, abs=1 / n)


def test_tau_budget_adds_up_the_risks_of_what_is_above_the_threshold():
    """The budget is 1/4. The quota is 2 at the first step and none at the second, where it counts as 1."""
    score = torch.tensor(
        [
            [0.875, 0.9375, 0.5, 0.9375, 0.8125],  # risks 1/16, 1/16, 1/8: just within it; then 3/16
            [0.8125, 0.5, 0.8125, 0.7, 0.74],  # one fits; the quota takes another
            [0.75, 0.625, 0.5, 0.625, 0.1],  # none is above; of equals the leftmost
        ],
        dtype=torch.float64,
    )
    settings: dict[str, Any] = {"counts": [2, 0], "rule": "tau_budget", "threshold": 0.75}
    found = [revealed(score, score > 0, block_step=step, **settings) for step in (0, 1)]
    assert found == [[[0, 1, 3], [0, 2], [0, 1]], [[0, 1, 3], [0], [0]]]


def test_a_named_rule_without_chance_is_not_random():
    assert not SamplerConfig(rule="threshold_leftmost", threshold=0.9).is_random
    assert SamplerConfig(rule="plackett_luce", alg_temp=0.1).is_random
    assert SamplerConfig(rule="test_decoding:revealed").is_random  # nothing is known about it


LEFT_OUT = [[0.2, 0.95, 0.91], [0.1, 0.3, 0.2], [None, 0.3, 0.2], [None, None, None]]
# With factor 1 the n-th must reach 1 - 1 / (n + 1): 1/2, 2/3, 3/4, 4/5. In the first row the last candidate, 0.76,
# fails 4/5; in the second 3/4 is just enough; in the third none is, so the best alone; the fourth fails at n = 2.
SURE = [[0.9, 0.79, 0.76, 0.95], [0.9, 0.75, 0.7, 0.95], [0.1, 0.4, 0.35, 0.2], [0.65, 0.65, 0.65, 0.65]]
ENTROPIES = [[0.5, 0.125, 1.0, 0.25], [3.0, 2.0, 4.0, 5.0]]
# The rules of SDAR and LLaDA2: of two steps the first has a quota of 2, which takes what is left where that is less.
BLOCK, LAST = [[0.2, 0.9, 0.6, 0.95]], [[0.2, None, None, None]]
STATIC, LEFT, DYNAMIC = (
    {"remasking": name, "counts": [2, 1]} for name in ("low_confidence_static", "sequential", "low_confidence_dynamic")
)


@pytest.mark.parametrize(
    ("rows", "fields", "expected"),
    [
        ([[0.95, 0.91, 0.2], [0.1, 0.3, 0.2]], {"threshold": 0.9}, [[0, 1], [1]]),  # all above, and always the best
        ([[None, 0.3, 0.3]], {"threshold": 0.5}, [[1]]),  # of equals the leftmost
        ([[None, 0.3, 0.3]], {"threshold": 0.3}, [[1, 2]]),  # at the threshold is enough
        (LEFT_OUT, {"rule": "threshold_leftmost", "threshold": 0.9}, [[1, 2], [0], [1], []]),
        (SURE, {"factor": 1.0}, [[0, 1, 3], [0, 1, 3], [1], [0]]),
        (SURE, {"factor": 2.0}, [[0, 1, 2, 3], [0, 1, 2, 3], [1, 2], [0, 1, 2, 3]]),  # 0, 1/3, 1/2, 3/5
        (ENTROPIES, {"entropy_bound": 0.375}, [[0, 1, 3], [1]]),  # all but the largest: 1/8 + 1/4 is just within it
        (ENTROPIES, {"entropy_bound": 0.374}, [[1, 3], [1]]),
        (ENTROPIES, {"entropy_bound": 9.0}, [[0, 1, 2, 3], [0, 1, 2, 3]]),
        (BLOCK, STATIC, [[1, 3]]),
        (BLOCK, {**STATIC, "block_step": 1}, [[3]]),
        (BLOCK, LEFT, [[0, 1]]),
        ([[None, 0.9, None, 0.95]], {**LEFT, "block_step": 1}, [[1]]),
        (BLOCK, {**DYNAMIC, "threshold": 0.5}, [[1, 2, 3]]),  # three exceed it
        (BLOCK, {**DYNAMIC, "threshold": 0.93}, [[1, 3]]),  # one does: the two best
        (BLOCK, {**DYNAMIC, "threshold": 0.95, "block_step": 1}, [[3]]),  # equal does not exceed
        *((LAST, fields, [[0]]) for fields in (STATIC, LEFT, {**DYNAMIC, "threshold": 0.9})),
    ],
)
def test_rules_by_hand(rows: list[Any], fields: dict[str, Any], expected: list[list[int]]):
    """None: a position that is not eligible; its value, though the best, does not count."""
    eligible = torch.tensor([[x is not None for x in row] for row in rows])
    values = torch.tensor([[0.95 if x is None else x for x in row] for row in rows], dtype=torch.float64)
    assert revealed(values, eligible, **fields) == expected


@given(st.lists(st.floats(0.01, 1.0), min_size=1, max_size=8), st.floats(0.05, 3.0), st.integers(0, 255))
def test_factor_and_entropy_bound_follow_their_definitions(values: list[float], bound: float, dropped: int):
    """Compared with the definitions, evaluated for every n."""
    score = torch.tensor([values], dtype=torch.float64)
    eligible = torch.tensor([[not dropped >> i & 1 for i in range(len(values))]])
    kept = [i for i in range(len(values)) if eligible[0, i]]
    sure = sorted(kept, key=lambda i: (-values[i], i))
    lead = [values[i] - (1 - bound / (n + 1)) for n, i in enumerate(sure, start=1)]
    runs = [n for n, x in enumerate(lead, start=1) if x >= 0]
    if all(abs(x) > 1e-6 for x in lead):  # at the bound itself rounding decides
        assert revealed(score, eligible, factor=bound) == [sorted(sure[: max([1, *runs])])]
    calm = sorted(kept, key=lambda i: (values[i], i))
    counts = [n for n in range(1, len(calm) + 1) if sum(values[i] for i in calm[: n - 1]) <= bound]
    near = any(abs(sum(values[i] for i in calm[:n]) - bound) < 1e-9 for n in range(len(calm)))
    if not near:
        assert revealed(score, eligible, entropy_bound=bound) == [sorted(calm[: max([1, *counts])])]


OUT_OF_RANGE = "threshold=0.0 threshold=1.5 temperature=-1.0 temperature=.nan cfg_scale=-0.1 gen_length=0"
OUT_OF_RANGE += " block_length=0 steps=0 factor=0.0 entropy_bound=-0.1 top_k=0 top_p=0.0 top_p=1.1 eps=0.0 eps=1.0"
OUT_OF_RANGE += " alg=confidence early_stop_threshold=0.0 schedule=cosine cache=both remasking=lowconfidence"


@pytest.mark.parametrize("setting", OUT_OF_RANGE.split())
def test_a_value_out_of_range_is_named(setting: str):
    key, _, text = setting.partition("=")
    with pytest.raises(UserError, match=rf"{key}\b.*{text.removeprefix('.')}") as caught:
        build(SamplerConfig, {key: yaml.safe_load(text)})
    assert "\n" not in str(caught.value)


EDITING: dict[str, Any] = {"remasking": "low_confidence_dynamic", "threshold": 0.5, "editing_threshold": 0.5}


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"gen_length": 10, "block_length": 4}, "block_length 4 does not divide gen_length 10"),
        ({"gen_length": 8, "block_length": 4, "steps": 7}, "steps 7"),
        ({"threshold": 0.9, "steps": 4}, "steps"),
        ({"threshold": 0.9, "remasking": "random"}, "remasking"),
        ({"threshold": 0.9, "early_stop": "both"}, "early_stop"),
        ({"alg": "entropy", "alg_temp": -0.5}, "alg_temp -0.5"),
        ({"alg_temp": 0.5}, "alg_temp 0.5 .*only with maskgit_plus, topk_margin, entropy"),
        ({"alg": "origin", "alg_temp": 0.5}, "alg_temp"),
        ({"alg": "origin", "schedule": "llada"}, "schedule 'llada'"),
        ({"alg": "entropy", "remasking": "random"}, "remasking 'random'"),
        ({"factor": 1.0, "entropy_bound": 0.1}, "factor and entropy_bound"),
        ({"factor": 1.0, "schedule": "uniform"}, "'schedule'"),
        ({"factor": 1.0, "early_stop": "confidence"}, "early_stop 'confidence'"),
        ({"entropy_bound": 0.1, "steps": 4}, "'steps'"),
        ({"entropy_bound": 0.1, "remasking": "random"}, "remasking 'random'"),
        ({"remasking": "low_confidence_dynamic"}, "needs a number for threshold"),
        ({"remasking": "sequential", "alg": "entropy"}, "alg and remasking 'sequential' each select a reveal rule"),
        ({"rule": "threshold"}, "needs a number for threshold"),
        ({"rule": "factor"}, "needs a number for factor"),
        ({"rule": "entropy_bound"}, "needs a number for entropy_bound"),
        ({"rule": "threshold_leftmost"}, "needs a number for threshold"),
        ({"rule": "threshold_leftmost", "threshold": 0.9, "steps": 4}, "'threshold_leftmost' has no schedule"),
        ({"rule": "tau_budget"}, "needs a number for threshold"),
        ({"rule": "plackett_luce"}, "the reveal rule 'plackett_luce' needs a number for alg_temp"),
        ({"rule": "plackett_luce", "alg_temp": 0.5, "threshold": 0.9}, "threshold 0.9 has no effect"),
        ({"rule": "threshold", "threshold": 0.9, "steps": 4}, "'threshold' has no schedule"),
        ({"rule": "random", "threshold": 0.9}, "threshold 0.9 has no effect with the reveal rule 'random'"),
        ({"rule": "low_confidence", "remasking": "random"}, "remasking 'random' has no effect"),
        ({"rule": "entropy", "alg": "topk_margin"}, "alg 'topk_margin' has no effect"),
        ({"rule": "test_decoding:revealed", "alg_temp": 0.5}, "alg_temp 0.5 has no effect"),
        ({"rule": "thresold"}, "unknown rule 'thresold'; did you mean 'threshold'"),
        ({"rule": "no_such_module:rule"}, "no module 'no_such_module'"),
        ({"rule": "test_decoding:no_such_rule"}, "has no 'no_such_rule'"),
        ({"eps": 0.1}, "eps 0.1 is for schedule 'dream'"),
        ({"cache": "dual", "cache_refresh": 0}, "cache_refresh 0"),
        ({"cache": "dual", "gen_length": 8}, "block_length"),
        ({"cache": "prefix", "gen_length": 8, "block_length": 8}, "cache_refresh"),
        ({"max_post_steps": -1}, "max_post_steps -1 must not be negative"),
        ({**EDITING, "editing_threshold": None, "max_post_steps": 3}, "max_post_steps needs editing_threshold"),
        ({**EDITING, "editing_threshold": 1.5}, "editing_threshold 1.5 must be between 0 and 1"),
        ({**EDITING, "early_stop": "eos"}, "early_stop 'eos': with editing_threshold an EOS"),
        ({**EDITING, "remasking": "low_confidence"}, "editing_threshold 0.5 has no effect with .* rule 'threshold'"),
        ({"remasking": "low_confidence_static", "editing_threshold": 0.5}, "only with low_confidence_dynamic; leave"),
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
    # The number of blocks may depend on the task's length.
    with pytest.raises(ValueError, match="is for several blocks"):
        SamplerConfig(cache="dual").for_length(8)


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({}, "low_confidence"),
        ({"remasking": "random"}, "random"),
        *(({"alg": alg}, alg) for alg in ("origin", "maskgit_plus", "topk_margin", "entropy")),
        *(({key: 0.5}, key) for key in ("threshold", "factor", "entropy_bound")),
        ({"rule": "entropy", "alg_temp": 0.1}, "entropy"),
        ({"rule": "threshold", "threshold": 0.5}, "threshold"),
    ],
)
def test_the_keys_select_the_rule(fields: dict, name: str):
    sampler = build(SamplerConfig, fields)
    assert sampler.rule_name == name
    assert find_rule(sampler.rule_name) is find_rule(name)


def test_other_tools_names_are_understood():
    sampler = build(SamplerConfig, {"max_completion_length": 8, "diffusion_steps": 16, "block_size": 4})
    assert (sampler.gen_length, sampler.steps, sampler.block_length) == (8, 16, 4)
