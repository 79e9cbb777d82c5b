"""Callbacks with transformers' interface, and what they may ask for."""

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import TrainerCallback

from lfpo import LFPOConfig, LFPOTrainer, SamplerConfig
from lfpo.base.errors import UserError


def trainer(folder: Path, *callbacks: Any, **changes: Any) -> LFPOTrainer:
    values: dict[str, Any] = {
        "task": "choice",
        "prompts_per_iteration": 2,
        "num_generations": 2,
        "eval_samplers": {"greedy": SamplerConfig(threshold=0.9)},
        "eval_size": 2,
        "eval_steps": 2,
        "save_steps": 2,
        "max_steps": 4,
        "threads": 1,
    }
    return LFPOTrainer(args=LFPOConfig(output_dir=str(folder), **(values | changes)), callbacks=callbacks)


class Recorder(TrainerCallback):
    def __init__(self) -> None:
        self.seen: list[tuple[str, int]] = []

    def on_train_begin(self, args, state, control, **kwargs):
        assert args.task == "choice"
        assert state.max_steps == 4
        assert state.is_world_process_zero
        self.seen.append(("begin", state.global_step))

    def on_step_end(self, args, state, control, model, processing_class, optimizer, **kwargs):
        assert model.pad_id is not None
        assert processing_class.encode("3")
        assert optimizer.param_groups
        self.seen.append(("step", state.global_step))

    def on_evaluate(self, args, state, control, metrics, **kwargs):
        assert 0 <= metrics["eval/greedy/accuracy"] <= 1
        self.seen.append(("evaluate", state.global_step))

    def on_log(self, args, state, control, logs, **kwargs):
        assert state.log_history[-1] == logs
        self.seen.append(("log", logs["step"]))

    def on_save(self, args, state, control, **kwargs):
        assert (Path(args.output_dir) / f"checkpoints/step-{state.global_step}/manifest.json").exists()
        self.seen.append(("save", state.global_step))

    def on_train_end(self, args, state, control, **kwargs):
        self.seen.append(("end", state.global_step))


def test_events_come_in_transformers_order_and_a_resumed_run_knows_its_history(tmp_path):
    recorder = Recorder()
    trainer(tmp_path / "run", recorder, max_steps=4).train()
    start, of_two = [("begin", 0), ("evaluate", 0), ("log", 0)], []
    for step in (2, 4):
        of_two += [("step", step - 1), ("log", step - 1), ("step", step), ("evaluate", step), ("log", step)]
        of_two += [("save", step)]
    assert recorder.seen == [*start, *of_two, ("end", 4)]

    class History(TrainerCallback):
        def on_train_begin(self, args, state, control, **kwargs):
            self.steps = [row["step"] for row in state.log_history]

    history = History()
    trainer(tmp_path / "run", history, max_steps=5).train(resume=True)
    assert history.steps == [0, 1, 2, 3, 4]


def test_control_asks_for_an_evaluation_a_checkpoint_and_the_end(tmp_path):
    class Ask(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step == 1:
                control.should_evaluate = control.should_save = True
            control.should_training_stop = state.global_step == 3

    folder = trainer(tmp_path / "run", Ask, eval_steps=100, save_steps=100, max_steps=9).train()
    rows = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [0, 1, 2, 3]
    assert ["eval/greedy/accuracy" in row for row in rows] == [True, True, False, False]
    assert sorted(p.name for p in (tmp_path / "run/checkpoints").iterdir()) == ["step-1", "step-3"]
    assert (folder / "config.json").exists()


def test_a_callback_that_raises_ends_the_run_in_one_sentence_and_nothing_is_lost(tmp_path):
    class Broken:
        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step == 3:
                raise KeyError("accuracy")

    with pytest.raises(UserError) as raised:
        trainer(tmp_path / "run", Broken()).train()
    assert "callback Broken.on_step_end failed after iteration 3: KeyError: 'accuracy' (test_callbacks.py:" in str(
        raised.value
    )
    assert "checkpoints/step-3 holds everything learned; --resume continues" in str(raised.value)
    trainer(tmp_path / "run").train(resume=True)
    rows = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [0, 1, 2, 3, 4]
