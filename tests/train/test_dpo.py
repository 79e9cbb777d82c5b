"""Preference training: rows, pairs, the trainer, its command."""

import random
from pathlib import Path
from typing import Any

import pytest
import torch

import tiny
from lfpo.cli.command_line import main
from lfpo.config.dpo import DPOConfig
from lfpo.config.errors import UserError
from lfpo.config.tasks import TASKS
from lfpo.core.model import BASE, CURRENT
from lfpo.models import load_model
from lfpo.prompts.examples import preference, read_examples, task_pair
from lfpo.prompts.tasks import Task, get_task
from lfpo.runs.context import Context
from lfpo.train.dpo import DPOTrainer, as_trajectory, train_dpo
from processes import run_lfpo
from rank_runs import metrics
from written_runs import write_rows

ROWS: list[dict[str, Any]] = [
    {"prompt": p, "chosen": "aaaa"[:n], "rejected": "zzz"[:n]} for n, p in ((1, "x"), (2, "yy"), (3, "xyx"), (2, "y"))
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write_llada(tmp_path_factory.mktemp("dpo") / "llada")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_rows(tmp_path_factory.mktemp("dpo") / "pairs.jsonl", ROWS)


def config(folder: Path, model: Path, data: Path, **changes: Any) -> DPOConfig:
    values: dict[str, Any] = {"output_dir": str(folder), "model": str(model), "data_file": str(data)}
    values |= {"eval_file": str(data), "gen_length": 4, "beta": 1.0, "max_steps": 4, "batch_size": 3}
    values |= {"learning_rate": 1e-2, "eval_steps": 4, "save_steps": 2}
    return DPOConfig(**{**values, **changes})


@pytest.mark.parametrize("changes", [{}, {"lora": {"r": 2, "lora_alpha": 4}}, {"after_eos": True}], ids=str)
def test_the_chosen_completion_becomes_likelier_than_the_rejected(
    changes: dict[str, Any], model: Path, data: Path, tmp_path: Path
):
    from lfpo.config.build import build, to_dict

    args = build(DPOConfig, to_dict(config(tmp_path / "run", model, data, max_steps=12, eval_steps=6)) | changes)
    train_dpo(args)
    rows = metrics(tmp_path / "run")
    assert [row["step"] for row in rows] == list(range(13))
    assert rows[0]["eval/rewards/margins"] == rows[0]["eval/rewards/accuracies"] == 0
    assert rows[1]["loss"] == pytest.approx(0.6931, abs=1e-4)  # the policy is the base
    assert rows[-1]["eval/preference_accuracy"] == rows[-1]["eval/rewards/accuracies"] == 1
    assert rows[-1]["loss"] < 0.6 and rows[-1]["rewards/margins"] > 0.2 and rows[-1]["flops"] > 0
    assert rows[-1]["rewards/chosen"] - rows[-1]["rewards/rejected"] == pytest.approx(rows[-1]["rewards/margins"])
    assert load_model(tmp_path / "run" / "model").adapter is None


def test_an_evaluation_between_two_logged_steps_is_logged_with_its_step(model: Path, data: Path, tmp_path: Path):
    train_dpo(config(tmp_path / "run", model, data, max_steps=3, logging_steps=3, eval_steps=2))
    rows = metrics(tmp_path / "run")
    assert [(row["step"], "loss" in row) for row in rows] == [(0, False), (2, False), (3, True)]
    assert all("eval/loss" in row for row in rows)


SOME = ["--lora", "{r: 2, lora_alpha: 4}"]
SPLIT = ["--fsdp", "true"]


@pytest.mark.long
@pytest.mark.parametrize(
    ("lora", "parallel"),
    [([], []), ([], SPLIT), (SOME, []), (SOME, SPLIT)],
    ids=["full", "full, split", "lora", "lora, split"],
)
def test_two_ranks_start_a_run_that_one_ends_as_if_it_had_run_alone(
    lora: list[str], parallel: list[str], model: Path, data: Path, tmp_path: Path
):
    """Of three pairs a step one rank has two; of seven held-out pairs it has four, a batch more than the other."""
    seven = write_rows(tmp_path / "seven.jsonl", [*ROWS, *ROWS[:3]])
    keys = {"model": model, "data_file": data, "eval_file": seven, "gen_length": 4, "beta": 1, "batch_size": 3}
    keys |= {"learning_rate": "1e-2", "save_steps": 2, "eval_steps": 2}
    given = [x for k, v in keys.items() for x in (f"--{k}", str(v))] + lora
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert main(["dpo", *given, "--max_steps", "4", "--output_dir", str(whole)]) == 0
    split = ["--max_steps", "2", "--output_dir", str(parts), "--update_tokens", "40"]
    run_lfpo("dpo", *given, *split, *parallel, ranks=2)
    assert main(["dpo", *given, "--max_steps", "4", "--output_dir", str(parts), "--resume"]) == 0
    for one, two in zip(metrics(whole), metrics(parts), strict=True):
        assert one == pytest.approx(two, rel=1e-4, abs=1e-6)


def test_policy_and_base_see_the_same_masks_and_the_base_stays(
    model: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    trainer = DPOTrainer(config(tmp_path / "run", model, data))
    seen: dict[str, list[Any]] = {CURRENT: [], BASE: []}
    for name, policy in trainer.policies.items():

        def hidden(ids: torch.Tensor, mask: Any, name: str = name, run: Any = policy.hidden) -> torch.Tensor:
            seen[name].append(ids.tolist())
            return run(ids, mask)

        monkeypatch.setattr(policy, "hidden", hidden)
    before = [p.clone() for p in trainer.policies[BASE].parameters()]
    trainer.run_iteration(0, Context())
    assert seen[CURRENT] == seen[BASE] and len(seen[BASE]) >= 1
    assert all(torch.equal(a, b) for a, b in zip(before, trainer.policies[BASE].parameters(), strict=True))
    assert set(trainer.policies) == {CURRENT, BASE}


def test_pairs_are_rollouts_in_turn_and_padding_is_not_scored(model: Path, data: Path, tmp_path: Path):
    trainer = DPOTrainer(config(tmp_path / "run", model, data))
    t = as_trajectory(trainer.held_out[:2], trainer.model)
    assert t.tokens.shape == (4, 4) and t.lengths.tolist() == [2, 2, 3, 3]
    assert t.prompt_mask.tolist() == [[0, 1], [0, 1], [1, 1], [1, 1]]
    views = trainer.objective.views(t, torch.zeros(4), [1, 2, 3, 4], 0)
    assert views.unit.tolist() == (views.row // 2).tolist()
    assert not (views.target[:, 2:] & ~t.until_eos[views.row]).any()
    each = torch.zeros(4).index_add(0, views.row, views.weight.sum(-1))
    assert each.tolist() == pytest.approx([2 / 4, 2 / 4, 3 / 4, 3 / 4])  # n / C


def test_conversations_are_read_as_trl_writes_them():
    user, good, bad = {"role": "user", "content": "x"}, "right", "wrong"
    said = [[{"role": "assistant", "content": text}] for text in (good, bad)]
    explicit = preference({"prompt": [user], "chosen": said[0], "rejected": said[1]}, "f:1")
    implicit = preference({"chosen": [user, *said[0]], "rejected": [user, *said[1]]}, "f:1")
    assert explicit == implicit == ([user], good, bad)


USER, ASSISTANT, OTHER = ({"role": r, "content": c} for r, c in (("user", "x"), ("assistant", "a"), ("assistant", "b")))


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"prompt": "x", "chosen": "a"}, r"column 'rejected' is missing \(found: prompt, chosen\)"),
        ({"chosen": "a", "rejected": "b"}, "column 'prompt' is missing"),
        ({"prompt": "x", "chosen": "a", "rejected": "a"}, "chosen and rejected are the same"),
        ({"prompt": "x", "chosen": "a", "rejected": 3}, "column 'rejected' must be text, found int"),
        ({"prompt": "x", "chosen": [{}], "rejected": [ASSISTANT]}, "chosen: a prompt list must hold messages"),
        ({"prompt": [USER], "chosen": [ASSISTANT] * 2, "rejected": [ASSISTANT]}, "'chosen' must be one message of the"),
        (
            {"chosen": [ASSISTANT], "rejected": [OTHER]},
            "without 'prompt', .* must be whole conversations: first the same",
        ),
        ({"chosen": [USER], "rejected": [USER, OTHER]}, "without 'prompt', .* must be whole conversations"),
        ({"chosen": [USER, OTHER], "rejected": [USER, OTHER]}, "chosen and rejected are the same"),
        ({"prompt": [USER], "chosen": [OTHER], "rejected": [OTHER]}, "chosen and rejected are the same"),
        ({"prompt": "x", "chosen": [USER, ASSISTANT], "rejected": [USER, OTHER]}, "leave 'prompt' out where it"),
        (
            {"prompt": [USER], "chosen": [USER, ASSISTANT], "rejected": [USER, OTHER]},
            "leave 'prompt' out where it",
        ),
        ({"chosen": [USER, OTHER, USER, OTHER], "rejected": [USER, ASSISTANT]}, "'chosen' must be one message of the"),
    ],
)
def test_a_wrong_row_is_one_sentence_with_its_line(
    row: dict[str, Any], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    file = write_rows(tmp_path / "pairs.jsonl", [ROWS[0], row])
    with pytest.raises(UserError, match=f"pairs.jsonl:2: .*{said}"):
        read_examples(DPOConfig("run", data_file=str(file)), preference)
    assert main(["dpo", "--data_file", str(file), "--output_dir", str(tmp_path / "run")]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and error.count("\n") == 1
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"tasks": {"words": 1.0}}, "give one of 'tasks', 'data_file' and 'dataset_name'"),
        ({"data_file": None, "tasks": {"words": 1.0}}, "'eval_file' goes with 'data_file'"),
        ({"beta": 0.0}, "beta 0.0 must be positive"),
        ({"dtype": "bfloat16"}, "'dtype' bfloat16 needs 'lora'"),
        ({"mc_samples": 0}, "mc_samples 0"),
        ({"max_grad_norm": -1.0}, "max_grad_norm -1.0 must not be negative"),
        ({"adam_beta1": 1.0}, "adam_beta1 1.0 must be at least 0 and below 1"),
        ({"data_file": None, "eval_file": None, "tasks": {"words": 0.0}}, "shares of 'tasks' must be positive"),
    ],
)
def test_settings_that_do_not_fit(changes: dict[str, Any], said: str, model: Path, data: Path, tmp_path: Path):
    with pytest.raises(ValueError, match=said):
        config(tmp_path, model, data, **changes)


def test_a_completion_that_is_too_long_names_its_line(model: Path, data: Path, tmp_path: Path):
    with pytest.raises(UserError, match=r"pairs.jsonl:3: completion has 3 tokens, more than gen_length 2"):
        DPOTrainer(config(tmp_path / "run", model, data, gen_length=2))


@pytest.mark.parametrize("name", TASKS)
def test_a_task_s_pair_is_a_right_and_a_wrong_answer(name: str):
    task = get_task(name)
    assert isinstance(task, Task)
    for i in random.Random(0).sample(range(1000), 20):
        prompt, chosen, rejected = task_pair(task, "test", i, 0)
        row = next(r for j in range(5) if (r := task.row("test", i + j * 10**6, 0))["prompt"] == prompt)
        assert task.correct(chosen, row) and not task.correct(rejected, row)
    assert task_pair(task, "test", 3, 0) == task_pair(task, "test", 3, 0) != task_pair(task, "test", 4, 0)
