"""The trainer end to end on a tiny model: learning, metrics, records, resume, the average of weights."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import TrainerCallback

from letter_runs import ROWS, assert_resume_is_exact, config, even_letters, metrics, without_times
from lfpo.config.build import build, to_dict
from lfpo.config.engine import EngineSettings
from lfpo.config.errors import UserError
from lfpo.config.train import LFPOConfig
from lfpo.core.lfpo import LFPO
from lfpo.models import load_model, load_tokenizer
from lfpo.train.average import Average
from lfpo.train.checkpoint import latest_checkpoint
from lfpo.train.rl import LFPOTrainer
from small_runs import LFPO_PAPER


def first_letter(prompts, completions, want, **columns):
    """1 for a completion that is the prompt's first letter, twice."""
    return [float(c == w * 2) + 0.5 * float(c[:1] == w) for c, w in zip(completions, want, strict=True)]


def test_learns_and_leaves_a_complete_run(llada: Path, tmp_path: Path):
    args = config(tmp_path, max_steps=25, num_generations=8, eval_steps=25, save_steps=10, objective=LFPO_PAPER)
    trainer = LFPOTrainer(str(llada), even_letters, args=args, train_dataset=ROWS, eval_dataset=ROWS)
    folder = trainer.train()
    rows = metrics(tmp_path / "run")
    assert [r["step"] for r in rows] == list(range(26))
    early, late = (sum(r["reward"] for r in part) / 5 for part in (rows[1:6], rows[-5:]))
    assert late > early + 0.2
    assert rows[-1]["eval/greedy/reward"] > 0.9
    for name in ("reward_std", "frac_reward_zero_std", "rewards/even_letters/mean", "completions/mean_length", "steps"):
        assert name in rows[1]
    records = [json.loads(x) for x in (tmp_path / "run/rollouts/step-1.jsonl").read_text().splitlines()]
    assert len(records) == 16
    assert {"prompt_ids", "token_ids", "reveal_step", "confidence", "rewards", "reward", "r"} <= records[0].keys()
    saved = load_model(folder)
    assert all(torch.equal(a, b) for a, b in zip(saved.parameters(), trainer.model.parameters(), strict=True))


def test_resume_is_bit_identical_to_an_unbroken_run(llada: Path, tmp_path: Path):
    assert_resume_is_exact(llada, tmp_path, average_decay=0.9)


@pytest.mark.parametrize(
    "changes",
    [
        {"average_decay": 0.9},
        {"lora": {"r": 2}, "average_decay": 0.9},
        {"engine": EngineSettings(max_staleness=1)},
    ],
)
def test_a_trainer_that_trained_goes_on_as_a_new_one(llada: Path, tmp_path: Path, changes: dict[str, Any]):
    class StopsOnce(TrainerCallback):
        stopped = False

        def on_log(self, args, state, control, **kwargs):
            if state.global_step == 1 and not self.stopped:
                self.stopped = control.should_training_stop = True

    def trainer(name: str, *callbacks: Any) -> LFPOTrainer:
        args = build(LFPOConfig, to_dict(config(tmp_path, output_dir=str(tmp_path / name), save_steps=3)) | changes)
        return LFPOTrainer(str(llada), even_letters, args, ROWS, callbacks=callbacks)

    trainer("whole").train()
    parts = trainer("parts", StopsOnce())
    parts.train()
    assert [row["step"] for row in metrics(tmp_path / "parts")] == [1]
    parts.train(resume=True)
    assert without_times(metrics(tmp_path / "parts")) == without_times(metrics(tmp_path / "whole"))
    assert [row["step"] for row in parts.events.state.log_history[:3]] == [1, 2, 3]
    a, b = (load_model(tmp_path / name / "model").state_dict() for name in ("whole", "parts"))
    assert all(torch.equal(value, b[name]) for name, value in a.items())


def test_a_callback_that_failed_is_called_again_by_the_same_trainer(llada: Path, tmp_path: Path):
    class FailsOnce(TrainerCallback):
        def __init__(self) -> None:
            self.steps: list[int] = []

        def on_step_end(self, args, state, control, **kwargs):
            self.steps.append(state.global_step)
            if len(self.steps) == 1:
                raise KeyError("loss")

    callback = FailsOnce()
    trainer = LFPOTrainer(str(llada), even_letters, config(tmp_path), ROWS, callbacks=[callback])
    with pytest.raises(UserError, match="KeyError"):
        trainer.train()
    trainer.train(resume=True)
    assert callback.steps == [1, 2, 3]


def test_a_model_that_another_trainer_has_changed_is_one_sentence(llada: Path, tmp_path: Path):
    model, tokenizer = load_model(llada), load_tokenizer(llada)
    LFPOTrainer(model, even_letters, config(tmp_path, lora={"r": 2, "lora_alpha": 4}), ROWS, tokenizer=tokenizer)
    for lora in (None, {"r": 2, "lora_alpha": 4}, {"r": 4, "lora_alpha": 4, "target_modules": ["q_proj"]}):
        with pytest.raises(UserError, match=r"model: it has a LoRA adapter already; load it again by load_model"):
            LFPOTrainer(model, even_letters, config(tmp_path, lora=lora), ROWS, tokenizer=tokenizer)


def test_a_process_without_standard_output_trains(llada: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("sys.stdout", None)
    LFPOTrainer(str(llada), even_letters, config(tmp_path, max_steps=1), ROWS).train()
    assert (tmp_path / "run/model/config.json").exists()


def test_the_first_line_says_the_model_s_own_dtype(llada: Path, tmp_path: Path):
    model = load_model(llada).double()
    trainer = LFPOTrainer(model, even_letters, config(tmp_path), ROWS, tokenizer=load_tokenizer(llada))
    assert " parameters, float64\n" in trainer.about


def test_weights_that_have_moved_begin_no_run(llada: Path, tmp_path: Path):
    trainer = LFPOTrainer(str(llada), even_letters, config(tmp_path, max_steps=1), ROWS)
    trainer.train()
    shutil.move(tmp_path / "run", tmp_path / "other")
    with pytest.raises(UserError, match=r"this trainer has begun; a new trainer with the same arguments starts"):
        trainer.train()
    shutil.copytree(tmp_path / "other", tmp_path / "run")
    shutil.rmtree(tmp_path / "run/checkpoints")
    with pytest.raises(UserError, match="has no checkpoint to go on from, and this trainer has begun; a new trainer"):
        trainer.train(resume=True)


def test_conversational_prompts_get_conversational_completions(llada: Path, tmp_path: Path):
    seen = []

    def look(prompts, completions, **columns):
        seen.append((prompts[0], completions[0]))
        return [0.0] * len(prompts)

    rows = [{"prompt": [{"role": "user", "content": "hi"}]}]
    tokenizer = load_tokenizer(llada)
    tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }}?{% endfor %}"
    args = config(tmp_path, max_steps=1)
    LFPOTrainer(load_model(llada), look, args=args, train_dataset=rows, tokenizer=tokenizer).train()
    assert seen[0][0] == rows[0]["prompt"]
    assert seen[0][1][0]["role"] == "assistant"


def test_the_model_that_a_trainer_is_given_is_the_run_s(llada: Path, tmp_path: Path):
    def named(model: Any, **changes: Any) -> str | None:
        args = config(tmp_path / "run", max_steps=1, **changes)
        tokenizer = load_tokenizer(llada)
        return LFPOTrainer(model, first_letter, args=args, train_dataset=ROWS, tokenizer=tokenizer).args.model

    assert named(str(llada)) == named(load_model(llada)) == str(llada)
    fresh = load_model(llada)
    fresh.source = None
    assert named(fresh) == "embedded"
    with pytest.raises(UserError, match="engine ray: its workers load the model by name, and this one was not loaded"):
        named(fresh, engine=EngineSettings(name="ray"))


def test_a_non_finite_update_is_skipped_counted_and_at_last_stops(llada: Path, tmp_path: Path, monkeypatch):
    def poisoned(self, predictions, signal):
        return predictions.logits().sum() * float("nan"), {}

    monkeypatch.setattr(LFPO, "loss", poisoned)
    trainer = LFPOTrainer(str(llada), first_letter, args=config(tmp_path, objective=LFPO_PAPER), train_dataset=ROWS)
    before = [p.clone() for p in trainer.model.parameters()]
    with pytest.raises(UserError, match="not finite 5 times"):
        trainer.train()
    assert all(torch.equal(a, b) for a, b in zip(before, trainer.model.parameters(), strict=True))
    assert metrics(tmp_path / "run")[-1]["skipped_updates"] == 4
    assert trainer.state["skipped_in_a_row"] == 0  # as saved: the first skip of a resumed run does not end it


def test_wrong_calls_are_one_sentence(llada: Path, tmp_path: Path):
    long, mixed = [{"prompt": "x" * 600, "want": "x"}], [{"prompt": "a", "want": "a"}, {"prompt": "b"}]
    for model, rewards, rows, said in (
        (str(llada), None, ROWS, "needs 'reward_funcs'"),
        (str(llada), first_letter, [*ROWS[:1], {"text": "x"}], r"train_dataset\[1\]"),
        (load_model(llada), first_letter, ROWS, "without its tokenizer"),
        (load_model(llada).half(), first_letter, ROWS, "its weights are in float16, .* or set lora"),
        (load_model(llada).to(torch.bfloat16), first_letter, ROWS, "its weights are in bfloat16, .* or set lora"),
        (str(llada), first_letter, long, "context"),
        (str(llada), first_letter, mixed, "columns"),
    ):
        with pytest.raises(UserError, match=said):
            LFPOTrainer(model, rewards, args=config(tmp_path), train_dataset=rows).train()


def test_the_average_by_hand(tmp_path: Path):
    weight = torch.nn.Parameter(torch.tensor([1.0]))
    average = Average([weight], 0.5)
    weight.data.fill_(3.0)
    average.update()  # decay 2 / 11: 1 * 2/11 + 3 * 9/11
    assert average.values[0].item() == pytest.approx(29 / 11)
    weight.data.fill_(0.0)
    for _ in range(7):
        average.update()
    now = average.values[0].item()
    weight.data.fill_(8.0)
    average.update()  # the ninth: 10 / 19 is above the decay
    assert average.values[0].item() == pytest.approx(0.5 * now + 4.0)
    with average.in_place():
        assert weight.item() == pytest.approx(0.5 * now + 4.0)
    assert weight.item() == 8.0
    average.save(tmp_path)
    other = Average([weight], 0.5)
    other.load(tmp_path)
    assert other.updates == 9 and torch.equal(other.values[0], average.values[0])
    with pytest.raises(UserError, match="average_decay"):
        Average([weight, weight], 0.5).load(tmp_path)


@pytest.mark.long
def test_only_what_is_evaluated_and_exported_is_averaged(llada: Path, tmp_path: Path):
    def trained(name: str, **changes) -> LFPOTrainer:
        output = {"output_dir": str(tmp_path / name), "max_steps": 2, "eval_steps": 1, "save_steps": 2}
        args = config(tmp_path, **output, **changes)
        trainer = LFPOTrainer(str(llada), even_letters, args=args, train_dataset=ROWS, eval_dataset=ROWS)
        trainer.train()
        return trainer

    plain, averaged = trained("plain"), trained("averaged", average_decay=0.9)
    names = ("loss", "reward", "grad_norm", "flops")
    a, b = metrics(tmp_path / "plain"), metrics(tmp_path / "averaged")
    assert [[r[n] for n in names] for r in a[1:]] == [[r[n] for n in names] for r in b[1:]]
    last = latest_checkpoint(tmp_path / "averaged")
    assert last is not None
    same = zip(plain.model.parameters(), load_model(last / "model").parameters(), strict=True)
    assert all(torch.equal(x, y) for x, y in same)  # the checkpoint goes on from theta itself
    exported = load_model(tmp_path / "averaged/model").parameters()
    kept = list(averaged.model.parameters())
    assert all(torch.equal(x, y) for x, y in zip(exported, kept, strict=True))
    assert any(not torch.equal(x, y) for x, y in zip(kept, plain.model.parameters(), strict=True))
