"""LFPO's signal: what other groups, outliers and scales may not change. Every value is computed by hand."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lfpo.core.groups import batch_ranks, group_ranges
from lfpo.core.lfpo import LFPO


def signal(groups: list[list[float]], **knobs: float) -> list[list[float]]:
    """r of each rollout of each group under LFPO's defaults."""
    reward_R = torch.tensor([reward for group in groups for reward in group], dtype=torch.float64)
    group_R = torch.tensor([i for i, group in enumerate(groups) for _ in group])
    values = LFPO(**knobs).signal(reward_R, group_R).tolist()  # type: ignore[arg-type]
    return [[values.pop(0) for _ in group] for group in groups]


RIGHT_AND_WRONG = [[1.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 0.0], [1.0] * 4, [0.0] * 4]


def test_rewards_of_zero_and_one_by_hand():
    """A = R - 0.8 mean, r = 1/2 + A / 1.6: means 1/4, 3/4, 1 and 0."""
    expected = [[0.5 + 0.8 / 1.6, *[0.5 - 0.2 / 1.6] * 3], [*[0.5 + 0.4 / 1.6] * 3, 0.5 - 0.6 / 1.6]]
    expected += [[0.5 + 0.2 / 1.6] * 4, [0.5] * 4]
    assert [pytest.approx(group) for group in expected] == signal(RIGHT_AND_WRONG)


@pytest.mark.parametrize("outlier", [-1000.0, 1000.0, -1e9, 1e9])
def test_one_outlier_leaves_the_other_groups_their_signal(outlier: float):
    alone = signal([*RIGHT_AND_WRONG, [1.0, 1.0, 0.0, 0.0]])
    beside = signal([*RIGHT_AND_WRONG, [1.0, outlier, 0.0, 0.0]])
    for before, after in zip(alone[:4], beside[:4], strict=True):
        for r, r_beside in zip(before, after, strict=True):
            assert r_beside - 0.5 == pytest.approx(r - 0.5, rel=1 / 3, abs=0.02)
    assert (beside[4][1] > beside[4][0]) == (outlier > 0)


@pytest.mark.parametrize("scale", [100.0, 1e-3])
def test_two_tasks_of_different_scales_keep_their_own_signal(scale: float):
    """Within groups that differ r is that of either task alone, within a third; agreeing groups keep their order."""
    own = signal(RIGHT_AND_WRONG)
    both = signal(RIGHT_AND_WRONG + [[scale * reward for reward in group] for group in RIGHT_AND_WRONG])
    for task in (both[:4], both[4:]):
        for alone, together in zip(own[:2], task[:2], strict=True):
            for r, r_together in zip(alone, together, strict=True):
                assert r_together - 0.5 == pytest.approx(r - 0.5, rel=1 / 3, abs=0.05)
        assert task[2][0] > 0.55  # agrees on the right answer: imitated
        assert task[3] == [0.5] * 4  # agrees on the wrong one: not


def test_graded_rewards_keep_their_order_and_spacing():
    """The range is 0.8, the mean 0.5, the ranks in the batch are 0, 1/2 and 1: A = (R - 0.5) / 0.8 + 0.2 / 2."""
    assert signal([[0.1, 0.5, 0.9]], clip=10.0)[0] == pytest.approx([0.5 + a / 20 for a in (-0.4, 0.1, 0.6)])


@given(
    groups=st.lists(st.lists(st.integers(-20, 20).map(float), min_size=2, max_size=6), min_size=1, max_size=5),
    data=st.data(),
)
def test_a_better_reward_of_a_group_never_has_a_lower_r(groups: list[list[float]], data: st.DataObject):
    for rewards, values in zip(groups, signal(groups), strict=True):
        assert all(0 <= r <= 1 for r in values)
        ordered = [r for _, r in sorted(zip(rewards, values, strict=True))]
        assert ordered == sorted(ordered)


@given(
    groups=st.lists(st.lists(st.integers(-5, 5).map(float), min_size=2, max_size=5), min_size=1, max_size=4),
    offset=st.integers(-100, 100).map(float),
    scale=st.sampled_from([0.125, 0.5, 2.0, 1024.0]),
)
def test_the_scale_and_origin_of_rewards_do_not_matter(groups: list[list[float]], offset: float, scale: float):
    moved = [[offset + scale * reward for reward in group] for group in groups]
    for before, after in zip(signal(groups), signal(moved), strict=True):
        assert after == pytest.approx(before, abs=1e-9)


def test_ranks_and_ranges_by_hand():
    reward_R = torch.tensor([0.0, 1.0, 1.0, 5.0], dtype=torch.float64)
    assert batch_ranks(reward_R).tolist() == [0.0, 0.5, 0.5, 1.0]  # 1 of 2, of those that are not equal, lies below 1
    assert batch_ranks(torch.tensor([3.0, 3.0])).tolist() == [0.0, 0.0]
    group_R = torch.tensor([0, 0, 1, 1])
    assert group_ranges(reward_R, group_R).tolist() == [1.0, 1.0, 4.0, 4.0]
    assert group_ranges(torch.tensor([2.0, 2.0, 0.1 + 0.2, 0.3], dtype=torch.float64), group_R).isinf().all()
