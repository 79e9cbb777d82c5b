"""Training with every objective: gradients of split batches, whole runs on one rank and two, one from outside."""

import math
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import tiny
from lfpo.cli.command_line import main
from lfpo.config.sampler import SamplerConfig
from lfpo.core.learner import accumulate_gradients
from lfpo.core.roles import BASE, CURRENT, OLD
from lfpo.core.views import passes
from lfpo.models import load_model
from lfpo.objectives import OBJECTIVES
from lfpo.train.rl import LFPOTrainer
from small_runs import step_of
from test_distributed import ARGUMENTS, assert_same_run, run
from test_fused import Products, chunks_of, widest
from test_rollout import blocks_of_code
from test_train import ROWS, config, even_letters, metrics

# One of each kind: random masks, one state, likelihoods of whole answers, replayed states, a mixture, sampled steps.
# The others are tested in the long suite.
SOON = ("lfpo", "unigrpo", "espo", "trace_rl", "dtm", "agrpo")


# One family is enough for most: an objective sees logits, and not where a model has them.
@pytest.mark.parametrize(
    ("name", "knobs", "family"),
    [
        *((name, {}, "llada") for name in SOON),
        *(pytest.param(name, {}, "llada", marks=pytest.mark.long) for name in OBJECTIVES if name not in SOON),
        pytest.param("rldf", {"num_iterations": 1}, "llada", marks=pytest.mark.long),
        ("lfpo", {"reward_transform": "raw"}, "llada"),
        *((name, {}, "dream") for name in ("lfpo", "agrpo")),
    ],
)
def test_passes_and_chunks_change_no_gradient_and_no_measure_and_only_the_current_policy_gets_one(
    name: str, knobs: dict[str, Any], family: str
):
    """And theta_old is read where the objective says so."""
    objective, models, views, signal = step_of(family, name, **knobs)
    results, lengths = [], views.attention_mask.sum(-1)
    vocab_size, targets = models[CURRENT].vocab_size, int(views.target.sum())
    size = next(n for n in range(targets // 3 + 1, targets) if targets % n)  # the last chunk is smaller than the others
    for tokens, rows in ((10**6, 10**4), (40, 10**4), (1, 10**4), (10**6, size)):
        parts = passes(views, tokens)
        assert (len(parts) == 1) == (tokens == 10**6)
        assert all(len(p) * lengths[p].max() <= tokens or len(views.unit[p].unique()) == 1 for p in parts)
        watched = Products() if len(parts) == 1 else nullcontext()
        with chunks_of(rows * vocab_size + 3), watched as products:
            loss, measures = accumulate_gradients(objective, models, views, signal, update_tokens=tokens)
        assert products is None or widest(products, vocab_size) == min(targets, rows)
        results.append((loss, torch.cat([p.grad.flatten() for p in models[CURRENT].parameters()]), measures))
        models[CURRENT].zero_grad()
    whole = results[0][2]
    for loss, gradient, measures in results[1:]:
        assert loss == pytest.approx(results[0][0], rel=1e-11)
        torch.testing.assert_close(gradient, results[0][1], rtol=1e-10, atol=1e-13)
        torch.testing.assert_close(measures, whole, rtol=1e-5, atol=1e-7)
    assert "entropy/targets" in whole and ("negatives/saturated" in whole) == (name == "lfpo")
    without_ratio = ("lfpo", "wd1", "spg", "rldf", "stable_drl", "rejection", "dtm")
    assert ("ratio/mean" in whole) == (name not in without_ratio)
    assert float(results[0][1].norm()) > 1e-3
    assert all(p.grad is None for other in (OLD, BASE) for p in models[other].parameters())
    del models[OLD]
    with pytest.raises(KeyError, match=OLD) if objective.reads_old else nullcontext():
        accumulate_gradients(objective, models, views, signal, update_tokens=10**6)


def run_of(tmp_path: Path, model: Path, objective: dict[str, Any], **changes: Any) -> tuple[LFPOTrainer, int, bool]:
    """Train an iteration; the trainer, the number of optimiser updates, and whether any weight changed."""
    args = config(tmp_path, objective=objective, **{"max_steps": 1, "eval_steps": 0, **changes})
    trainer = LFPOTrainer(str(model), even_letters, args=args, train_dataset=ROWS)
    before = [p.clone() for p in trainer.model.parameters()]
    updates: list[Any] = []
    step = trainer.optimizer.step
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer.optimizer, "step", lambda *a: updates.append(step(*a)))
        trainer.train()
    changed = any(not torch.equal(a, b) for a, b in zip(before, trainer.model.parameters(), strict=True))
    return trainer, len(updates), changed


SMALL_RUNS: dict[str, dict[str, Any]] = {
    "lfpo": {"num_iterations": 2},
    "dtm": {"num_iterations": 2},
    "diffu_grpo": {"num_iterations": 2},
    "unigrpo": {"num_iterations": 2, "min_step": 900},  # so that every view has a target, however views are packed
    "spg": {"block_length": 2, "num_iterations": 1},
    "agrpo": {"mc_samples": 2, "num_iterations": 2},
    "wd1": {"num_iterations": 1},
    "rejection": {"min_reward": 0.4},
    "trace_rl": {"min_accuracy": 0.0, "max_accuracy": 1.0},
    "slim_rl": {"min_accuracy": 0.0, "max_accuracy": 1.0},
    "ebpo": {"mc_samples": 2},
    "mask_aware": {"num_iterations": 2},
    "espo": {"num_iterations": 2},
    "gdsd": {"num_iterations": 2, "epsilon": 0.5},
    "rldf": {"num_iterations": 2},
    "bgpo": {"mc_samples": 2},
    "cj_grpo": {"num_iterations": 2},
    "gdpo": {"num_iterations": 2},
    "stable_drl": {"block_length": 2, "num_iterations": 1},
    "mdpo": {"steps": 2},
}


@pytest.mark.parametrize(("name", "family"), [*((name, "llada") for name in OBJECTIVES), ("coupled_grpo", "dream")])
def test_every_objective_trains(name: str, family: str, tmp_path: Path, request: pytest.FixtureRequest):
    objective, model = {"name": name, **SMALL_RUNS.get(name, {})}, request.getfixturevalue(family)
    sampler = SamplerConfig(gen_length=4, temperature=1.0, block_length=1 if name == "justgrpo" else None)
    trainer, updates, changed = run_of(tmp_path, model, objective, sampler=sampler)
    assert changed
    assert updates == 2 * trainer.objective.num_iterations  # blocks, passes through each
    (row,) = metrics(tmp_path / "run")
    assert math.isfinite(row["loss"]) and row["grad_norm"] > 0 and row["skipped_updates"] == 0
    # The base policy stays where training started; nothing is kept where it is not needed.
    assert (BASE in trainer.policies) == trainer.objective.needs_base
    if BASE in trainer.policies:
        start = load_model(model).parameters()
        assert all(torch.equal(a, b) for a, b in zip(start, trainer.policies[BASE].parameters(), strict=True))


def test_the_objective_in_contributing_trains_from_outside_the_package(
    llada: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "my_reinforce.py").write_text(blocks_of_code("Add an objective")[0], encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    _, updates, changed = run_of(tmp_path, llada, {"name": "my_reinforce:Reinforce", "scale": 2.0})
    assert updates == 2 and changed


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write_llada(tmp_path_factory.mktemp("objectives") / "llada")


# The one whose signal has a number for each state, and those that need other ranks' numbers or whole sequences.
RANKED = ("egspo", "lfpo", "mdpo", "agrpo", "espo", "rldf", "stable_drl", "trace_rl")


def assert_ranks_do_not_matter(name: str, start: Path, tmp_path: Path, **changes: float) -> None:
    """Two ranks with FSDP and LoRA start a run and one process ends it: metrics are those of one process alone."""
    settings = yaml.safe_dump({"name": name, **SMALL_RUNS.get(name, {}), **changes}, default_flow_style=True)
    given = ["--objective", settings.strip(), "--lora", "{r: 2, lora_alpha: 4}", "--prompts_per_iteration", "2"]
    # Two blocks of two rollouts, and two of one, which leave a rank without any.
    given += ["--num_generations", "3", "--optimizer_steps_per_iteration", "4"]
    # Steps of 1e-2 are so long that the last bits of a gradient decide which token a rollout draws.
    given += ["--learning_rate", "1e-3", "--eval_size", "1"]
    if name == "justgrpo":
        given += ["--sampler.block_length", "1"]
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    alone = [*ARGUMENTS, "--model", str(start), *given, "--max_steps", "2", "--output_dir"]
    assert main([*alone, str(whole)]) == 0
    process = run(parts, start, 2, *given, "--max_steps", "1", "--fsdp", "true")
    assert process.returncode == 0, process.stderr
    assert main([*alone, str(parts), "--resume"]) == 0
    assert all(row["grad_norm"] > 0 for row in metrics(whole)[1:])
    assert_same_run(whole, parts)


@pytest.mark.long
@pytest.mark.parametrize("name", RANKED)
def test_two_ranks_start_a_run_that_one_ends_as_if_it_had_run_alone(name: str, start: Path, tmp_path: Path):
    assert_ranks_do_not_matter(name, start, tmp_path)
