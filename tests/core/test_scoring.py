"""Reward functions: what they get and may return, time limits, ready terms, and functions in a child process."""

import asyncio
import contextlib
import os
import pickle
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import reward_samples
from lfpo.config.errors import UserError
from lfpo.config.train import LFPOConfig
from lfpo.core.attempts import RewardTimeout, time_limit
from lfpo.rewards import in_child
from lfpo.rewards.child_process import ChildFailed, ChildProcess, resident_bytes
from lfpo.rewards.each import each
from lfpo.rewards.terms import (
    overlong_penalty,
    relative_length,
    target_length,
    tokens,
    tokens_per_forward,
    weighted,
)
from lfpo.train.setup import training_source
from scores import score


def scored(*functions, completions=("a", "bb"), weights=None, ids=None, prompts=None, timeout=0.0, **columns):
    """The rewards of some completions, by default two; ids: lengths in tokens."""
    n = len(ids or completions)
    ids = [[7] * length for length in ids or range(1, n + 1)]
    texts = list(completions) if len(completions) == n else ["c"] * n
    return score(functions, weights or [1.0] * len(functions), prompts or ["p"] * n, texts, ids, columns, timeout)


def test_weighted_parts_and_none():
    def length(prompts, completions, **columns):
        return [len(c) for c in completions]

    def sometimes(completions, answer, **_):
        return [None if a is None else float(a == c) for a, c in zip(answer, completions, strict=True)]

    rewards = scored(length, sometimes, weights=[0.5, 2.0], answer=[None, "bb"])
    assert rewards.reward_B.tolist() == [0.5, 3.0]
    assert rewards.parts == {"length": [1.0, 2.0], "sometimes": [None, 1.0]}


@each
def same(text: str, answer: str) -> float:
    return text == answer


def test_a_grader_of_one_completion_is_a_reward_function_of_a_batch():
    chat = [{"role": "assistant", "content": "b"}]
    assert same(None, ["a", chat, "c"], answer=["a", "b", "a"], other=[1]) == [1.0, 1.0, 0.0]
    assert scored(same, answer=["a", "a"], other=[1, 1]).parts == {"same": [1.0, 0.0]}
    assert "missing a required argument: 'answer'" in scored(same, other=[1, 1]).failed["same"]


def fails_with(error: BaseException):
    def broken(prompts, completions):
        raise error

    return broken


def test_a_function_that_raises_or_exits_does_not_affect_the_others():
    for error, said in (
        (KeyError("x"), "KeyError: 'x'"),
        (SystemExit(2), "SystemExit: 2"),
        (asyncio.CancelledError("late"), "asyncio.exceptions.CancelledError: late"),
        (GeneratorExit(), "GeneratorExit"),
        (BaseExceptionGroup("several", [GeneratorExit()]), "BaseExceptionGroup: several (1 sub-exception)"),
        (pytest.fail.Exception("no"), "Failed: no"),
    ):
        rewards = scored(fails_with(error), lambda prompts, completions: [1.0, 2.0])
        assert rewards.reward_B.tolist() == [1.0, 2.0]
        assert rewards.parts == {"broken": [None, None], "<lambda>": [1.0, 2.0]}
        assert rewards.failed.keys() == {"broken"}
        assert re.fullmatch(re.escape(said) + r" \(test_scoring.py:\d+\)", rewards.failed["broken"])


def test_a_user_error_of_the_function_is_raised():
    with pytest.raises(UserError, match="row 3"):
        scored(fails_with(UserError("row 3: no tests")))


def timed(function, timeout: float):
    before, started = signal.getsignal(signal.SIGALRM), time.monotonic()
    rewards = scored(function, timeout=timeout)
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
        result = pool.submit(scored, lambda prompts, completions: [1.0, 2.0], timeout=0.5).result()
    assert result.reward_B.tolist() == [1.0, 2.0]


# Terms


def rewards_of(function, lengths, prompts=None, **columns):
    found = scored(function, ids=lengths, prompts=prompts, **columns)
    assert not found.failed
    return next(iter(found.parts.values()))


def half(prompts, completions, want):
    return [None if w is None else 0.5 for w in want]


@pytest.mark.parametrize(
    ("term", "lengths", "more", "expected"),
    [
        # DAPO's equation. L_max 10, L_cache 4: 0 up to 6, then (6 - length) / 4, then -1.
        (overlong_penalty(10, 4), [0, 6, 7, 9, 10, 11], {}, [0.0, 0.0, -0.25, -0.75, -1.0, -1.0]),
        (tokens, [3, 0], {}, [3.0, 0.0]),
        (relative_length, [2, 4, 6, 5, 5], {"prompts": ["p"] * 3 + ["q"] * 2}, [0.5, 0.0, -0.5, 0.0, 0.0]),
        (target_length(alpha=0.5), [3, 3, 3], {"target_length": [3, 1, 7]}, [0.0, -1.0, -2.0]),
        (target_length("n", 1.0), [3], {"n": [4]}, [-1.0]),
        (weighted(half, "w"), [1, 1, 1], {"want": [1, 1, None], "w": [2, 0.5, 3]}, [1.0, 0.25, None]),
        (weighted(tokens, "w"), [4], {"w": [2.0]}, [8.0]),
    ],
)
def test_terms_by_hand(term, lengths, more, expected):
    assert rewards_of(term, lengths, **more) == expected


@pytest.mark.parametrize(
    ("right", "expected"),
    [
        (None, [0.25, 0.5, 1.0, 1.0]),  # 4 tokens in 4, 2, 1 forwards; 8 in 1
        (half, [0.25, 0.0, 1.0, 1.0]),  # the second is wrong: its reward is None
    ],
)
def test_speed_by_hand(right, expected):
    ids, texts = [[7] * n for n in (4, 4, 4, 8)], ["c"] * 4
    function = tokens_per_forward(4.0, right)
    found = score([function], [1.0], ["p"] * 4, texts, ids, {"want": [1, None, 1, 1]}, forwards=[4, 2, 1, 1])
    assert not found.failed and found.parts == {"speed": expected}


def test_a_column_that_is_missing_fails_the_batch_and_is_named():
    assert weighted(half, "w").__name__ == "half"
    assert scored(weighted(half, "w"), want=[1, 1]).failed["half"].startswith("KeyError: 'w'")


# In a child process


@pytest.fixture
def child() -> Iterator[ChildProcess]:
    child = ChildProcess("reward_samples:obey", 30.0)
    yield child
    child.stop()


def test_a_function_in_a_child_that_is_cancelled_says_so():
    function = in_child("reward_samples.cancelled")
    with contextlib.ExitStack() as stack:
        stack.callback(function.child.stop)  # type: ignore[attr-defined]
        failed = scored(function).failed["cancelled"]
    assert re.fullmatch(r"asyncio.exceptions.CancelledError: late \(reward_samples.py:\d+\)", failed)


@pytest.mark.parametrize(
    ("do", "value", "reason"),
    [
        ("c", 0, "more than 0.5 s"),
        ("sleep", 100, "more than 0.5 s"),
        ("stop", 0, "more than 0.5 s"),
        ("fork", 100, "more than 0.5 s"),
        ("exit", -9, "was ended by signal 9"),
        ("exit", 3, "ended with exit code 3"),
    ],
)
def test_a_child_without_an_answer_is_killed_and_replaced(do: str, value: int, reason: str, child: ChildProcess):
    assert child.call(do="say", value=1) == 1
    first, child.seconds, began = child.process, 0.5, time.monotonic()
    with pytest.raises(ChildFailed, match=reason):
        child.call(do=do, value=value)
    assert time.monotonic() - began < 20
    assert first is not None and first.poll() is not None and child.process is None
    child.seconds = 30.0
    assert child.call(do="say", value=[2]) == [2]


def test_a_program_that_the_function_starts_cannot_answer_for_it(child: ChildProcess):
    assert child.call(do="forge", value=0) == 0
    assert child.call(do="say", value=2) == 2


def test_a_late_answer_is_not_read_as_the_answer_to_the_next_request(child: ChildProcess):
    child.call(do="say", value=0)
    with pytest.raises(RewardTimeout), time_limit(0.2):
        child.call(do="sleep", value=0.5)
    assert child.process is None
    time.sleep(0.5)
    assert child.call(do="say", value="mine") == "mine"


def test_requests_and_answers_larger_than_a_pipe(child: ChildProcess):
    assert child.call(do="say", value="x" * 1_000_000) == "x" * 1_000_000


def test_a_child_outlives_the_thread_that_started_it_and_is_replaced_once_it_ended(child: ChildProcess):
    thread = threading.Thread(target=lambda: child.call(do="say", value=1))
    thread.start()
    thread.join()
    first = child.process
    assert first is not None
    time.sleep(0.2)
    assert child.call(do="say", value=2) == 2 and child.process is first
    with pytest.raises(ChildFailed, match="TypeError"):
        child.call(unknown=3)
    first.kill()
    first.wait()
    assert pickle.loads(pickle.dumps(child)).call(do="say", value=3) == child.call(do="say", value=3) == 3


@pytest.mark.skipif(not resident_bytes(os.getpid()), reason="memory is read from /proc")
def test_memory_is_limited_and_a_slow_leak_loses_no_answer(child: ChildProcess):
    child.memory = 200 << 20
    pids = []
    for _ in range(6):
        assert child.call(do="hold", value=30 << 20) == 30 << 20
        pids.append(child.process.pid if child.process else 0)
    assert 0 in pids and len(set(pids)) >= 3  # replaced after the answer, more than once
    with pytest.raises(ChildFailed, match=r"GiB of memory, more than 0.20 GiB"):
        child.call(do="hold", value=1 << 30)
    assert child.call(do="say", value=1) == 1


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "own_rewards.py").write_text(
        "import itertools, os\n"
        "from lfpo.config.errors import UserError\n"
        "def length(prompts, completions, want):\n"
        "    print('printed, not an answer')\n"
        "    return [None if w is None else float(len(t) + w) for t, w in zip(completions, want)]\n"
        "def endless(completions, **columns):\n"
        "    return [sum(itertools.repeat(0)) if 'c' in completions else 1.0 for t in completions]\n"
        "def raises(completions, **columns):\n"
        "    raise ConnectionError('no judge')\n"
        "def refuses(completions, **columns):\n"
        "    raise UserError('row 3 has no answer')\n"
        "def text(completions, **columns):\n"
        "    return ['very good'] * len(completions)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    return "own_rewards"


def test_a_function_in_a_child_returns_the_same_rewards(module: str):
    function = in_child(f"{module}.length")
    found = scored(function, completions=["a", "bcd", ""], want=[1, None, 0.5])
    assert found.parts == {"length": [2.0, None, 0.5]} and not found.failed
    here = scored(reward_samples.even_tokens, completions=["a", "bcd"])
    assert scored(in_child(reward_samples.even_tokens), completions=["a", "bcd"]).parts == here.parts


def test_a_c_call_that_never_returns_fails_its_batch_only(module: str):
    function = in_child(f"{module}:endless", seconds=60.0)
    assert scored(function, completions=["a"]).reward_B.tolist() == [1.0]
    found = scored(function, completions=["c"], timeout=0.5)  # by the signal
    assert found.failed == {"endless": "it ran for more than 0.5 s"} and found.parts == {"endless": [None]}
    function.child.seconds = 0.5  # type: ignore[attr-defined]
    assert (
        "it ran for more than 0.5 s" in scored(function, completions=["c"]).failed["endless"]
    )  # by the child's own time limit
    function.child.seconds = 60.0  # type: ignore[attr-defined]
    assert scored(function, completions=["b", "b"]).reward_B.tolist() == [1.0, 1.0]


def test_errors_of_a_function_in_a_child_are_reported_as_without_one(module: str):
    assert scored(in_child(f"{module}.raises"), completions=["a"]).failed == {
        "raises": "ConnectionError: no judge (own_rewards.py:9)"
    }
    with pytest.raises(UserError, match="row 3 has no answer"):
        scored(in_child(f"{module}.refuses"), completions=["a"])
    with pytest.raises(UserError, match="reward function 'text': reward 0 is 'very good'"):
        scored(in_child(f"{module}.text"), completions=["a"])


def test_reward_memory_runs_functions_in_children(module: str):
    args = LFPOConfig(output_dir="x", task="choice", reward_funcs=[f"{module}.endless"], reward_memory=2.0)
    (function,) = training_source(args, None, None, None).reward_functions
    assert function.child.memory == 2 << 30 and function.child.seconds == args.reward_timeout  # type: ignore[attr-defined]
    (function,) = training_source(args, reward_samples.even_tokens, None, None).reward_functions
    assert function.__name__ == "even_tokens" and function.child.memory == 2 << 30  # type: ignore[attr-defined]
