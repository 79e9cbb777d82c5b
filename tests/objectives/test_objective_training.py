"""Training with every objective: gradients of split batches, whole runs on one rank and two, one from outside."""

import math
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

import tiny
from fused_cases import Products, chunks_of, widest
from letter_runs import ROWS, config, even_letters, metrics
from lfpo.config.sampler import SamplerConfig
from lfpo.core.learner import accumulate_gradients
from lfpo.core.model import BASE, CURRENT, OLD
from lfpo.core.views import passes
from lfpo.models import load_model
from lfpo.objectives import OBJECTIVES
from lfpo.train.rl import LFPOTrainer
from rank_checks import SMALL_RUNS, assert_ranks_do_not_matter
from rollout_cases import blocks_of_code
from small_runs import step_of


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write_llada(tmp_path_factory.mktemp("objectives") / "llada")


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


# The one whose signal has a number for each state, and those that need other ranks' numbers or whole sequences.
RANKED = ("egspo", "lfpo", "mdpo", "agrpo", "espo", "rldf", "stable_drl", "trace_rl")


@pytest.mark.long
@pytest.mark.parametrize("name", RANKED)
def test_two_ranks_start_a_run_that_one_ends_as_if_it_had_run_alone(name: str, start: Path, tmp_path: Path):
    assert_ranks_do_not_matter(name, start, tmp_path)
