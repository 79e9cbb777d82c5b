"""Trackers get the numbers of metrics.jsonl. Real trackers where they are installed, without network."""

import importlib.util
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from lfpo import LFPOConfig, LFPOTrainer
from lfpo.config.errors import UserError
from lfpo.runs.directory import Run
from lfpo.runs.trackers import TRACKERS, reporting
from processes import run_lfpo
from small_runs import choice_config


def config(folder: Path, **changes: Any) -> LFPOConfig:
    return choice_config(folder, "embedded", reward_funcs=[], eval_samplers={"greedy": {"threshold": 0.9}}, **changes)


def logged(folder: Path) -> tuple[dict[str, list[tuple[int, float]]], list[str]]:
    """TensorBoard's scalars, name -> (step, value), and its tables of completions, in the order of their steps."""
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = accumulator.EventAccumulator(str(folder))
    events.Reload()
    tables = [tag for tag in events.Tags()["tensors"] if tag.startswith("completions")]
    texts = [event.tensor_proto.string_val[0].decode() for tag in tables for event in events.Tensors(tag)]
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}, texts


@pytest.mark.long
def test_tensorboard_shows_every_number_of_the_run_and_a_resumed_run_goes_on(tmp_path):
    pytest.importorskip("tensorboard")
    LFPOTrainer(args=config(tmp_path / "run", max_steps=2, report_to=["tensorboard"])).train()
    LFPOTrainer(args=config(tmp_path / "run", max_steps=3, report_to=["tensorboard"])).train(resume=True)
    rows = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    shown, _ = logged(tmp_path / "run" / "tensorboard")
    for name in ("reward", "loss", "eval/greedy/accuracy"):
        expected = [(row["step"], row[name]) for row in rows if row.get(name) is not None]
        assert [step for step, _ in shown[name]] == [step for step, _ in expected]
        assert [value for _, value in shown[name]] == pytest.approx([value for _, value in expected], rel=1e-6)
    assert [step for step, _ in shown["reward"]] == [1, 2, 3]
    texts = [text for folder in sorted((tmp_path / "run/tensorboard").iterdir()) for text in logged(folder)[1]]
    assert len(texts) == 3
    rollouts = [json.loads(line) for line in (tmp_path / "run/rollouts/step-1.jsonl").read_text().splitlines()]
    assert texts[0].startswith("| step | prompt | completion | accuracy | reward | r |\n| --- |")
    assert len(texts[0].splitlines()) == 2 + len(rollouts)
    assert rollouts[0]["completion"].strip() in texts[0].splitlines()[2]


def test_tensorboard_forgets_steps_that_a_crash_had_logged_behind_the_checkpoint(tmp_path):
    pytest.importorskip("tensorboard")
    run = Run(tmp_path)
    (tmp_path / "run.json").write_text('{"id": "abc"}')
    with reporting(["tensorboard"], run, {}, done=0):
        for step in (1, 2, 3):
            run.log({"step": step, "reward": float(step)})
    with reporting(["tensorboard"], run, {}, done=1):
        run.log({"step": 2, "reward": 20.0})
    assert logged(tmp_path / "tensorboard")[0]["reward"] == [(1, 1.0), (2, 20.0)]


@pytest.mark.long
def test_wandb_offline(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    # In a process of its own: what other trackers have set up in this one would hide what is missing.
    command = "train --task choice --max_steps 1 --prompts_per_iteration 2 --num_generations 2 --report_to wandb"
    command += f" --output_dir {tmp_path / 'run'}"
    assert run_lfpo(*command.split()).returncode == 0
    assert list((tmp_path / "run" / "wandb").glob("offline-run-*/*.wandb"))
    (table,) = (tmp_path / "run" / "wandb").glob("offline-run-*/files/media/table/completions_*.json")
    shown = json.loads(table.read_text())
    rollouts = [json.loads(line) for line in (tmp_path / "run/rollouts/step-1.jsonl").read_text().splitlines()]
    assert shown["columns"] == ["step", "prompt", "completion", "accuracy", "reward", "r"]
    assert [row[2] for row in shown["data"]] == [rollout["completion"] for rollout in rollouts]


def test_a_run_of_the_user_s_own_program_is_used_and_stays_open(tmp_path, monkeypatch):
    """Under a step metric of its own: W&B drops what is logged under a step that its own count has passed."""
    logged, defined, ended = list[dict[str, Any]](), dict[str, str](), list[bool]()

    class Own:
        config: ClassVar = SimpleNamespace(update=lambda values, **_: settings.update(values))

        def define_metric(self, name, step_metric):
            defined[name] = step_metric

        def log(self, values):
            logged.append(values)

        def finish(self):
            ended.append(True)

    settings: dict[str, Any] = {"learning_rate": "the user's"}
    opened: list[dict[str, Any]] = []

    def init(**given: Any) -> Own:
        opened.append(given)
        return Own()

    library = SimpleNamespace(__name__="wandb", run=Own(), init=init)
    monkeypatch.setitem(sys.modules, "wandb", library)
    monkeypatch.setitem(TRACKERS, "wandb", ["json"])  # installed
    (tmp_path / "run.json").write_text('{"id": "abc"}')
    run = Run(tmp_path)
    with reporting(["wandb"], run, {"learning_rate": 1}, done=0):
        run.log({"step": 1, "reward": 0.5})
    assert logged == [{"reward": 0.5, "lfpo/iteration": 1}] and defined == {"reward": "lfpo/iteration"}
    assert not ended and not opened
    assert settings == {"learning_rate": "the user's", "lfpo": {"learning_rate": 1}}
    library.run = None
    monkeypatch.setenv("WANDB_NAME", "mine")
    with reporting(["wandb"], run, {}, done=0):
        pass
    assert ended == [True]
    assert opened == [{"project": "lfpo", "resume": "allow", "id": "abc", "dir": str(tmp_path)}]


@pytest.mark.skipif(importlib.util.find_spec("trackio") is None, reason="trackio is not installed")
def test_trackio_on_this_machine(tmp_path, monkeypatch):
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    LFPOTrainer(args=config(tmp_path / "run", max_steps=1, report_to=["trackio"])).train()
    (stored,) = (tmp_path / "trackio").glob("lfpo*.db")
    assert b'"completions":{"_type":"trackio.table"' in stored.read_bytes()


def test_a_tracker_is_closed_and_the_error_kept_when_training_fails(tmp_path, monkeypatch):
    closed = []

    class Tracker:
        def log(self, values, step):
            pass

        def finish(self):
            closed.append(True)

    monkeypatch.setattr("lfpo.runs.trackers._start", lambda *_: Tracker())
    run = Run(tmp_path)
    with pytest.raises(RuntimeError, match="broken"), reporting(["wandb"], run, {}, done=0):
        raise RuntimeError("broken")
    assert closed == [True]
    assert run.listeners == []


def test_missing_trackers_are_told_before_training(tmp_path, monkeypatch):
    monkeypatch.setitem(TRACKERS, "wandb", ["no_such_package"])
    trainer = LFPOTrainer(args=config(tmp_path / "run", max_steps=1, report_to=["wandb"]))
    with pytest.raises(UserError, match="wandb is not installed; pip install"):
        trainer.train()


def test_a_tracker_that_fails_twice_is_told_once_and_closed(tmp_path, monkeypatch):
    class Tracker:
        def log(self, values, step):
            raise OSError("no network")

        def finish(self):
            closed.append(True)
            raise OSError("still none")

    closed, notes = list[bool](), list[str]()
    monkeypatch.setattr("lfpo.runs.trackers._start", lambda *_: Tracker())
    run = Run(tmp_path)
    with reporting(["wandb"], run, {}, done=0, note=notes.append):
        for step in (1, 2):
            run.log({"step": step})
    assert closed == [True]
    (note,) = notes
    assert note.startswith("report_to: wandb failed, so it gets nothing more: OSError: no network")
