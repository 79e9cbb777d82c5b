import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from lfpo.base.errors import UserError
from lfpo.rewards import score
from lfpo.rewards.each import each


def call(*functions, weights=None, columns=None):
    return score(functions, weights or [1.0] * len(functions), ["p", "q"], ["a", "bb"], [[1], [2, 3]], columns or {})


def test_weighted_parts_and_none():
    def length(prompts, completions, **columns):
        return [len(c) for c in completions]

    def sometimes(completions, answer, **_):
        return [None if a is None else float(a == c) for a, c in zip(answer, completions, strict=True)]

    rewards = call(length, sometimes, weights=[0.5, 2.0], columns={"answer": [None, "bb"]})
    assert rewards.reward_B.tolist() == [0.5, 3.0]
    assert rewards.parts == {"length": [1.0, 2.0], "sometimes": [None, 1.0]}


def test_functions_get_only_what_they_name():
    def ids(completion_ids, prompts, completions):
        return [len(i) for i in completion_ids]

    assert call(ids, columns={"other": [1, 2]}).reward_B.tolist() == [1.0, 2.0]


@each
def same(text: str, answer: str) -> float:
    return text == answer


def test_a_grader_of_one_completion_is_a_reward_function_of_a_batch():
    chat = [{"role": "assistant", "content": "b"}]
    assert same(None, ["a", chat, "c"], answer=["a", "b", "a"], other=[1]) == [1.0, 1.0, 0.0]
    assert score([same], [2.0], ["p"], ["a"], [[1]], {"answer": ["a"], "other": [1]}).parts == {"same": [1.0]}
    failed = score([same], [1.0], ["p"], ["a"], [[1]], {"other": [1]}).failed["same"]
    assert "missing a required argument: 'answer'" in failed


def test_numpy_and_torch_numbers_are_numbers():
    assert call(lambda prompts, completions: np.array([1.5, 2.0]).tolist()).reward_B.tolist() == [1.5, 2.0]
    assert call(lambda prompts, completions: [np.float32(1), np.int64(2)]).reward_B.tolist() == [1.0, 2.0]
    assert call(lambda prompts, completions: torch.tensor([1.0, 0.0])).reward_B.tolist() == [1.0, 0.0]


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
def test_wrong_return_values_are_user_errors_that_name_the_function(value, named: str):
    def my_reward(prompts, completions, **columns):
        return value

    with pytest.raises(UserError, match=named) as caught:
        call(my_reward)
    assert "my_reward" in str(caught.value)


def fails_with(error: BaseException):
    def broken(prompts, completions):
        raise error

    return broken


def test_a_function_that_raises_or_exits_does_not_affect_the_others():
    for error, said in ((KeyError("x"), "KeyError: 'x'"), (SystemExit(2), "SystemExit: 2")):
        rewards = call(fails_with(error), lambda prompts, completions: [1.0, 2.0])
        assert rewards.reward_B.tolist() == [1.0, 2.0]
        assert rewards.parts == {"broken": [None, None], "<lambda>": [1.0, 2.0]}
        assert rewards.failed.keys() == {"broken"}
        assert re.fullmatch(re.escape(said) + r" \(test_scoring.py:\d+\)", rewards.failed["broken"])


def test_a_user_error_of_the_function_is_raised():
    with pytest.raises(UserError, match="row 3"):
        call(fails_with(UserError("row 3: no tests")))


def timed(function, timeout: float):
    before, started = signal.getsignal(signal.SIGALRM), time.monotonic()
    rewards = score([function], [1.0], ["p", "q"], ["a", "bb"], [[1], [2, 3]], {}, timeout)
    assert signal.getsignal(signal.SIGALRM) is before
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    return rewards, time.monotonic() - started


def test_time_is_limited_also_where_the_function_catches_all_exceptions():
    def sleeps(prompts, completions):
        for _ in completions:
            with contextlib.suppress(Exception):
                time.sleep(60)

    rewards, seconds = timed(sleeps, 0.2)
    assert rewards.failed == {"sleeps": "it ran for more than 0.2 s"}
    assert rewards.parts == {"sleeps": [None, None]}
    assert 0.2 <= seconds < 20
    assert timed(lambda prompts, completions: [1.0, 2.0], 30.0)[0].reward_B.tolist() == [1.0, 2.0]


def test_a_subprocess_that_the_function_waits_for_is_killed(tmp_path):
    code = f"import os, time; open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid())); time.sleep(60)"

    def waits(prompts, completions):
        subprocess.run([sys.executable, "-c", code])

    rewards, seconds = timed(waits, 2.0)
    assert rewards.failed and seconds < 30
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_outside_the_main_thread_the_time_limit_has_no_effect():
    with ThreadPoolExecutor(1) as pool:
        result = pool.submit(score, [lambda prompts, completions: [1.0]], [1.0], ["p"], ["a"], [[1]], {}, 0.5).result()
    assert result.reward_B.tolist() == [1.0]
