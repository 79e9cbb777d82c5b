"""What is told while something runs, of methods of other software, and in trackers' columns."""

import importlib.util
import io
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import tiny
from length_runs import ROWS, config, reward
from lfpo.base.progress import count
from lfpo.cli.command_line import main
from lfpo.config.errors import UserError
from lfpo.config.sft import SFTConfig
from lfpo.core.observer import Observer
from lfpo.eval.likelihood import Pair, likelihood_bounds
from lfpo.eval.terminal import progress
from lfpo.models import load_model
from lfpo.rewards.measured import measured
from lfpo.runs import trackers
from lfpo.runs.directory import Run
from lfpo.runs.display import Display
from lfpo.train.rl import LFPOTrainer
from lfpo.train.sft import train_sft

DATA = Path(__file__).parents[1] / "data"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write_llada(tmp_path_factory.mktemp("told") / "llada")


def test_what_is_said_of_a_phase():
    state = Observer()
    state.begin("sampling", 128, "rollouts")
    assert count(state) == "0 of 128 rollouts"  # the first forward may be compiled for minutes
    state.forward(32)
    assert count(state) == "0 of 128 rollouts, 1 forward of 32 rows"
    state.forward(32)
    assert count(state) == "0 of 128 rollouts, 2 forwards of 32 rows"
    state.advance(32)
    assert count(state) == "32 of 128 rollouts"
    state.begin("checkpoint")
    assert count(state) == ""


def test_training_tells_of_each_forward_before_anything_is_done(model: Path, tmp_path: Path, monkeypatch):
    told: dict[str, list[str]] = {}
    forward = Observer.forward

    def noted(self: Observer, rows: int) -> None:
        forward(self, rows)
        told.setdefault(self.phase, []).append(Display(1, Console(file=io.StringIO()), self).phase_line())

    monkeypatch.setattr(Observer, "forward", noted)
    LFPOTrainer(str(model), reward, config(tmp_path / "run", max_steps=1, eval_steps=1), ROWS, ROWS[:3]).train()
    for phase, unit in (("evaluation, greedy", "3 problems"), ("sampling", "4 rollouts")):
        assert len(told[phase]) >= 4  # gen_length 4, one token a forward
        assert f"{phase}  0 of {unit}, 1 forward of " in told[phase][0]
    assert not [line for lines in told.values() for line in lines if re.search(r" 0 of \d+ \w+  ", line)]


def test_evaluations_in_a_log_tell_of_forwards_and_of_grading(model: Path, capsys, monkeypatch):
    monkeypatch.setattr("lfpo.eval.terminal.LINE_SECONDS", 0.0)
    arguments = ["--task", "choice", "--n", "3", "--sampler.gen_length", "4"]
    assert main(["eval", "--model", str(model), *arguments]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("choice: 0 of 3 completions, 1 forward of 3 rows, ")
    assert "choice: grading 3 completions" in lines


def test_likelihoods_are_counted_by_forwards():
    policy = load_model("embedded")
    console = Console(record=True, width=100, file=io.StringIO())
    pairs = [Pair([1, 2], [3, 4, 5, 6], seed) for seed in range(3)]
    with progress("likelihoods", 3, "requests", console) as state:
        likelihood_bounds(policy, pairs, mc_num=4, tokens=30, forwarded=state.forward)
    # 3 pairs x 4 masks of 6 tokens, 30 tokens at once.
    assert count(state).startswith("0 of 3 requests, 3 forwards of ")


def test_the_harness_tells_of_each_forward(monkeypatch):
    pytest.importorskip("lm_eval")
    from types import SimpleNamespace

    from lfpo.eval.harness import LfpoLM

    told: list[str] = []
    forward = Observer.forward

    def noted(self: Observer, rows: int) -> None:
        forward(self, rows)
        told.append(count(self))

    monkeypatch.setattr(Observer, "forward", noted)
    harness = LfpoLM(pretrained="embedded", mc_num=4)
    requests = [SimpleNamespace(args=("1+1", "=2"), task_name="t", doc_id=0)]
    harness.cache_hook = SimpleNamespace(add_partial=lambda *given: None)
    harness.loglikelihood(requests)
    assert told and told[0].startswith("0 of 1 requests, 1 forward of ")
    told.clear()
    requests[0].args = ("1+1", {"max_gen_toks": 4, "until": []})
    harness.generate_until(requests)
    assert told[0].startswith("0 of 1 requests, 1 forward of 1 rows")


def test_methods_of_trl_s_trainer_get_the_hint(model: Path, tmp_path: Path):
    run: Any = LFPOTrainer(str(model), reward, config(tmp_path / "run"), ROWS)
    with pytest.raises(AttributeError, match=r"no attribute 'save_model' \(train\(\) returns the folder"):
        run.save_model("x")
    with pytest.raises(AttributeError, match=r"no attribute 'no_such_thing'$"):
        _ = run.no_such_thing
    assert not hasattr(run, "processing_class")


def test_a_resume_from_a_folder_says_what_to_do(model: Path, tmp_path: Path, capsys):
    older = tmp_path / "run/checkpoints/step-1"
    run = LFPOTrainer(str(model), reward, config(tmp_path / "run", max_steps=1), ROWS)
    says = r"step-1': expected True or False. .*an older one, move the newer step-N folders away first"
    for given in ({"resume": str(older)}, {"resume": older}, {"resume_from_checkpoint": str(older)}):
        with pytest.raises(UserError, match=says):
            run.train(**given)
    with pytest.raises(UserError, match=says):
        train_sft(SFTConfig(str(tmp_path / "sft"), model="embedded", tasks={"choice": 1}, steps=1), resume=str(older))
    assert main(["train", "choice", "--output_dir", str(tmp_path / "run"), "--resume", str(older)]) == 2
    assert "--resume takes no value" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def graded(prompts, completions, limit=0, sign="", **columns):
    return [0.0] * len(completions)


class Counting:
    """A reward function that measures something beside its rewards."""

    def __init__(self, **values: float):
        self.values, self.counts = values, Counter[str]()

    def __call__(self, prompts, completions, **columns):
        return [0.0] * len(completions)

    def measures(self, counts):
        return self.values


def test_what_a_function_measures_has_a_column_of_its_own():
    assert measured({"Counting": Counting(share=0.5)}) == {"rewards/Counting/share": 0.5}


class Table:
    """A tracker that keeps the columns of its tables."""

    def __init__(self) -> None:
        self.columns: list[str] = []

    def log_table(self, columns: list[str], data: list[list[Any]], step: int) -> None:
        assert all(len(row) == len(columns) for row in data)
        self.columns = columns


def test_no_two_columns_of_a_table_share_a_name(tmp_path: Path):
    names = ["step", "prompt", "completion", "reward", "r", "rewards", "rewards-step"]
    row = {"prompt": "a", "completion": "b", "rewards": dict.fromkeys(names, 0.0), "reward": 0.0, "r": 0.5}
    table = Table()
    trackers._log_table(table, [row, row], 1)
    assert len(set(table.columns)) == len(table.columns) == len(names) + 5
    assert table.columns[3:8] == ["rewards/step", "rewards/prompt", "rewards/completion", "rewards/reward", "rewards/r"]


@pytest.mark.parametrize("done", [0, 1])
def test_tensorboard_has_every_step_once_after_a_resume(tmp_path: Path, done: int):
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    run = Run(tmp_path)
    (tmp_path / "run.json").write_text('{"id": "abc"}')
    for began, steps in ((0, (0, 1, 2)), (done, range(done + 1 if done else 0, 4))):
        with trackers.reporting(["tensorboard"], run, {"a": 1}, done=began):
            for step in steps:
                run.log({"step": step, "eval/greedy/reward": float(step)})
    shown = events.EventAccumulator(str(tmp_path / "tensorboard"))
    shown.Reload()
    assert [event.step for event in shown.Scalars("eval/greedy/reward")] == [0, 1, 2, 3]
    assert [event.step for event in shown.Tensors("config/text_summary")] == [0, done]


def test_a_missing_math_verify_is_told_before_anything_is_sampled(tmp_path: Path, capsys, monkeypatch):
    there = importlib.util.find_spec
    hidden = lambda name, *rest: None if name == "math_verify" else there(name, *rest)  # noqa: E731
    monkeypatch.setattr("lfpo.rewards.algebra.importlib.util.find_spec", hidden)
    monkeypatch.setattr("lfpo.core.denoise.denoise", None)  # sampling would fail
    says = "graded by math-verify, which is not installed: pip install math-verify"
    task = f"math500@{DATA}/math500/test.jsonl"
    assert main(["eval", "--model", "embedded", "--task", task, "--output", str(tmp_path / "out")]) == 2
    assert says in capsys.readouterr().err
    rows = [json.loads(line) for line in (DATA / "math500/test.jsonl").read_text().splitlines()[:2]]
    rows = [{"prompt": "1+1=", "answer": row["answer"]} for row in rows]
    from lfpo.rewards.math import boxed_accuracy, math_accuracy

    for function in (math_accuracy, boxed_accuracy):
        with pytest.raises(UserError, match=says):
            LFPOTrainer("embedded", function, config(tmp_path / "run"), rows)
