"""Kind: what ends a run. Whatever it is, what was learned is saved first, and the message says how to go on."""

import asyncio
import errno
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import TrainerCallback

import tiny
from length_runs import ROWS, config, reward
from letter_runs import metrics
from lfpo.base import distributed
from lfpo.config.errors import LOST, ProcessLost, UserError
from lfpo.config.export import ExportConfig
from lfpo.config.sft import SFTConfig
from lfpo.core import collectives
from lfpo.core.learner import Learner
from lfpo.runs.directory import Run
from lfpo.runs.display import Display
from lfpo.train import rl, run
from lfpo.train.checkpoint import save_checkpoint
from lfpo.train.export import run_export
from lfpo.train.rl import LFPOTrainer
from lfpo.train.sft import SFTTrainer, train_sft
from processes import run_ranks

FULL = OSError(errno.ENOSPC, "No space left on device")
KEPT = r"checkpoints/step-2 holds everything learned; --resume continues"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write_llada(tmp_path_factory.mktemp("ends") / "llada")


def failing(work: Callable[..., Any], call: int, error: BaseException) -> Callable[..., Any]:
    """The same function, whose `call`-th call raises."""
    calls = [0]

    def fails(*given: Any, **named: Any) -> Any:
        calls[0] += 1
        if calls[0] == call:
            raise error
        return work(*given, **named)

    return fails


def scores(call: int, error: BaseException) -> Callable[..., Any]:
    """A reward function that fails in its `call`-th call; the first is at start."""
    work = failing(lambda ids: reward([], [], ids), call, error)
    return lambda prompts, completions, completion_ids, **columns: work(completion_ids)


def callback(event: str, error: BaseException) -> Any:
    """One that fails after two iterations."""

    def method(self, args, state, control, **kwargs):
        if state.global_step == 2:
            raise error

    return type("Fails", (TrainerCallback,), {event: method})()


def trainer(model: Path, folder: Path, function: Any = reward, *callbacks: Any, **changes: Any) -> LFPOTrainer:
    args = config(folder, **{"max_steps": 3, **changes})
    return LFPOTrainer(str(model), function, args, ROWS, ROWS[:1], callbacks=list(callbacks))


def assert_goes_on(model: Path, folder: Path, kept: int) -> None:
    """The only checkpoint is of so many iterations, and a resume has every iteration once."""
    assert [path.name for path in (folder / "checkpoints").iterdir()] == [f"step-{kept}"]
    trainer(model, folder).train(resume=True)
    assert [row["step"] for row in metrics(folder)] == [1, 2, 3]


# What ends the run in its third iteration, or after its second.
ENDS: dict[str, tuple[BaseException, Any, Any]] = {
    "interrupt in a reward function": (KeyboardInterrupt("x"), scores, None),
    "cancelled task in a callback": (asyncio.CancelledError(), None, "on_step_end"),
    "interrupt in a callback": (KeyboardInterrupt("x"), None, "on_step_end"),
    "interrupt in the middle of an update": (KeyboardInterrupt("x"), None, "on_optimizer_step"),
    "exit in a callback": (SystemExit(3), None, "on_log"),
}


@pytest.mark.parametrize("name", ENDS)
def test_whatever_ends_a_run_leaves_a_checkpoint(model: Path, tmp_path: Path, capsys, name: str):
    error, function, event = ENDS[name]
    own = [callback(event, error)] if event else []
    with pytest.raises(type(error)):
        trainer(model, tmp_path / "run", scores(4, error) if function else reward, *own).train()
    assert "step-2 holds everything learned; --resume continues" in " ".join(capsys.readouterr().out.split())
    assert_goes_on(model, tmp_path / "run", 2)


def test_a_signal_while_a_run_that_failed_is_saved_leaves_the_checkpoint(model: Path, tmp_path: Path, monkeypatch):
    def interrupted(*given: Any, **named: Any) -> Any:
        os.kill(os.getpid(), signal.SIGTERM)
        return save_checkpoint(*given, **named)

    with monkeypatch.context() as patch:
        patch.setattr(run, "save_checkpoint", interrupted)
        with pytest.raises(KeyboardInterrupt, match="own"):
            trainer(model, tmp_path / "run", scores(4, KeyboardInterrupt("own"))).train()
    assert_goes_on(model, tmp_path / "run", 2)


@pytest.mark.parametrize("error", [MemoryError(), SystemExit(3), RecursionError("x")])
def test_what_one_batch_of_a_reward_function_raises_costs_that_batch(model: Path, tmp_path: Path, error: BaseException):
    trainer(model, tmp_path / "run", scores(3, error)).train()
    rows = metrics(tmp_path / "run")
    assert [row["step"] for row in rows] == [1, 2, 3]
    assert [next(row[k] for k in row if k.endswith("/failed")) if row["reward"] is None else 0 for row in rows] == [
        0,
        1,
        0,
    ]


@pytest.mark.parametrize(
    ("error", "says"),
    [(MemoryError(), "a callback's on_step_end, after iteration 2, failed: MemoryError"), (UserError("mine"), "mine")],
)
def test_errors_of_callbacks_are_one_sentence(model: Path, tmp_path: Path, error: Exception, says: str):
    with pytest.raises(UserError, match=f"{says}.*{KEPT}"):
        trainer(model, tmp_path / "run", reward, callback("on_step_end", error)).train()
    assert_goes_on(model, tmp_path / "run", 2)


def test_a_run_that_goes_on_has_no_trained_model_until_its_end(model: Path, tmp_path: Path):
    """Or `lfpo export`, `push` and whatever loads RUN/model would take the weights of an earlier iteration."""
    folder = tmp_path / "run"

    def exported(name: str) -> tuple[dict[str, torch.Tensor], int]:
        output = run_export(ExportConfig(str(folder), output=str(tmp_path / name)))
        steps = re.findall(r"- Steps: (\d+)", (output / "README.md").read_text())
        return load_file(output / "model.safetensors"), int(*steps)

    trainer(model, folder, max_steps=1).train()
    first, steps = exported("first")
    assert steps == 1
    Run(folder).log({**metrics(folder)[-1], "step": 2})
    assert exported("second")[1] == 1  # a resume that was killed before its first checkpoint had logged one more
    with pytest.raises(KeyboardInterrupt):
        trainer(model, folder, reward, callback("on_step_end", KeyboardInterrupt("x"))).train(resume=True)
    assert not (folder / "model").exists()
    newest = load_file(folder / "checkpoints/step-2/model/model.safetensors")
    third, steps = exported("third")
    assert steps == 2
    assert all(torch.equal(third[name], newest[name]) for name in newest)
    assert any(not torch.equal(third[name], first[name]) for name in newest)
    trainer(model, folder).train(resume=True)
    assert exported("last")[1] == 3


# (owner and name of what fails, its call, the error, what is said)
PARTS: dict[str, tuple[Any, str, int, Exception, str]] = {
    "metrics on a full disk": (Run, "_append", 2, UserError("metrics.jsonl: could not be written"), KEPT),
    "report on a full disk": (run, "write_report", 3, FULL, f"No space left on device.*{KEPT}"),
    "output without a reader": (Display, "update", 3, BrokenPipeError(), f"BrokenPipeError.*{KEPT}"),
    "update": (Learner, "update", 3, torch.OutOfMemoryError("CUDA out of memory"), "CUDA out of memory"),
    "export": (run, "export_model", 1, UserError("model: no space"), r"no space; .*step-3 holds everything learned"),
    "card": (run, "model_card", 2, KeyError("x"), "x"),
}


@pytest.mark.parametrize("name", PARTS)
def test_a_part_that_fails_costs_nothing_that_was_learned(model: Path, tmp_path: Path, monkeypatch, capsys, name: str):
    owner, method, call, error, says = PARTS[name]
    steps = {"eval_steps": 1} if name in ("report on a full disk", "output without a reader") else {}
    with monkeypatch.context() as patch:
        patch.setattr(owner, method, failing(getattr(owner, method), call, error))
        expected = UserError if isinstance(error, UserError | OSError) else type(error)
        with pytest.raises(expected, match=says):
            trainer(model, tmp_path / "run", **steps).train()
    if expected is not UserError:
        assert "holds everything learned; --resume continues" in " ".join(capsys.readouterr().out.split())
    assert (tmp_path / "run/checkpoints").exists()
    trainer(model, tmp_path / "run", **steps).train(resume=True)
    assert [row["step"] for row in metrics(tmp_path / "run")] == [0, 1, 2, 3][not steps :]
    assert (tmp_path / "run/model/config.json").exists()


def test_supervised_training_is_saved_too(tmp_path: Path, monkeypatch):
    settings = SFTConfig(str(tmp_path / "run"), model="embedded", tasks={"choice": 1}, steps=2, batch_size=2)
    said: list[str] = []
    with monkeypatch.context() as patch:
        patch.setattr(SFTTrainer, "run_iteration", failing(SFTTrainer.run_iteration, 2, KeyboardInterrupt()))
        with pytest.raises(KeyboardInterrupt):
            train_sft(settings, report=said.append)
    assert any("step-1 holds everything learned; --resume continues" in line for line in said)
    train_sft(settings, resume=True, report=said.append)
    assert any("resumed from" in line and "step-1" in line for line in said)


class Tracker:
    """A tracker of which one method fails."""

    name = "wandb"

    def __init__(self, method: str, calls: list[str]):
        self.method, self.calls = method, calls

    def __getattr__(self, name: str) -> Any:
        def call(*given: Any, **named: Any) -> None:
            self.calls.append(name)
            if name == self.method:
                raise ConnectionError("network is down")

        return call


@pytest.mark.parametrize("method", ["log", "log_table", "finish"])
def test_a_tracker_that_fails_ends_no_run_and_is_told_once(
    model: Path, tmp_path: Path, monkeypatch, capsys, method: str
):
    calls: list[str] = []
    monkeypatch.setattr("lfpo.runs.trackers._start", lambda *given: Tracker(method, calls))
    trainer(model, tmp_path / "run", report_to=["wandb"]).train()
    said = " ".join(capsys.readouterr().out.split())
    assert said.count("wandb failed, so it gets nothing more: ConnectionError: network is down") == 1
    assert [row["step"] for row in metrics(tmp_path / "run")] == [1, 2, 3]
    assert calls.count(method) == 1 and calls[-1] == "finish"


def test_a_tracker_that_cannot_start_is_one_sentence_and_leaves_no_folder(model: Path, tmp_path: Path, monkeypatch):
    monkeypatch.setattr("lfpo.runs.trackers._start", failing(lambda: None, 1, RuntimeError("no key")))
    with pytest.raises(UserError, match=r"report_to: the start of wandb failed: RuntimeError: no key"):
        trainer(model, tmp_path / "run", report_to=["wandb"]).train()
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("event", [None, "on_push_begin"])
def test_a_push_that_fails_says_where_the_model_is(model: Path, tmp_path: Path, monkeypatch, event: str | None):
    def fails(self, *given, **kwargs):
        raise ConnectionError("503")

    monkeypatch.setattr(rl, "make_repository", lambda *given, **named: None)
    monkeypatch.setattr(rl, "run_push", failing(lambda push: None, 0 if event else 1, ConnectionError("503")))
    own = [type("Fails", (TrainerCallback,), {event: fails})()] if event else []
    with pytest.raises(UserError, match=r"503.*saved in .*run/model: `lfpo push .*/run a/b` uploads it"):
        trainer(model, tmp_path / "run", reward, *own, max_steps=1, push_to_hub=True, hub_model_id="a/b").train()


def one_of_two_ranks(model: str, folder: str, where: str) -> int:
    """Rank 1 alone fails after two iterations."""
    distributed.start()
    fails = collectives.rank() == 1
    function: Any = scores(4 - 1, UserError("rank 1 has no grader")) if fails and where == "reward" else reward
    own = [callback("on_step_end", ValueError("on rank 1"))] if fails and where == "callback" else []
    if fails and where == "update":
        Learner.update = failing(Learner.update, 3, RuntimeError("on rank 1"))  # type: ignore[method-assign]
    try:
        trainer(Path(model), Path(folder), function, *own, threads=1, rank_timeout=5).train()
    except UserError as error:
        print(error)
        distributed.stop()
        return 2
    except ProcessLost as lost:
        print(lost)
        return LOST
    return 0


@pytest.mark.long
@pytest.mark.parametrize("where", ["reward", "callback", "update"])
def test_a_failure_on_one_of_two_ranks_is_told_on_both(model: Path, tmp_path: Path, where: str):
    ended = run_ranks(2, one_of_two_ranks, str(model), str(tmp_path / "run"), where)
    text = "".join(rank.stdout + rank.stderr for rank in ended)
    if where == "update":  # the ranks are in different collectives: nothing can be saved together
        assert [rank.returncode for rank in ended] == [LOST, 1] and "start again with --resume" in text, text
        assert not (tmp_path / "run/checkpoints").exists()
    else:
        assert [rank.returncode for rank in ended] == [2, 2] and text.count("--resume continues") == 2, text
        assert_goes_on(model, tmp_path / "run", 2)
    assert os.path.exists(tmp_path / "run/metrics.jsonl")
