"""Kind: what a reward function may do. Edits of what it gets, children, the working directory, errors late in a run."""

import asyncio
import copy
import errno
import functools
import importlib
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import tiny
from letter_runs import config, metrics
from lfpo.config.errors import UserError
from lfpo.config.plugins import resolve
from lfpo.core import learner
from lfpo.core.attempts import handling
from lfpo.prompts.sources import task_judge
from lfpo.prompts.tasks import Row
from lfpo.runs.context import StopRequests
from lfpo.train import run
from lfpo.train.rl import LFPOTrainer
from processes import run_lfpo
from scores import score
from soon import soon


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write_llada(tmp_path_factory.mktemp("effects") / "llada")


ROWS: list[Row] = [{"prompt": text, "tests": [text, {"deep": [1]}]} for text in ("ab", "cd")]


def vandal(prompts, completions, completion_ids, tests, **columns):
    """Edits all that it gets, in place and deep inside."""
    for prompt, completion in zip(prompts, completions, strict=True):
        if isinstance(prompt, list):
            prompt.extend(completion)
            prompt[0]["content"] = "edited"
    for row in tests:
        row[1]["deep"].append(2)
        row.pop(0)
    for ids in completion_ids:
        ids.clear()
    n = len(completions)
    prompts.clear(), completions.pop(), tests.clear()
    return [0.5] * n


def test_edits_are_not_seen_by_the_next_function_nor_by_other_rollouts_of_the_row():
    messages = [{"role": "user", "content": "2 + 2"}]
    row = ["2", {"deep": [1]}]  # one object for both rollouts, as in a group
    seen: list[Any] = []

    def watch(prompts, completions, completion_ids, tests):
        seen.append(copy.deepcopy([prompts, completions, completion_ids, tests]))
        return [1.0] * len(completions)

    answers = [[{"role": "assistant", "content": "4"}] for _ in range(2)]
    arguments: list[Any] = [[messages] * 2, answers, [[1], [2]], [row] * 2]
    before = copy.deepcopy(arguments)
    prompts, completions, ids, tests = arguments
    rewards = score([watch, vandal, watch], [1.0] * 3, prompts, completions, ids, {"tests": tests})
    assert not rewards.failed and rewards.parts["vandal"] == [0.5, 0.5]
    assert seen == [before, before] and arguments == before


def without_prompts(completions, answer):
    return [float(a == c) for a, c in zip(answer, completions, strict=True)]


def of_prompts_alone(prompts):
    return [1.0] * len(prompts)


def needs_solution(prompts, completions, solution):
    return [0.0] * len(prompts)


def logs_if_it_can(prompts, completions, log_metric=None, trainer_state=None):
    return [0.0] * len(prompts)


async def waits(prompts, completions, **columns):
    return [0.0] * len(prompts)


def gives_a_coroutine(prompts, completions, **columns):
    return waits(prompts, completions)


@functools.wraps(waits)
def runs_it(*args, **kwargs):
    return asyncio.run(waits(*args, **kwargs))


@functools.wraps(waits)
def passes_it_on(*args, **kwargs):
    return waits(*args, **kwargs)


def test_a_function_gets_the_arguments_that_it_names():
    columns = {"answer": ["c", "d"]}
    functions: list[Any] = [without_prompts, of_prompts_alone, logs_if_it_can, runs_it]
    rewards = score(functions, [1.0, 2.0, 1.0, 1.0], ["p"] * 2, ["c"] * 2, [[1]] * 2, columns)
    assert rewards.reward_B.tolist() == [3.0, 2.0] and not rewards.failed


@pytest.mark.parametrize("memory", [0.0, pytest.param(1.0, marks=pytest.mark.long)])
@pytest.mark.parametrize(
    ("function", "says"),
    [
        (
            needs_solution,
            "'needs_solution': needs 'solution', which it is not given: the rows have tests; rename",
        ),
        (waits, "is asynchronous; give a plain function, or run it by asyncio.run"),
        (gives_a_coroutine, "gives_a_coroutine'?: is asynchronous; give a plain function"),
        (passes_it_on, "is asynchronous; give a plain function"),
    ],
)
def test_a_function_that_cannot_be_called_says_why_at_start(
    model: Path, tmp_path: Path, function: Any, says: str, memory: float
):
    with pytest.raises(UserError, match=says):
        LFPOTrainer(str(model), function, config(tmp_path, reward_memory=memory), copy.deepcopy(ROWS))


STATES: dict[str, tuple[str, Callable[[], object]]] = {
    "gradients": ("torch.set_grad_enabled(False)", torch.is_grad_enabled),
    "device": ("torch.set_default_device('meta')", torch.get_default_device),
}


@pytest.mark.parametrize("kind", STATES)
def test_what_a_module_or_a_function_sets_in_torch_ends_with_it(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    line, state = STATES[kind]
    before, name = state(), f"sets_{kind}"
    (tmp_path / f"{name}.py").write_text(
        f"import torch\n{line}\ndef reward(prompts, completions, **_):\n    {line}\n    return [1.0] * len(prompts)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    function = resolve(f"{name}.reward", {}, kind="reward function")
    assert state() == before
    assert not score([function], [1.0], ["p"], ["c"], [[1]], {}).failed
    assert state() == before
    assert torch.ones(1, requires_grad=True).add(1).requires_grad and torch.ones(1).device.type == "cpu"


@pytest.mark.parametrize("kind", STATES)
def test_what_a_callback_or_map_row_sets_in_torch_ends_with_it(
    kind: str, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    line, state = STATES[kind]
    before, name = state(), f"maps_{kind}"
    (tmp_path / f"{name}.py").write_text(
        f"import torch\nfrom transformers import TrainerCallback\ndef row(row):\n    {line}\n    return row\n"
        f"class Sets(TrainerCallback):\n    def on_step_begin(self, *args, **kwargs):\n        {line}\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    args = config(tmp_path, max_steps=1, map_row=f"{name}.row")
    sets = importlib.import_module(name).Sets()
    trainer = LFPOTrainer(str(model), [vandal], args, copy.deepcopy(ROWS), callbacks=[sets])
    assert state() == before
    trainer.events.call("on_step_begin", 0)
    assert state() == before and torch.ones(1, requires_grad=True).add(1).requires_grad


def test_a_verifier_gets_copies_too():
    rows = copy.deepcopy(ROWS)

    def verifies(rows, completions):
        for row in rows:
            row["tests"].clear()
            del row["prompt"]
        return [True] * len(rows)

    judge = task_judge(SimpleNamespace(correct_all=verifies))  # type: ignore[arg-type]
    assert judge(rows, ["x", "y"], {}).values == [True, True] and rows == ROWS


def test_rows_are_the_same_after_a_run_whose_function_edits_them(model: Path, tmp_path: Path):
    rows, before = copy.deepcopy(ROWS), copy.deepcopy(ROWS)
    LFPOTrainer(str(model), [vandal], config(tmp_path, max_steps=2), rows, rows).train()
    assert rows == before
    assert all("rewards/vandal/failed" not in row for row in metrics(tmp_path / "run"))


def wait_for_a_signal(ready: Any) -> None:
    ready.set()
    signal.pause()


def ended_by(number: int) -> int:
    """Start a child, send it a signal, and return its exit code."""
    context = multiprocessing.get_context("fork")
    ready = context.Event()
    child = context.Process(target=wait_for_a_signal, args=(ready,))
    child.start()
    assert ready.wait(20)
    os.kill(child.pid or 0, number)
    child.join(20)
    code = child.exitcode
    child.kill()
    assert code is not None, "the child ignored the signal"
    return code


def doubled(x: int) -> int:
    return 2 * x


def test_forked_children_have_default_handlers_and_the_parent_keeps_its_own():
    with StopRequests() as stop:
        assert ended_by(signal.SIGTERM) == -signal.SIGTERM
        assert ended_by(signal.SIGUSR1) == -signal.SIGUSR1
        with multiprocessing.get_context("fork").Pool(2) as pool:  # its end terminates the workers
            assert pool.map(doubled, [1, 2]) == [2, 4]
        sleeper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        sleeper.terminate()
        assert sleeper.wait(20) == -signal.SIGTERM
        assert stop.received is None
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.received == signal.SIGTERM


def test_nested_handlers_are_put_back_in_their_order():
    before, calls = signal.getsignal(signal.SIGUSR1), list[str]()
    with handling({signal.SIGUSR1: lambda *_: calls.append("outer")}):
        with handling({signal.SIGUSR1: lambda *_: calls.append("inner")}):
            signal.raise_signal(signal.SIGUSR1)
        signal.raise_signal(signal.SIGUSR1)
    assert calls == ["inner", "outer"] and signal.getsignal(signal.SIGUSR1) is before


def test_a_module_is_found_after_the_working_directory_has_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "imported_late.py").write_text("value = 3\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    resolve("reward_samples.even_tokens", {}, kind="reward function")
    os.chdir("/")
    assert importlib.import_module("imported_late").value == 3


def test_a_function_that_changes_the_working_directory_moves_nothing(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)  # and puts the old one back at the end

    def wanders(prompts, completions, **columns):
        with tempfile.TemporaryDirectory() as folder:  # which is gone when the function has returned
            os.chdir(folder)
        return [float(len(c)) for c in completions]

    args = config(tmp_path, output_dir="runs/mine", max_steps=2, eval_samplers={}, eval_steps=0)
    folder = LFPOTrainer(str(model), [wanders], args, ROWS).train()
    assert folder == tmp_path / "runs/mine/model" and (folder / "config.json").exists()
    assert [row["step"] for row in metrics(tmp_path / "runs/mine")] == [1, 2]
    assert sorted(p.name for p in (tmp_path / "runs/mine/checkpoints").iterdir()) == ["step-1", "step-2"]


def late(outcome: Any) -> Any:
    """A reward function that works twice, at start and in the first iteration, and then does something else."""
    calls = [0]

    def rewarded(prompts, completions, **columns):
        calls[0] += 1
        if calls[0] <= 2:
            return [float(len(c) % 2) for c in completions]
        return outcome(len(completions))

    return rewarded


def raises(error: BaseException) -> Any:
    def outcome(n: int) -> Any:
        raise error

    return outcome


@pytest.mark.parametrize(
    ("outcome", "says"),
    soon(
        [
            (raises(UserError("row 7 has no answer")), "row 7 has no answer"),
            (lambda n: [float("nan")] * n, "reward 0 is nan"),
            (lambda n: ["good"] * n, "reward 0 is 'good'"),
            (lambda n: [0.0], "returned 1 rewards for 8"),
        ],
        *(0, 1),
    ),
)
def test_an_error_late_in_a_run_leaves_a_checkpoint_and_says_how_to_go_on(outcome, says: str, model, tmp_path: Path):
    args = config(tmp_path, save_steps=100, eval_samplers={}, eval_steps=0)
    with pytest.raises(UserError, match=says) as error:
        LFPOTrainer(str(model), [late(outcome)], args, ROWS).train()
    assert "step-1 holds everything learned; --resume continues" in str(error.value)
    trainer = LFPOTrainer(str(model), [late(lambda n: [1.0] * n)], args, ROWS)
    trainer.train(resume=True)
    assert [row["step"] for row in metrics(tmp_path / "run")] == [1, 2, 3]


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), ZeroDivisionError("a bug")])
def test_any_exception_after_an_iteration_leaves_a_checkpoint(
    error: Exception, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    real = learner.optimizer_step

    def fails(*arguments: Any) -> Any:
        done, step = real(*arguments), arguments[4]
        if step.iteration == 1:  # in the middle of an update
            raise error
        return done

    monkeypatch.setattr(learner, "optimizer_step", fails)
    args = config(tmp_path, save_steps=100, eval_samplers={}, eval_steps=0)
    expected = UserError if isinstance(error, OSError) else ZeroDivisionError  # bugs keep their traceback
    with pytest.raises(expected) as raised:
        LFPOTrainer(str(model), [late(lambda n: [1.0] * n)], args, ROWS).train()
    told = str(raised.value) + capsys.readouterr().out
    assert "step-1 holds everything learned; --resume continues" in " ".join(told.split())
    assert (tmp_path / "run/checkpoints/step-1/manifest.json").exists()


def test_what_cannot_be_saved_does_not_hide_what_ended_the_run(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def broken(*given: Any, **more: Any) -> None:
        raise RuntimeError("CUDA error: device-side assert triggered")

    monkeypatch.setattr(run, "save_checkpoint", broken)
    args = config(tmp_path, save_steps=100, eval_samplers={}, eval_steps=0)
    with pytest.raises(UserError, match=r"row 7 has no answer; .* since iteration 0 could not be saved: CUDA error"):
        LFPOTrainer(str(model), [late(raises(UserError("row 7 has no answer")))], args, ROWS).train()


def partly(prompts, completions, **columns):
    """None for every second completion, and rewards below 0 for the others."""
    return [None if i % 2 else -float(len(c) % 3) for i, c in enumerate(completions)]


def test_none_is_null_in_records_and_neutral_in_training_and_evaluation(model: Path, tmp_path: Path):
    LFPOTrainer(str(model), [partly], config(tmp_path, max_steps=1, eval_steps=1), ROWS, ROWS).train()
    rows = [json.loads(line) for line in (tmp_path / "run/rollouts/step-1.jsonl").read_text().splitlines()]
    assert [row["reward"] is None for row in rows] == [False, True] * 4
    assert all(row["r"] == 0.5 for row in rows if row["reward"] is None)
    line, scored = metrics(tmp_path / "run")[-1], [row["reward"] for row in rows[::2]]
    assert line["reward"] == pytest.approx(sum(scored) / 4) == pytest.approx(line["rewards/partly/mean"])
    # Two held-out rows, of which the second has no reward: the mean is the first one's.
    assert line["eval/greedy/reward"] in (0.0, -1.0, -2.0)


def test_a_batch_whose_function_raised_is_null_and_makes_no_update(model: Path, tmp_path: Path):
    args = config(tmp_path, max_steps=2, eval_samplers={}, eval_steps=0)
    LFPOTrainer(str(model), [late(raises(KeyError("x")))], args, ROWS).train()
    line = metrics(tmp_path / "run")[-1]
    assert line["reward"] is None and line["reward_std"] is None and line["grad_norm"] is None
    assert line["rewards/rewarded/failed"] == 1 and line["r"] == 0.5 and line["frac_signal"] == 0
    rows = [json.loads(text) for text in (tmp_path / "run/rollouts/step-2.jsonl").read_text().splitlines()]
    assert {row["reward"] for row in rows} == {None}


def needs_answer(prompts, completions, tests, **columns):
    return [float(len(row)) for row in tests if row[0]]


def test_held_out_rows_are_tried_at_start(model: Path, tmp_path: Path):
    held_out: list[Row] = [{"prompt": "ab", "tests": []}]
    with pytest.raises(UserError, match=r"needs_answer.*failed on its first call with held-out rows.*IndexError"):
        LFPOTrainer(str(model), [needs_answer], config(tmp_path), ROWS, held_out)


def test_why_a_function_failed_in_evaluations_is_said(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    def fails_on_one(prompts, completions, **columns):
        if len(prompts) == 3:  # held-out rows: the check at start sees four stand-ins
            raise ValueError("no such column")
        return [float(len(c)) for c in completions]

    rows = [*ROWS, {"prompt": "ef", "tests": ["ef"]}]
    LFPOTrainer(str(model), [fails_on_one], config(tmp_path, max_steps=2, eval_steps=1), ROWS, rows).train()
    assert [row.get("eval/greedy/reward", 0) for row in metrics(tmp_path / "run")] == [None] * 3
    assert " ".join(capsys.readouterr().out.split()).count("no such column") == 3


@pytest.mark.long
def test_a_failure_on_one_rank_costs_its_rollouts_alone(model: Path, tmp_path: Path):
    """Rank 1 fails in every batch but the one at start; six batches would end a run if all ranks had failed."""
    run_lfpo(
        *("train", "choice", "--model", str(model), "--output_dir", str(tmp_path / "run"), "--max_steps", "6"),
        *("--prompts_per_iteration", "2", "--num_generations", "4", "--eval_steps", "0", "--eval_samplers", "{}"),
        *(
            "--reward_funcs",
            "[reward_samples.only_on_rank_0]",
            "--threads",
            "1",
            "--sampler",
            "{threshold: null, remasking: random}",
        ),
        ranks=2,
    )
    lines = metrics(tmp_path / "run")
    assert len(lines) == 6 and all(line["rewards/only_on_rank_0/failed"] == 0.5 for line in lines)
    assert all(line["grad_norm"] is not None for line in lines)
    rows = [json.loads(text) for text in (tmp_path / "run/rollouts/step-6.jsonl").read_text().splitlines()]
    assert [row["reward"] is None for row in rows] == [False] * 4 + [True] * 4


def test_torch_s_newer_name_of_the_precision_breaks_nothing(monkeypatch: pytest.MonkeyPatch):
    def refuses() -> str:
        raise RuntimeError("mixed names")

    monkeypatch.setattr(torch, "get_float32_matmul_precision", refuses)
    assert not score([lambda prompts, completions: [1.0]], [1.0], ["p"], ["c"], [[1]], {}).failed
