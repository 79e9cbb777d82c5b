"""How long a run is: keys, plan, run and resume agree. And transformers' callbacks, which may end it."""

import contextlib
import io
import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import EarlyStoppingCallback, PrinterCallback, ProgressCallback, TrainerCallback
from transformers.trainer_callback import DefaultFlowCallback

import tiny
from length_runs import ROWS, config, reward
from letter_runs import metrics
from lfpo.config.build import build, load_yaml
from lfpo.config.dpo import DPOConfig
from lfpo.config.errors import UserError
from lfpo.config.length import in_words, run_length
from lfpo.config.plan import PlanConfig
from lfpo.config.sft import SFTConfig
from lfpo.config.train import LFPOConfig
from lfpo.plan.command import _planner
from lfpo.report.data import run_data
from lfpo.runs import health
from lfpo.runs.directory import Run
from lfpo.train.rl import LFPOTrainer
from processes import run_ranks


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write_llada(tmp_path_factory.mktemp("length") / "llada")


def trainer(model: Path, folder: Path, *callbacks: Any, held_out: Any = None, **changes: Any) -> LFPOTrainer:
    args = config(folder, **changes)
    return LFPOTrainer(str(model), reward, args, ROWS, held_out, callbacks=list(callbacks))


def steps(folder: Path) -> list[int]:
    return [row["step"] for row in metrics(folder)]


@pytest.mark.parametrize(
    ("max_steps", "epochs", "rows", "batch", "iterations", "begun"),
    [
        (-1, 2, 7473, 16, 935, 2),  # of GSM8K: 934.1 iterations
        (
            -1,
            2,
            5,
            2,
            5,
            2,
        ),  # 10 rows, 2 at a time; an iteration may hold the end of one epoch and the begin of another
        (-1, 0.5, 5, 2, 2, 1),
        (-1, 1, 5, 7, 1, 1),  # an iteration of more rows than there are
        (-1, 0.1, 10, 1, 1, 1),  # 0.1 as a float is above a tenth
        (-1, 7 / 3, 9, 1, 21, 3),  # as a float it is above 7/3
        (-1, 0.1 + 0.2, 10, 1, 3, 1),
        (7, 2, 5, 2, 7, 3),  # max_steps wins, also where it is the larger
        (1, 2, 5, 2, 1, 1),
        (-1, 0, 5, 2, 40, 16),  # neither: the default
        (3, 2, 0, 2, 3, 1),  # prompts without end
    ],
)
def test_the_length_by_hand(max_steps: int, epochs: float, rows: int, batch: int, iterations: int, begun: int):
    length = run_length(max_steps, epochs, rows=rows, batch=batch, default=40)
    assert (length.iterations, length.epochs) == (iterations, begun)


def test_the_deciding_key_is_named():
    def said(**keys: Any) -> str:
        args = config(Path("x"), **keys)
        return in_words(args.length(5), args.num_train_epochs)

    assert said(num_train_epochs=2) == "5 iterations, 2 epochs of 5 rows"
    assert said(max_steps=3) == "3 iterations"
    assert said(max_steps=3, num_train_epochs=2).startswith("3 iterations, as max_steps says; num_train_epochs 2 ")


@pytest.mark.parametrize("value", [float("nan"), -1])
def test_numbers_of_epochs_that_are_none_are_one_sentence(value: float):
    with pytest.raises(ValueError, match=rf"num_train_epochs {value}.* must not be negative$"):
        config(Path("x"), num_train_epochs=value)


def test_numpy_numbers_are_numbers():
    args = config(Path("x"), max_steps=np.int64(3), num_train_epochs=np.float32(0.5), seed=np.array(4))
    assert [args.max_steps, args.num_train_epochs, args.seed] == [3, 0.5, 4]
    assert type(args.max_steps) is int
    with pytest.raises(UserError, match=r"max_steps: expected a whole number, found 3\.5"):
        config(Path("x"), max_steps=np.float64(3.5))


@pytest.mark.long
@pytest.mark.parametrize(
    "keys",
    [
        {"num_train_epochs": 2},
        {"num_train_epochs": 1.1},
        {"num_train_epochs": 2, "max_steps": 1},
        {"max_steps": 3},
        {},
        {"num_train_epochs": 2, "filter_overlong_prompts": True},
    ],
)
def test_plan_and_run_count_the_same(model: Path, tmp_path: Path, keys: dict[str, Any]):
    rows = [*ROWS, *([{"prompt": "x" * 600}] if keys.get("filter_overlong_prompts") else [])]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    args = config(tmp_path / "run", data_file=str(tmp_path / "rows.jsonl"), model=str(model), **keys)
    planned = _planner(PlanConfig(device="cpu"), args, 8)(args, gpus=1)
    run = LFPOTrainer(reward_funcs=reward, args=args)
    assert planned.run_length.iterations == planned.args.max_steps == run.total_steps == run.args.max_steps


@pytest.mark.long
def test_a_run_goes_on_with_the_keys_it_was_given(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    folder = tmp_path / "run"
    trainer(model, folder, num_train_epochs=1, max_steps=1).train()
    assert (steps(folder), run_data(Run(folder))["max_steps"]) == ([1], 1)
    # Epochs decide as soon as max_steps does not, also with the keys that the run has written.
    trainer(model, folder, num_train_epochs=1).train(resume=True)
    assert steps(folder) == [1, 2, 3]
    written = build(LFPOConfig, load_yaml(folder / "config.yaml"))
    assert (written.max_steps, written.num_train_epochs) == (-1, 1)
    assert (run_data(Run(folder))["max_steps"], run_data(Run(folder))["finished"]) == (3, True)
    LFPOTrainer(str(model), reward, replace(written, num_train_epochs=1.5), ROWS).train(resume=True)
    assert steps(folder) == [1, 2, 3, 4]
    capsys.readouterr()
    for keys, total in (({"num_train_epochs": 1.5}, 4), ({"max_steps": 2}, 2)):  # all done, and more than all
        assert trainer(model, folder, **keys).train(resume=True) == folder / "model"
        said = f"nothing is left to train: 4 iterations are done, and the run has {total}"
        assert said in " ".join(capsys.readouterr().out.split())
        assert run_data(Run(folder))["max_steps"] == 4  # not "4 of 2 iterations"
    assert steps(folder) == [1, 2, 3, 4]


@pytest.mark.long
def test_a_resume_with_other_rows_says_so(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    first = [{"prompt": f"{i}+1=", "answer": str(i)} for i in range(4)]
    others: list[Any] = [first, [*first, {"prompt": "9+1=", "answer": "9"}]]
    others += [[{**row, "prompt": "x"} for row in first], [{**row, "answer": "x"} for row in first], first[::-1]]
    LFPOTrainer(str(model), reward, config(tmp_path / "run", max_steps=1), first).train()
    capsys.readouterr()
    said = []
    for rows in others:  # the last goes on with its rows; the others have nothing left to train, and save nothing
        args = config(tmp_path / "run", max_steps=1 + (rows is others[-1]))
        LFPOTrainer(str(model), reward, args, rows).train(resume=True)
        said.append("rows, or their order, have changed" in " ".join(capsys.readouterr().out.split()))
    assert steps(tmp_path / "run") == [1, 2]
    assert said == [False, True, True, True, True]


def test_a_stream_with_prompts_that_are_left_out_says_that_rows_repeat(model: Path, tmp_path: Path):
    rows = [{"prompt": "1 " * 400} if i % 2 else {"prompt": f"{i}+1="} for i in range(12)]
    args = config(tmp_path / "run", max_steps=3, filter_overlong_prompts=True)
    stream: Any = iter(rows)
    assert "; 3 too long and left out, so the others repeat" in LFPOTrainer(str(model), reward, args, stream).about
    about = LFPOTrainer(str(model), reward, args, rows).about
    assert "; 6 too long and left out\n" in about


def test_a_longer_stream_has_no_changed_rows(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    for total in (1, 2):
        args = config(tmp_path / "run", max_steps=total)
        stream: Any = iter(ROWS)
        LFPOTrainer(str(model), reward, args, stream).train(resume=total > 1)
    assert "have changed" not in capsys.readouterr().out


def test_other_commands_count_epochs_in_the_same_way(tmp_path: Path):
    for name, row in (("sft", {"completion": "b"}), ("dpo", {"chosen": "b", "rejected": "c"})):
        rows = [{"prompt": "a", **row}] * 5
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    keys: dict[str, Any] = {"model": "embedded", "batch_size": 2, "num_train_epochs": 1.5, "gen_length": 4}
    from lfpo.train.dpo import DPOTrainer
    from lfpo.train.sft import SFTTrainer

    sft = SFTTrainer(SFTConfig(str(tmp_path / "a"), data_file=str(tmp_path / "sft.jsonl"), **keys))
    dpo = DPOTrainer(DPOConfig(str(tmp_path / "b"), data_file=str(tmp_path / "dpo.jsonl"), **keys))
    assert (sft.total_steps, sft.args.steps, sft.user_args.steps) == (4, 4, -1)
    assert (dpo.total_steps, dpo.args.max_steps, dpo.user_args.max_steps) == (4, 4, -1)
    with pytest.raises(UserError, match="num_train_epochs: a task makes new prompts without end"):
        SFTTrainer(SFTConfig(str(tmp_path / "c"), model="embedded", tasks={"choice": 1}, num_train_epochs=1))


def test_epochs_go_with_held_out_rows_without_end(model: Path, tmp_path: Path):
    taken = []

    def endless():
        for i in itertools.count():
            taken.append(i)
            yield ROWS[i % 5]

    keys = {"num_train_epochs": 0.5, "eval_size": 3}
    trainer(model, tmp_path / "run", held_out=endless(), eval_steps=1, **keys).train()
    assert (steps(tmp_path / "run"), taken) == ([0, 1, 2], [0, 1, 2])
    trainer(model, tmp_path / "none", held_out=endless(), eval_steps=0, **keys)
    assert len(taken) == 3  # of which no evaluation takes any


def test_no_number_of_generations_or_steps_need_divide_another(model: Path, tmp_path: Path):
    run = trainer(model, tmp_path / "run", num_generations=3, optimizer_steps_per_iteration=4, num_train_epochs=1)
    run.train()
    assert steps(tmp_path / "run") == [1, 2, 3]
    assert [len((tmp_path / f"run/rollouts/step-{n}.jsonl").read_text().splitlines()) for n in (1, 3)] == [6, 6]


@pytest.mark.parametrize("batch", [1, 3])
def test_a_resume_with_another_batch_size_takes_each_row_once(model: Path, tmp_path: Path, batch: int):
    """One epoch of 5 rows: 2 rows, then the other 3, one or three at a time."""

    class Stops(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            control.should_training_stop = True

    trainer(model, tmp_path / "run", Stops(), num_train_epochs=1).train()
    resumed = trainer(model, tmp_path / "run", num_train_epochs=1, prompts_per_iteration=batch)
    resumed.train(resume=True)
    assert resumed.total_steps == 1 + 3 // batch
    prompts = []
    for step in steps(tmp_path / "run"):
        rows = (tmp_path / f"run/rollouts/step-{step}.jsonl").read_text().splitlines()
        prompts += [json.loads(row)["prompt"] for row in rows[::2]]
    assert sorted(prompts) == [row["prompt"] for row in ROWS]


class Recorder(TrainerCallback):
    """Notes every event that it is called for."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, int]] = []

    def __getattribute__(self, name: str) -> Any:
        if not name.startswith("on_"):
            return super().__getattribute__(name)

        def method(args, state, control, **kwargs):
            self.seen.append((name.removeprefix("on_"), state.global_step))

        return method

    def of(self, *names: str) -> list[tuple[str, int]]:
        return [pair for pair in self.seen if pair[0] in names]


def test_every_event_of_transformers_is_fired_in_its_order(model: Path, tmp_path: Path, monkeypatch):
    pushed = []
    monkeypatch.setattr("lfpo.train.rl.make_repository", lambda *names, **keys: None)
    monkeypatch.setattr("lfpo.train.rl.run_push", lambda push: pushed.append(push.run))
    recorder = Recorder()
    keys = {"num_train_epochs": 1, "eval_steps": 2, "save_steps": 2, "push_to_hub": True, "hub_model_id": "a/b"}
    trainer(model, tmp_path / "run", recorder, held_out=ROWS[:1], **keys).train()
    events = {name for name in dir(TrainerCallback) if name.startswith("on_")}
    assert {f"on_{name}" for name, _ in recorder.seen} == events - {"on_predict"}
    names = [name for name, _ in itertools.groupby(recorder.seen, lambda pair: pair[0])]
    step = ["step_begin", *["pre_optimizer_step", "optimizer_step", "substep_end"], "pre_optimizer_step"]
    step += ["optimizer_step", "step_end", "log"]
    evaluation = ["prediction_step", "log", "evaluate"]
    assert names == [
        *("init_end", "train_begin", *evaluation, "epoch_begin"),
        *(*step, *step, *evaluation, "save", *step, *evaluation, "save"),
        *("epoch_end", "train_end", "push_begin"),
    ]
    assert pushed == [str(tmp_path / "run")]


@pytest.mark.long
def test_transformers_own_callbacks_work(model: Path, tmp_path: Path):
    output = io.StringIO()
    stock = [DefaultFlowCallback, ProgressCallback(), PrinterCallback]
    with contextlib.redirect_stdout(output):
        trainer(model, tmp_path / "run", *stock, held_out=ROWS[:1], num_train_epochs=1, eval_steps=2).train()
    plain = trainer(model, tmp_path / "plain", held_out=ROWS[:1], num_train_epochs=1, eval_steps=2)
    plain.train()
    rewards = [[row.get("reward") for row in metrics(tmp_path / name)] for name in ("run", "plain")]
    assert rewards[0] == rewards[1] and len(rewards[0]) == 4
    assert output.getvalue().count("'eval_reward'") == 2 * 3  # three evaluations, printed by two of the callbacks


class Worse(TrainerCallback):
    """Before each evaluation, what the reward of held-out completions becomes."""

    def __init__(self, *values: float):
        self.values = values

    def on_step_end(self, args, state, control, model, **kwargs):
        held_out_reward[0] = self.values[state.global_step - 1]


held_out_reward = [0.0]


def falling(prompts, completions, **columns):
    return [held_out_reward[0] if len(completions) == 1 else float(i) for i in range(len(completions))]


@pytest.mark.long
@pytest.mark.parametrize("metric", ["reward", "eval_greedy/reward"])
def test_early_stopping_stops_and_a_resume_knows_its_patience(model: Path, tmp_path: Path, metric: str):
    def run(total: int) -> LFPOTrainer:
        callbacks = [Worse(3, 5, 4, 4, 9, 9), EarlyStoppingCallback(early_stopping_patience=2)]
        args = config(tmp_path / "run", max_steps=total, eval_steps=1, metric_for_best_model=metric)
        return LFPOTrainer(str(model), falling, args, ROWS, ROWS[:1], callbacks=callbacks)

    run(3).train()  # the evaluation after iteration 3 is the first that is worse than the best
    resumed = run(6)
    resumed.train(resume=True)
    assert steps(tmp_path / "run") == [0, 1, 2, 3, 4]
    assert (resumed.events.state.best_metric, resumed.events.state.best_global_step) == (5, 2)


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"eval_steps": 1}, "EarlyStoppingCallback requires metric_for_best_model"),
        ({"metric_for_best_model": "reward"}, "EarlyStoppingCallback requires IntervalStrategy"),
        ({"metric_for_best_model": "loss", "eval_steps": 1}, "'loss' is no metric of the evaluation; it has greedy/"),
    ],
)
def test_early_stopping_that_cannot_work_is_told_at_start(model: Path, tmp_path: Path, keys: Any, says: str):
    with pytest.raises(UserError, match=says):
        trainer(model, tmp_path / "run", EarlyStoppingCallback(1), held_out=ROWS[:1], max_steps=2, **keys).train()
    assert not (tmp_path / "run/metrics.jsonl").exists()


def test_callbacks_are_added_and_removed_as_in_transformers(model: Path, tmp_path: Path):
    kept, removed = Recorder(), Recorder()
    run = trainer(model, tmp_path / "run", max_steps=1)
    for callback in (removed, PrinterCallback, kept):
        run.add_callback(callback)
    run.remove_callback(removed)
    run.remove_callback(PrinterCallback)
    run.train()
    assert kept.of("train_begin", "step_end", "train_end") and not removed.seen


def test_callbacks_read_transformers_arguments(model: Path, tmp_path: Path):
    args = trainer(model, tmp_path / "run", Recorder(), max_steps=7, warmup_steps=3).events.args
    assert (args.max_steps, args.num_generations, args.per_device_train_batch_size) == (7, 2, 4)
    assert (args.train_batch_size, args.gradient_accumulation_steps, args.get_warmup_steps(7)) == (4, 1, 3)
    assert args.eval_strategy == "no" and args.should_save and args.to_sanitized_dict()["max_steps"] == 7
    with pytest.raises(AttributeError, match="no attribute 'no_such_key'"):
        _ = args.no_such_key


class Looks(TrainerCallback):
    """Looks at what transformers' trainer gives to callbacks."""

    def on_train_begin(self, args, state, control, **kwargs):
        self.history = [row["step"] for row in state.log_history]

    def on_step_end(self, args, state, control, model, processing_class, optimizer, **kwargs):
        assert model.pad_id is not None and processing_class.encode("3") and optimizer.param_groups

    def on_log(self, args, state, control, logs, **kwargs):
        assert state.log_history[-1] == logs and state.is_world_process_zero

    def on_evaluate(self, args, state, control, metrics, **kwargs):
        assert metrics["eval/greedy/reward"] >= 0

    def on_save(self, args, state, control, **kwargs):
        assert (Path(args.output_dir) / f"checkpoints/step-{state.global_step}/manifest.json").exists()


def test_callbacks_get_what_transformers_gives_and_a_resumed_run_knows_its_history(model: Path, tmp_path: Path):
    looks, keys = Looks(), {"held_out": ROWS[:1], "eval_steps": 2, "save_steps": 2}
    trainer(model, tmp_path / "run", looks, max_steps=4, **keys).train()
    trainer(model, tmp_path / "run", looks, max_steps=5, **keys).train(resume=True)
    assert looks.history == [0, 1, 2, 2, 3, 4, 4]  # an evaluation is an entry of its own, as in transformers


class Asks(TrainerCallback):
    """Sets a flag in an event after, or in the course of, iteration `at`."""

    def __init__(self, event: str, flag: str, at: int):
        def ask(args, state, control, **kwargs):
            if state.global_step == at and "train_runtime" not in kwargs.get("logs", ()):
                setattr(control, flag, True)

        setattr(self, event, ask)


# Each event, with the iterations of which it asks for an evaluation and for a checkpoint. With three prompts each, one
# epoch ends within iteration 2, and one within 7.
ASKED = {"on_step_begin": (1, 4), "on_pre_optimizer_step": (3, 6), "on_substep_end": (5, 8), "on_step_end": (9, 10)}
ASKED |= {"on_log": (11, 12), "on_epoch_end": (7, 2)}


def test_a_flag_of_any_event_counts_for_its_step_alone(model: Path, tmp_path: Path):
    own = []
    for event, asked in ASKED.items():
        within = event in ("on_step_begin", "on_pre_optimizer_step", "on_substep_end")  # the iteration is not done
        flags = zip(("should_evaluate", "should_save"), asked, strict=True)
        own += [Asks(event, flag, step - within) for flag, step in flags]
    keys: dict[str, Any] = {"max_steps": 13, "eval_steps": 100, "prompts_per_iteration": 3, "save_total_limit": 13}
    trainer(model, tmp_path / "run", *own, held_out=ROWS[:1], **keys).train()
    evaluated = [row["step"] for row in metrics(tmp_path / "run") if "eval/greedy/reward" in row]
    saved = sorted(int(path.name.removeprefix("step-")) for path in (tmp_path / "run/checkpoints").iterdir())
    assert (evaluated, saved) == ([0, 1, 3, 5, 7, 9, 11, 13], [2, 4, 6, 8, 10, 12, 13])


def test_on_evaluate_asks_for_the_checkpoint_of_its_step(model: Path, tmp_path: Path):
    keys: dict[str, Any] = {"max_steps": 3, "eval_steps": 1}
    trainer(model, tmp_path / "run", Asks("on_evaluate", "should_save", 2), held_out=ROWS[:1], **keys).train()
    assert sorted(path.name for path in (tmp_path / "run/checkpoints").iterdir()) == ["step-2", "step-3"]


def test_a_flag_that_on_step_end_clears_is_not_heeded(model: Path, tmp_path: Path):
    class Not(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            assert control.should_evaluate and control.should_save
            control.should_evaluate = control.should_save = state.global_step == 3

    trainer(model, tmp_path / "run", Not(), held_out=ROWS[:1], max_steps=3, eval_steps=1, save_steps=1).train()
    assert ["eval/greedy/reward" in row for row in metrics(tmp_path / "run")] == [True, False, False, True]
    assert [path.name for path in (tmp_path / "run/checkpoints").iterdir()] == ["step-3"]


@pytest.mark.parametrize(("eval_steps", "evaluated"), [(100, [0, 3]), (2, [0, 2, 3])])
def test_a_resume_evaluates_after_a_failed_callback_only_where_it_was_due(
    model: Path, tmp_path: Path, eval_steps: int, evaluated: list[int]
):
    class Fails(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step == 2:
                raise KeyError("loss")

    for callbacks in ((Fails(),), ()):
        run = trainer(model, tmp_path / "run", *callbacks, held_out=ROWS[:1], max_steps=3, eval_steps=eval_steps)
        with pytest.raises(UserError, match="KeyError") if callbacks else contextlib.nullcontext():
            run.train(resume=not callbacks)
    rows = metrics(tmp_path / "run")
    assert [row["step"] for row in rows] == [0, 1, 2, 3]
    assert [row["step"] for row in rows if "eval/greedy/reward" in row] == evaluated


def test_what_a_callback_does_to_its_metrics_changes_nothing(model: Path, tmp_path: Path):
    class Clears(TrainerCallback):
        def on_log(self, args, state, control, logs, **kwargs):
            logs.clear()

        def on_evaluate(self, args, state, control, metrics, **kwargs):
            metrics.clear()

    keys: dict[str, Any] = {"max_steps": 2, "eval_steps": 1, "metric_for_best_model": "reward"}
    run = trainer(model, tmp_path / "run", Clears(), held_out=ROWS[:1], **keys)
    run.train()
    assert all("eval/greedy/reward" in row for row in metrics(tmp_path / "run"))
    assert run.events.state.best_metric is not None and "reward" in run.events.state.log_history[1]


@pytest.mark.parametrize(
    ("keys", "epochs"),
    [
        # (iterations at the begin of each epoch, at its end)
        ({"num_train_epochs": 2}, [(0, 3), (3, 5)]),
        ({"max_steps": 2}, [(0, 2)]),
    ],
)
def test_epochs_begin_and_end(model: Path, tmp_path: Path, keys: Any, epochs: Any):
    recorder = Recorder()
    trainer(model, tmp_path / "run", recorder, **keys).train()
    expected = [pair for begin, end in epochs for pair in (("epoch_begin", begin), ("epoch_end", end))]
    assert recorder.of("epoch_begin", "epoch_end") == expected
    assert steps(tmp_path / "run") == list(range(1, epochs[-1][1] + 1))


class AsksAtEpochEnd(TrainerCallback):
    def on_epoch_end(self, args, state, control, **kwargs):
        control.should_evaluate = True


def test_stop_on_looks_at_an_evaluation_at_an_epoch_s_end(model: Path, tmp_path: Path, monkeypatch):
    def only_evaluated(history):
        return "an evaluation; stop" if history and "reward" not in history[-1] else ""

    monkeypatch.setattr(health, "RULES", {"no_signal": only_evaluated})
    keys = {"num_train_epochs": 2, "eval_steps": 100, "stop_on": ["no_signal"]}
    run = trainer(model, tmp_path / "run", AsksAtEpochEnd(), held_out=ROWS[:1], **keys)
    monkeypatch.setattr(run, "evaluates_after", lambda step: False)  # only the callback asks
    with pytest.raises(UserError, match="stopped after iteration 3 by no_signal: an evaluation; stop"):
        run.train()
    assert (tmp_path / "run/checkpoints/step-3/manifest.json").exists()
    assert Run(tmp_path / "run").read_notes() == [{"step": 3, "rule": "no_signal", "text": "an evaluation; stop"}]


def on_one_of_two_ranks(model: str, folder: str) -> None:
    from lfpo.base import distributed
    from lfpo.core import collectives

    distributed.start()
    stops = Asks("on_step_end", "should_training_stop", 1)
    trainer(Path(model), Path(folder), *[stops] * collectives.rank(), num_train_epochs=2, threads=1).train()
    distributed.stop()


@pytest.mark.long
def test_one_rank_s_callback_ends_the_training_of_all(model: Path, tmp_path: Path):
    ended = run_ranks(2, on_one_of_two_ranks, str(model), str(tmp_path / "run"))
    assert [rank.returncode for rank in ended] == [0, 0], ended
    assert steps(tmp_path / "run") == [1]
