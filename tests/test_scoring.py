from __future__ import annotations

import numpy as np
import pytest
import torch

from lfpo.errors import UserError
from lfpo.rewards import score


def call(*functions, weights=None, columns=None):
    return score(functions, weights or [1.0] * len(functions), ["p", "q"], ["a", "bb"], [[1], [2, 3]], columns or {})


def test_weighted_parts_and_none():
    def length(prompts, completions, **columns):
        return [len(c) for c in completions]

    def sometimes(completions, answer, **_):
        return [None if a is None else float(a == c) for a, c in zip(answer, completions, strict=True)]

    rewards = call(length, sometimes, weights=[0.5, 2.0], columns={"answer": [None, "bb"]})
    assert rewards.total.tolist() == [0.5, 3.0]
    assert rewards.parts == {"length": [1.0, 2.0], "sometimes": [None, 1.0]}


def test_functions_get_only_what_they_name():
    def ids(completion_ids, prompts, completions):
        return [len(i) for i in completion_ids]

    assert call(ids, columns={"other": [1, 2]}).total.tolist() == [1.0, 2.0]


def test_numpy_and_torch_numbers_are_numbers():
    assert call(lambda prompts, completions: np.array([1.5, 2.0]).tolist()).total.tolist() == [1.5, 2.0]
    assert call(lambda prompts, completions: [np.float32(1), np.int64(2)]).total.tolist() == [1.0, 2.0]
    assert call(lambda prompts, completions: torch.tensor([1.0, 0.0])).total.tolist() == [1.0, 0.0]


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ([1.0], "returned 1 rewards for 2"),
        ([1.0, float("nan")], "reward 1 is nan"),
        ([float("inf"), 0.0], "reward 0 is inf"),
        ([1.0, "2"], "reward 1 is '2'"),
        (3.0, "returned float"),
        (None, "returned NoneType"),
        ("ab", "returned str"),
    ],
)
def test_garbage_is_named(value, named: str):
    def my_reward(prompts, completions, **columns):
        return value

    with pytest.raises(UserError, match=named) as caught:
        call(my_reward)
    assert "my_reward" in str(caught.value)


def test_an_exception_of_the_users_function_is_theirs():
    def broken(prompts, completions):
        raise KeyError("x")

    with pytest.raises(KeyError):
        call(broken)
