"""A child process that hangs, dies, exceeds its memory or is interrupted; reward functions in a child process."""

import os
import pickle
import signal
import threading
import time
from pathlib import Path

import pytest

import reward_samples
from lfpo.base.errors import UserError
from lfpo.rewards import in_child, score
from lfpo.rewards.child_process import ChildFailed, ChildProcess, resident_bytes
from lfpo.rewards.scoring import RewardTimeout, time_limit
from lfpo.train.config import LFPOConfig
from lfpo.train.setup import make_source


def start_child(seconds: float = 30.0, memory: int = 0) -> ChildProcess:
    return ChildProcess("reward_samples:obey", seconds, memory)


@pytest.mark.parametrize(
    ("do", "value", "reason"),
    [
        ("c", 0, "more than 0.5 s"),
        ("sleep", 100, "more than 0.5 s"),
        ("half", 0, "more than 0.5 s"),
        ("stop", 0, "more than 0.5 s"),
        ("exit", -9, "was ended by signal 9"),
        ("exit", 3, "ended with exit code 3"),
    ],
)
def test_a_child_without_an_answer_is_killed_and_replaced(do: str, value: int, reason: str):
    child = start_child()
    assert child.call(do="say", value=1) == 1
    first, child.seconds = child.process, 0.5
    with pytest.raises(ChildFailed, match=reason):
        child.call(do=do, value=value)
    assert first is not None and first.poll() is not None and child.process is None
    child.seconds = 30.0
    assert child.call(do="say", value=[2]) == [2]
    child.stop()


def test_a_late_answer_is_not_read_as_the_answer_to_the_next_request():
    child = start_child()
    child.call(do="say", value=0)
    with pytest.raises(RewardTimeout), time_limit(0.2):
        child.call(do="sleep", value=0.5)
    assert child.process is None
    time.sleep(0.5)
    assert child.call(do="say", value="mine") == "mine"
    child.stop()


def test_requests_and_answers_larger_than_a_pipe():
    child = start_child()
    assert child.call(do="say", value="x" * 1_000_000) == "x" * 1_000_000
    assert child.process is not None
    os.kill(child.process.pid, signal.SIGSTOP)  # it never reads the next request
    child.seconds = 0.5
    with pytest.raises(ChildFailed, match=r"more than 0\.5 s"):
        child.call(do="say", value="x" * 1_000_000)


def test_a_child_outlives_the_thread_that_started_it_and_is_replaced_once_it_ended():
    child = start_child()
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
    child.stop()


@pytest.mark.skipif(not resident_bytes(os.getpid()), reason="memory is read from /proc")
def test_memory_is_limited_and_a_slow_leak_loses_no_answer():
    child = start_child(memory=200 << 20)
    pids = []
    for _ in range(6):
        assert child.call(do="hold", value=30 << 20) == 30 << 20
        pids.append(child.process.pid if child.process else 0)
    assert 0 in pids and len(set(pids)) >= 3  # replaced after the answer, more than once
    with pytest.raises(ChildFailed, match=r"GiB of memory, more than 0.20 GiB"):
        child.call(do="hold", value=1 << 30)
    assert child.call(do="say", value=1) == 1
    child.stop()


# ---------------------------------------------------------------- reward functions


def scored(function, completions: list[str], timeout: float = 0.0, **columns):
    return score([function], [1.0], ["p"] * len(completions), completions, [[1]] * len(completions), columns, timeout)


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "own_rewards.py").write_text(
        "import itertools, os\n"
        "from lfpo.base.errors import UserError\n"
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
    found = scored(function, ["a", "bcd", ""], want=[1, None, 0.5])
    assert found.parts == {"length": [2.0, None, 0.5]} and not found.failed
    here = scored(reward_samples.even_tokens, ["a", "bcd"])
    assert scored(in_child(reward_samples.even_tokens), ["a", "bcd"]).parts == here.parts


def test_a_c_call_that_never_returns_fails_its_batch_only(module: str):
    function = in_child(f"{module}:endless", seconds=60.0)
    assert scored(function, ["a"]).reward_B.tolist() == [1.0]
    found = scored(function, ["c"], timeout=0.5)  # by the signal
    assert found.failed == {"endless": "it ran for more than 0.5 s"} and found.parts == {"endless": [None]}
    function.child.seconds = 0.5  # type: ignore[attr-defined]
    assert "it ran for more than 0.5 s" in scored(function, ["c"]).failed["endless"]  # by the child's own time limit
    function.child.seconds = 60.0  # type: ignore[attr-defined]
    assert scored(function, ["b", "b"]).reward_B.tolist() == [1.0, 1.0]


def test_errors_of_a_function_in_a_child_are_reported_as_without_one(module: str):
    assert scored(in_child(f"{module}.raises"), ["a"]).failed == {
        "raises": "ConnectionError: no judge (own_rewards.py:9)"
    }
    with pytest.raises(UserError, match="row 3 has no answer"):
        scored(in_child(f"{module}.refuses"), ["a"])
    with pytest.raises(UserError, match="reward function 'text': reward 0 is 'very good'"):
        scored(in_child(f"{module}.text"), ["a"])


def test_a_function_that_a_child_cannot_import_is_a_user_error():
    with pytest.raises(UserError, match=r"'<lambda>'.*at the top of a module"):
        in_child(lambda completions: [0.0])
    with pytest.raises(UserError, match="no 'nothing'"):
        in_child("reward_samples:nothing")


def test_reward_memory_runs_functions_in_children(module: str):
    args = LFPOConfig(output_dir="x", task="choice", reward_funcs=[f"{module}.length"], reward_memory=2.0)
    (function,) = make_source(args, None, None, None).reward_functions
    assert function.child.memory == 2 << 30 and function.child.seconds == args.reward_timeout  # type: ignore[attr-defined]
    (function,) = make_source(args, reward_samples.even_tokens, None, None).reward_functions
    assert function.__name__ == "even_tokens" and function.child.memory == 2 << 30  # type: ignore[attr-defined]
    with pytest.raises(UserError, match="reward_memory limits the functions of reward_funcs"):
        make_source(LFPOConfig(output_dir="x", task="choice", reward_memory=1.0), None, None, None)
    with pytest.raises(ValueError, match=r"'reward_memory' -1\.0 must be GiB"):
        LFPOConfig(output_dir="x", task="choice", reward_memory=-1)
