"""Terms of a reward on length, and weights by column, against values computed by hand."""

import pytest

from lfpo.base.errors import UserError
from lfpo.rewards import score
from lfpo.rewards.terms import overlong_penalty, relative_length, target_length, tokens, weighted


def rewards_of(function, lengths, prompts=None, **columns):
    ids = [[7] * n for n in lengths]
    found = score([function], [1.0], prompts or ["p"] * len(ids), ["c"] * len(ids), ids, columns)
    assert not found.failed
    return next(iter(found.parts.values()))


def test_overlong_is_dapos_equation():
    # L_max 10, L_cache 4: 0 up to 6, then (6 - length) / 4, then -1.
    assert rewards_of(overlong_penalty(10, 4), [0, 6, 7, 9, 10, 11]) == [0.0, 0.0, -0.25, -0.75, -1.0, -1.0]
    for maximum, buffer in ((10, 0), (10, 11)):
        with pytest.raises(UserError, match=f"buffer {buffer} must be above 0"):
            overlong_penalty(maximum, buffer)


def test_tokens_are_counted():
    assert rewards_of(tokens, [3, 0]) == [3.0, 0.0]


def test_relative_length_is_within_a_prompt():
    assert rewards_of(relative_length, [2, 4, 6, 5, 5], ["p"] * 3 + ["q"] * 2) == [0.5, 0.0, -0.5, 0.0, 0.0]


def test_target_length_is_by_row():
    assert rewards_of(target_length(alpha=0.5), [3, 3, 3], target_length=[3, 1, 7]) == [0.0, -1.0, -2.0]
    assert rewards_of(target_length("n", 1.0), [3], n=[4]) == [-1.0]


def half(prompts, completions, want):
    return [None if w is None else 0.5 for w in want]


def test_a_column_weighs_the_rewards_of_its_rows():
    assert rewards_of(weighted(half, "w"), [1, 1, 1], want=[1, 1, None], w=[2, 0.5, 3]) == [1.0, 0.25, None]
    assert rewards_of(weighted(tokens, "w"), [4], w=[2.0]) == [8.0]
    assert weighted(half, "w").__name__ == "half"


def test_a_column_that_is_missing_or_holds_no_numbers_is_one_sentence():
    with pytest.raises(UserError, match="no column 'w', only completion_ids, want"):
        rewards_of(weighted(half, "w"), [1], want=[1])
    with pytest.raises(UserError, match="column 'w' must hold numbers, found 'x' in row 1 of the batch"):
        rewards_of(weighted(half, "w"), [1, 1], want=[1, 1], w=[1, "x"])
