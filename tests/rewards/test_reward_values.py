"""Kind: what a reward function may return. Values of every type, None, names, and what objectives need of rewards."""

import functools
import math
from collections import Counter
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

from lfpo.config.errors import CannotGoOn, UserError
from lfpo.core.batch_metrics import group_metrics
from lfpo.core.learner import share_with_signal
from lfpo.core.objective import check_range, signal_of
from lfpo.core.reward_values import checked
from lfpo.objectives import OBJECTIVES, make_objective
from lfpo.rewards.measured import measured
from lfpo.rewards.names import reward_names
from lfpo.runs.health import no_signal
from scores import score

NAN = math.nan


class Series:
    """Iterates over its values and knows their number, as a pandas Series does."""

    def __init__(self, *values: Any):
        self.values = values

    def __iter__(self):
        return iter(self.values)

    def __len__(self):
        return len(self.values)


@pytest.mark.parametrize(
    "returned",
    [
        [0.5, 1],
        (0.5, True),
        np.array([0.5, 1.0], dtype=np.float16),
        np.array([[0.5], [1.0]]),  # a model's head gives [n, 1]
        torch.tensor([0.5, 1.0], dtype=torch.bfloat16, requires_grad=True),
        torch.tensor([[0.5], [1.0]]),
        (value for value in (0.5, 1.0)),
        map(float, ("0.5", "1")),
        {"a": 0.5, "b": 1.0}.values(),
        Series(0.5, 1.0),
        [Decimal("0.5"), Fraction(1, 1)],
        [np.float32(0.5), np.bool_(True)],
        [torch.tensor(0.5), torch.tensor([[1]])],
        [np.array(0.5), np.array([1])],
        np.array([0.5, 1], dtype=object),
    ],
)
def test_whatever_gives_two_numbers_in_order_is_two_rewards(returned):
    assert checked(returned, "f", 2) == [0.5, 1.0]


@pytest.mark.parametrize(
    "returned",
    [
        [None, 1.0],
        np.array([None, 1.0]),
        (v for v in (None, 1)),
    ],
)
def test_none_stays_none_in_every_container(returned):
    assert checked(returned, "f", 2) == [None, 1.0]


@pytest.mark.parametrize(
    ("returned", "says"),
    [
        ([0.0, 10**400], "reward 1 is 1000"),
        ([0.0, Decimal("1e999")], r"reward 1 is Decimal\('1E\+999'\)"),
        ([0.0, Fraction(10**400)], "reward 1 is Fraction"),
        ([0.0, 1j], "reward 1 is 1j"),
        ([0.0, "1"], "reward 1 is '1'"),
        ([NAN, 0.0], "reward 0 is nan"),
        ([0.0, np.float32("inf")], "reward 1 is inf"),
        (torch.tensor([0.0, -math.inf]), "reward 1 is -inf"),
        ([0.0, [1.0]], r"reward 1 is \[1.0\]"),
        ([0.0, np.zeros(2)], r"reward 1 is array\(\[0., 0.\]\)"),
        ([0.0, torch.zeros(0)], r"reward 1 is tensor\(\[\]\)"),
        ([0.0], "returned 1 rewards for 2"),
        (np.zeros(3), "returned 3 rewards for 2"),
        ({0.0: "a", 1.0: "b"}, "returned dict"),
        ("01", "reward 0 is '0'"),
        (0.5, "returned float"),
        (np.array(0.5), "returned ndarray"),
        (torch.tensor(0.5), "returned Tensor"),
        (None, "returned NoneType"),
    ],
)
def test_what_is_no_list_of_numbers_is_one_sentence_with_function_and_index(returned, says: str):
    with pytest.raises(UserError, match=f"reward function 'f': {says}") as error:
        checked(returned, "f", 2)
    assert "\n" not in str(error.value) and len(str(error.value)) < 250


def scored(*functions: Any, n: int = 2, weights: Any = None, **columns: Any) -> Any:
    return score(functions, weights or [1.0] * len(functions), ["p"] * n, ["c"] * n, [[1]] * n, columns)


def test_a_generator_that_raises_while_it_is_read_fails_its_batch_only():
    def late(prompts, completions, **columns):
        yield 1.0
        raise KeyError("gone")

    rewards = scored(late, lambda prompts, completions: (0.25, 0.5))
    assert "KeyError: 'gone'" in rewards.failed["late"]
    assert rewards.reward_B.tolist() == [0.25, 0.5]


def test_a_reward_is_the_weighted_sum_over_functions_that_gave_a_number_and_nan_if_none_did():
    rewards = scored(
        lambda prompts, completions: [None, None, -1],
        lambda prompts, completions: [-0.5, None, -0.25],
        n=3,
        weights=[2, 4],
    )
    assert rewards.reward_B[[0, 2]].tolist() == [-2.0, -3.0] and rewards.reward_B[1].isnan()


def test_one_huge_reward_gives_finite_statistics():
    found = group_metrics(torch.tensor([1e300, 0.0, 1.0, 1.0], dtype=torch.float64), torch.tensor([0, 0, 1, 1]))
    assert found == {
        "reward": pytest.approx(2.5e299),
        "reward_std": pytest.approx(2.5e299),
        "frac_reward_zero_std": 0.5,
    }
    largest = torch.finfo(torch.float64).max
    both = group_metrics(torch.tensor([largest, -largest], dtype=torch.float64), torch.tensor([0, 0]))
    assert both["reward"] == 0 and both["reward_std"] == largest


def test_neutral_rollouts_are_in_no_mean_and_no_deviation():
    rewards = torch.tensor([-1.0, NAN, -0.5, NAN, NAN, NAN], dtype=torch.float64)
    found = group_metrics(rewards, torch.tensor([0, 0, 0, 1, 1, 1]))
    assert found == {"reward": -0.75, "reward_std": 0.25, "frac_reward_zero_std": 0.0}
    assert all(math.isnan(value) for value in group_metrics(rewards[3:], torch.tensor([0, 0, 0])).values())


def objectives() -> list[Any]:
    return [make_objective({"name": name}) for name in OBJECTIVES]


@pytest.mark.parametrize("objective", objectives(), ids=lambda o: type(o).__name__)
def test_every_objective_gives_others_the_signal_that_they_have_without_the_neutral_rollout(objective):
    group = torch.tensor([0, 0, 0, 1, 1, 1, 1, 2, 2, 2])
    rewards = torch.tensor([1, NAN, 0, 0.5, 1, 0, NAN, NAN, NAN, NAN], dtype=torch.float64)
    kept = torch.tensor([0, 2, 3, 4, 5])
    signal = signal_of(objective, rewards, group)
    expected = objective.signal(rewards[kept], torch.tensor([0, 0, 1, 1, 1]))
    assert torch.equal(signal[kept], expected)
    others = torch.tensor([1, 6, 7, 8, 9])
    assert (signal[others] == objective.neutral).all() and not signal.isnan().any()


@pytest.mark.parametrize("objective", objectives(), ids=lambda o: type(o).__name__)
def test_a_batch_without_rewards_is_neutral_and_a_full_batch_is_untouched(objective):
    group, full = torch.tensor([0, 0, 1, 1]), torch.tensor([1.0, 0.0, 0.5, 1.0], dtype=torch.float64)
    assert torch.equal(signal_of(objective, full, group), objective.signal(full, group))
    none = signal_of(objective, torch.full_like(full, NAN), group)
    assert (none == objective.neutral).all() and share_with_signal(objective, none) == 0


def test_the_only_scored_rollout_of_a_group_is_neutral_where_groups_are_compared():
    group, rewards = torch.tensor([0, 0, 1, 1]), torch.tensor([1, NAN, 1, 0], dtype=torch.float64)
    assert signal_of(make_objective({"name": "diffu_grpo"}), rewards, group).tolist() == [0, 0, 0.5, -0.5]
    assert signal_of(make_objective({"name": "rejection"}), rewards, group).tolist() == [1, 0, 1, 0]
    raw = make_objective({"name": "lfpo", "reward_transform": "raw"})
    assert signal_of(raw, rewards, group).tolist() == [1, 0.5, 1, 0]
    # An objective that needs whole groups gets none with a rollout that has no reward.
    tree = make_objective({"name": "dtree_rpo:DTreeRPO", "tree": [2]})
    edges = signal_of(tree, rewards, group)
    assert edges.tolist() == [0, 0, 0.5, -0.5]
    # The case of the report: what could not be judged is not the best of a group with rewards below 0.
    below = torch.tensor([-1, -0.5, NAN, -1], dtype=torch.float64)
    signal = signal_of(make_objective({"name": "lfpo"}), below, torch.tensor([0, 0, 0, 0]))
    assert signal[2] == 0.5 and signal[1] > 0.5


@pytest.mark.parametrize(
    ("settings", "value", "says"),
    [
        ({"name": "trace_rl"}, -0.5, "TraceRL needs rewards from 0 to 1"),
        ({"name": "slim_rl"}, 2.0, "SLIMRL needs rewards from 0 to 1"),
        ({"name": "rejection"}, -1.0, "Rejection needs rewards that are not negative.*min_reward"),
        ({"name": "unigrpo", "advantage": "over_mean"}, -0.1, "UniGRPO needs rewards that are not negative"),
        ({"name": "wd1", "advantage": "over_mean"}, -0.1, "WD1 needs rewards that are not negative"),
        ({"name": "dtm"}, 100.0, "DTM needs rewards from 0 to 10.*100.*tilt"),
        ({"name": "dtm", "tilt": 0.05}, -1.0, "DTM needs rewards from 0 to 200"),
        ({"name": "lfpo", "reward_transform": "raw"}, 1.5, "LFPO needs rewards from 0 to 1"),
    ],
)
def test_a_reward_that_an_objective_cannot_use_is_one_sentence(settings: dict[str, Any], value: float, says: str):
    objective, good = make_objective(settings), torch.tensor([0, 1, NAN], dtype=torch.float64)
    check_range(objective, good)
    with pytest.raises(CannotGoOn, match=says):
        check_range(objective, torch.cat([good, torch.tensor([value], dtype=torch.float64)]))


@pytest.mark.parametrize("name", ["lfpo", "diffu_grpo", "espo", "mdpo", "spg"])
def test_other_objectives_take_any_reward(name: str):
    check_range(make_objective({"name": name}), torch.tensor([-1e3, 1e6], dtype=torch.float64))


def test_a_signal_beyond_float32_is_one_sentence():
    rewards, group = torch.tensor([1e300, 0], dtype=torch.float64), torch.tensor([0, 0])
    with pytest.raises(CannotGoOn, match="AGRPO: the signal of a rollout with reward 1e\\+300 is beyond"):
        signal_of(make_objective({"name": "agrpo"}), rewards, group)
    assert signal_of(make_objective({"name": "lfpo"}), rewards, group).isfinite().all()


def test_rewards_that_differ_and_teach_nothing_are_said():
    silent = {"frac_reward_zero_std": 0.5, "frac_signal": 0.0, "grad_norm": 0.1}
    flat = {"frac_reward_zero_std": 0.5, "frac_signal": 1.0, "grad_norm": 0.0}
    alike = {"frac_reward_zero_std": 1.0, "frac_signal": 0.0, "grad_norm": 0.0}
    learns = {"frac_reward_zero_std": 0.5, "frac_signal": 1.0, "grad_norm": 0.1}
    assert "no rollout has a signal" in no_signal([learns, *[silent] * 5])
    assert "the gradient is 0" in no_signal([flat] * 5)
    assert not no_signal([flat] * 4) and not no_signal([*[flat] * 4, alike]) and not no_signal([*[flat] * 4, learns])


def graded(prompts, completions, limit=0, **columns):
    return [limit] * len(completions)


class Grader:
    """A callable object with a method that is a reward function, too."""

    def __init__(self, model: str):
        self.model, self.counts = model, Counter[str]()

    def __call__(self, prompts, completions, **columns):
        self.counts.update(asked=len(completions))
        return [1.0] * len(completions)

    def measures(self, counts):
        return {"asked": counts["asked"]}

    def style(self, prompts, completions, **columns):
        return [0.0] * len(completions)


def test_functions_of_one_name_are_numbered():
    a, b = Grader("small"), Grader("large")
    partials: list[Any] = [functools.partial(graded, limit=1), functools.partial(graded, limit=2), graded]
    assert reward_names([*partials, a, b.style]) == ["graded", "graded_2", "graded_3", "Grader", "style"]
    assert reward_names([a, functools.partial(b)]) == ["Grader", "Grader_2"]


def test_each_of_two_judges_keeps_its_own_metrics():
    a, b = Grader("a"), Grader("b")
    assert scored(a, b, n=2).parts.keys() == {"Grader", "Grader_2"}
    a([], ["one more"])
    named = dict(zip(reward_names([a, b]), [a, b], strict=True))
    assert measured(named) == {"rewards/Grader/asked": 3, "rewards/Grader_2/asked": 2}
