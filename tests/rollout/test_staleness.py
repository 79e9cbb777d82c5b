"""Rollouts that are sampled ahead: which weights sample them, resumed runs, ranks, bad input."""

import copy
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from letter_runs import ROWS, config, even_letters, metrics, without_times
from lfpo.config.errors import UserError
from lfpo.config.sampler import SamplerConfig
from lfpo.contrib.kept import KeepPredictions
from lfpo.core.batch import Batch
from lfpo.core.batch_metrics import gathered
from lfpo.core.learner import accumulate_gradients
from lfpo.core.model import OLD
from lfpo.core.trajectory import join
from lfpo.models import load_model
from lfpo.rollout.sampling import rollout
from lfpo.runs.context import Stopped
from lfpo.train.queue import part
from lfpo.train.rl import LFPOTrainer
from rank_runs import assert_same_run, run
from small_runs import LFPO_PAPER, same
from soon import soon
from update_cases import assert_same_bits

SAMPLER = SamplerConfig(temperature=1.0, steps=4).for_length(8)


def trainer_of(model: Path, tmp_path: Path, name: str, k: int, reward: Any = even_letters, **changes: Any) -> Any:
    settings = {"max_steps": 4, "eval_steps": 0, "save_total_limit": 4, **changes}
    args = config(tmp_path, output_dir=str(tmp_path / name), engine={"max_staleness": k}, **settings)
    return LFPOTrainer(str(model), reward, args=args, train_dataset=ROWS)


@pytest.mark.parametrize("k", [1, 2])
def test_batch_i_is_sampled_by_version_i_minus_k(k: int, llada: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    trainer, batches, weights = trainer_of(llada, tmp_path, "run", k), list[Batch](), dict[int, Any]()

    def collected(*args: Any, **settings: Any) -> Batch:
        weights[len(batches)] = copy.deepcopy(trainer.reference.state_dict())  # of this version, before its update
        batches.append(gathered(*args, **settings))
        return batches[-1]

    monkeypatch.setattr("lfpo.core.algorithm.gathered", collected)
    trainer.train()
    assert [batch.version for batch in batches] == [max(0, i - k) for i in range(4)]
    assert [m["engine/staleness"] for m in metrics(tmp_path / "run")] == [min(i, k) for i in range(4)]
    # Behind batch i are the k next ones, as far as there are any.
    assert [m["engine/queue"] for m in metrics(tmp_path / "run")] == [min(k, 3 - i) for i in range(4)]
    sampler, model = trainer.sampler, trainer.reference
    for i, batch in enumerate(batches):
        t = batch.trajectory
        prompts = [ids[mask].tolist() for ids, mask in zip(t.prompt_ids, t.prompt_mask.bool(), strict=True)]
        found = []
        for version in (max(0, i - k), i):
            model.load_state_dict(weights[version])
            found.append(same(t, rollout(model, prompts, sampler, [turn.seed for turn in batch.turns])))
        assert found == [True, i == 0]  # the newest weights would have sampled other rollouts


def test_staleness_0_has_no_queue_and_1_begins_like_it(llada: Path, tmp_path: Path):
    for k in (0, 1):
        trainer_of(llada, tmp_path, str(k), k, max_steps=2).train()
    now, ahead = (without_times(metrics(tmp_path / str(k))) for k in (0, 1))
    assert {"engine/staleness", "engine/queue"} == ahead[0].keys() - now[0].keys()
    assert not (tmp_path / "0/checkpoints/step-1/queue").exists()
    assert {key: ahead[0][key] for key in now[0]} == now[0]
    assert ahead[1]["reward"] != now[1]["reward"]


def test_theta_old_of_the_loss_is_the_newest(llada: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    changes = {"ema_decay": 0.5, "objective": LFPO_PAPER}
    trainer = trainer_of(llada, tmp_path, "run", 2, optimizer_steps_per_iteration=1, **changes)
    weights, theta, seen = list[torch.Tensor](), list[torch.Tensor](), list[torch.Tensor]()

    def collected(*args: Any, **settings: Any) -> Batch:
        weights.append(flat(trainer.reference))
        theta.append(flat(trainer.model))
        return gathered(*args, **settings)

    def updated(objective: Any, policies: Any, *args: Any, **settings: Any) -> Any:
        seen.append(flat(policies[OLD]))
        return accumulate_gradients(objective, policies, *args, **settings)

    monkeypatch.setattr("lfpo.core.algorithm.gathered", collected)
    monkeypatch.setattr("lfpo.core.learner.accumulate_gradients", updated)
    trainer.train()
    assert not torch.equal(weights[0], weights[1])
    for i, found in enumerate(seen):
        assert torch.equal(found, weights[i])
    for i in range(3):  # the reference moves from the newest weights, whatever the loss compares with
        torch.testing.assert_close(weights[i + 1], weights[i].lerp(theta[i + 1], 0.5))


def flat(policy: Any) -> torch.Tensor:
    return torch.cat([p.detach().flatten().clone() for p in policy.parameters()])


@pytest.mark.long
@pytest.mark.parametrize(
    "changes",
    [
        {"lora": {"r": 2, "lora_alpha": 4}, "average_decay": 0.5},
        {},
    ],
)
def test_a_run_killed_with_a_queue_resumes_to_the_same_bits(changes: dict[str, Any], llada: Path, tmp_path: Path):
    trainer_of(llada, tmp_path, "whole", 2, **changes).train()
    shutil.copytree(tmp_path / "whole", tmp_path / "run")
    for step in (2, 3, 4):  # what a kill after the first checkpoint leaves
        shutil.rmtree(tmp_path / "run" / "checkpoints" / f"step-{step}")
    trainer_of(llada, tmp_path, "run", 2, **changes).train(resume=True)
    assert_same_bits(tmp_path / "whole", tmp_path / "run")


def test_a_stop_while_a_batch_is_scored_keeps_the_batch(llada: Path, tmp_path: Path):
    calls: list[int] = []

    def stopping(prompts: Any, completions: Any, **columns: Any) -> list[float]:
        calls.append(len(prompts))
        if len(calls) == 4:  # the first call is the check at start
            os.kill(os.getpid(), signal.SIGTERM)
        return even_letters(prompts, completions)

    changes = {"save_steps": 10, "reward_timeout": 0.0}
    trainer_of(llada, tmp_path, "whole", 1, **changes).train()
    broken = trainer_of(llada, tmp_path, "run", 1, stopping, **changes)
    with pytest.raises(Stopped, match="step-2"):
        broken.train()
    queue = (tmp_path / "run/checkpoints/step-2/queue").glob("batch*")
    assert sorted(p.name for p in queue) == ["batch-2.safetensors", "batch-3.safetensors"]
    trainer_of(llada, tmp_path, "run", 1, **changes).train(resume=True)
    found, expected = (without_times(metrics(tmp_path / name))[2:] for name in ("run", "whole"))
    assert [{k: v for k, v in row.items() if "stopping" not in k} for row in found] == expected


@pytest.mark.long
def test_a_checkpoint_without_a_queue_resumes_with_one(llada: Path, tmp_path: Path):
    trainer_of(llada, tmp_path, "run", 0, max_steps=2).train()
    trainer_of(llada, tmp_path, "run", 2, max_steps=5).train(resume=True)
    assert [m.get("engine/staleness") for m in metrics(tmp_path / "run")] == [None, None, 0, 1, 2]


@pytest.mark.parametrize(
    ("kept", "changes", "said"),
    soon(
        [
            (1, {"prompts_per_iteration": 3}, r"rollouts for iteration 2 of other prompts.* resume with the data"),
            (1, {"num_generations": 64}, r"rollouts for iteration \d of other prompts"),
        ],
        1,
    ),
)
def test_a_checkpoint_whose_rollouts_cannot_be_used_is_one_sentence(
    kept: int, changes: dict[str, Any], said: str, llada: Path, tmp_path: Path
):
    trainer_of(llada, tmp_path, "run", 1, max_steps=3).train()
    for step in range(kept + 1, 4):
        shutil.rmtree(tmp_path / "run" / "checkpoints" / f"step-{step}")
    with pytest.raises(UserError, match=said):
        trainer_of(llada, tmp_path, "run", 1, max_steps=3, **changes).train(resume=True)


@pytest.mark.long
@pytest.mark.parametrize(
    ("staleness", "split", "resumed", "more"),
    [("1", "false", 1, ()), ("2", "true", 2, ("--save_total_limit", "4"))],
)
def test_two_ranks_train_as_one_and_resume_from_a_checkpoint_with_a_queue(
    staleness: str, split: str, resumed: int, more: tuple[str, ...], llada: Path, tmp_path: Path
):
    last = 2 + int(staleness)
    steps = ("--max_steps", str(last), "--engine.max_staleness", staleness, "--eval_steps", "0", *more)
    for name, ranks, fsdp in (("one", 1, "false"), ("two", 2, split)):
        process = run(tmp_path / name, llada, ranks, *steps, "--fsdp", fsdp)
        assert process.returncode == 0, process.stderr
    assert_same_run(tmp_path / "one", tmp_path / "two")
    for step in range(3, last + 1):
        shutil.rmtree(tmp_path / "two" / "checkpoints" / f"step-{step}")
    process = run(tmp_path / "two", llada, resumed, *steps, "--fsdp", split, "--resume")
    assert process.returncode == 0 and "step-2" in process.stdout, process.stderr
    assert_same_run(tmp_path / "one", tmp_path / "two")


def test_part_undoes_join(llada: Path):
    """Prompts of different widths, and kept predictions."""
    model = load_model(llada)
    parts = [rollout(model, [p] * 4, SAMPLER, [1, 2, 3, 4], variant=KeepPredictions((1, 3))) for p in ([5, 6, 7], [8])]
    whole = join(parts, model.pad_id)
    assert same(part(whole, 0, 4), parts[0])
    assert same(part(whole, 4, 4), parts[1])
