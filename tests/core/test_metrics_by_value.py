"""Every key of metrics.jsonl that docs/run-directory.md lists for training, recomputed by hand from a small batch.

`by_hand` names the keys that a test recomputes; the first test compares them with the documentation's table.
"""

import dataclasses
import json
import math
import re
import time
from collections import Counter
from collections.abc import Callable, Sequence
from math import log
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest
import torch

import tiny
from golden_families import golden
from letter_runs import ROWS, config, even_letters, metrics
from letters import Table, rollouts
from lfpo.config.sampler import SamplerConfig
from lfpo.config.train import LFPOConfig
from lfpo.contrib.kept import KeptTrajectory
from lfpo.core import learner
from lfpo.core.batch_metrics import (
    endings,
    group_metrics,
    means_of_sums,
    reward_sums,
    share_of_commonest,
    trajectory_sums,
)
from lfpo.core.learner import accumulate_gradients, optimizer_blocks, share_with_signal
from lfpo.core.lfpo import LFPO
from lfpo.core.measures import Measures, add_measures, measure_targets
from lfpo.core.model import BASE, CURRENT, OLD
from lfpo.core.observer import Observer
from lfpo.core.optim import take_step
from lfpo.core.passes import fully_masked
from lfpo.core.predictions import Predictions
from lfpo.core.views import Views
from lfpo.models import load_model
from lfpo.models.experts import routers
from lfpo.models.router_measures import watched_routers
from lfpo.objectives import make_objective
from lfpo.objectives.policy_gradient import ratio_measures
from lfpo.rewards import Rewards
from lfpo.rollout.edits import EditedTrajectory
from lfpo.runs.context import Context
from lfpo.train.rl import LFPOTrainer
from scripted_engine import scripted
from small_runs import LFPO_PAPER

PAGE = Path(__file__).parents[2] / "docs" / "run-directory.md"
Test = TypeVar("Test", bound=Callable[..., None])
recomputed: set[str] = set()


def by_hand(*keys: str) -> Callable[[Test], Test]:
    """Marks a test that recomputes these keys of metrics.jsonl."""
    recomputed.update(keys)
    return lambda test: test


def documented_keys() -> set[str]:
    """The keys of the table under `## metrics.jsonl`; `/x` stands for the key before it with another last part."""
    section = PAGE.read_text(encoding="utf-8").split("\n## metrics.jsonl\n")[1].split("\n## ")[0]
    keys: set[str] = set()
    for cell in re.findall(r"^\| (`.*?) \|", section, re.MULTILINE):
        key = ""
        for name in re.findall("`([^`]+)`", cell):
            key = key.rpartition("/")[0] + name if name.startswith("/") else name
            keys.add(key)
    return keys


def test_every_documented_key_has_a_test_that_recomputes_it():
    assert len(documented_keys()) > 50
    assert recomputed == documented_keys()


def double(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


# Rewards and signals.


@by_hand("reward", "reward_std", "frac_reward_zero_std")
def test_groups_of_rewards_by_hand():
    """Groups of four: equal; 1 0 0 0 (deviation sqrt 3 / 4); 1 and 3 beside two without a reward; none with one."""
    nan = math.nan
    reward_R = double(2, 2, 2, 2, 1, 0, 0, 0, nan, 1, 3, nan, nan, nan, nan, nan)
    group_R = torch.arange(4).repeat_interleave(4)
    assert group_metrics(reward_R, group_R) == pytest.approx(
        {"reward": 13 / 10, "reward_std": (0 + math.sqrt(3) / 4 + 1) / 3, "frac_reward_zero_std": 1 / 3}
    )


@pytest.mark.parametrize(("rewards", "share"), [((1, 0, 0, 1), 0.0), ((1, 1, 0, 1), 0.5), ((1, 1, 0, 0), 1.0)])
def test_the_share_of_groups_with_equal_rewards(rewards: tuple[float, ...], share: float):
    found = group_metrics(double(*rewards), torch.tensor([0, 0, 1, 1]))
    assert found["frac_reward_zero_std"] == share


@by_hand("frac_signal")
def test_the_share_of_rollouts_with_a_signal():
    lfpo, others = make_objective({"name": "lfpo"}), make_objective({"name": "diffu_grpo"})
    signal_R = double(0.5, 0.0, 0.5, 1.0, 0.5)
    assert share_with_signal(lfpo, signal_R) == 2 / 5
    assert share_with_signal(others, signal_R) == 4 / 5


@by_hand("completions/frac_same_ending")
def test_the_share_of_the_commonest_last_line():
    texts = ["2 + 2\nanswer 4", "answer 4  \n\n", "answer 4", "answer 5", ""]
    assert share_of_commonest([endings(texts)]) == 3 / 5
    assert share_of_commonest([endings(["a\nb", "a\nc"])]) == 1 / 2  # first lines do not count


def test_a_function_s_mean_is_over_what_it_gave_a_number_for():
    rewards = Rewards(double(1, 2, 3), {"some": [1.0, None, 4.0], "none": [None] * 3, "all": [1.0, 1.0, 4.0]})
    assert means_over_sums(reward_sums(rewards)) == {"rewards/some/mean": 2.5, "rewards/all/mean": 2.0}


def means_over_sums(sums: dict[str, tuple[float, int]]) -> dict[str, float]:
    return means_of_sums([sums])


def means_over_ranks(measures: Measures) -> dict[str, float]:
    return means_of_sums([{name: pair.tolist() for name, pair in measures.items()}])


# Trajectories.


@by_hand("steps", "nfe", "completions/mean_length", "completions/clipped_ratio", "entropy/rollout")
def test_trajectories_by_hand():
    """Four rollouts of 3, 2, 4 and 1 tokens, the third without an EOS. Entropies after an EOS are large, so that one
    that counts shows."""
    entropy: list[list[float]] = [[1.0, 2, 3, 100], [4, 5, 0, 0], [0.5, 0.5, 0.5, 0.5], [7, 100, 200, 300]]
    t = rollouts(["abea", "aeee", "abab", "eaba"], ["0123", "01--", "0123", "3210"], entropy=entropy)
    t = dataclasses.replace(t, scheduled_steps=torch.tensor([4, 2, 4, 6]), nfe=torch.tensor([8, 4, 6, 4]))
    assert means_over_sums(trajectory_sums(t)) == {
        "completions/mean_length": (3 + 2 + 4 + 1) / 4,
        "completions/clipped_ratio": 1 / 4,
        "steps": (4 + 2 + 4 + 6) / 4,
        "nfe": (8 + 4 + 6 + 4) / 4,
        "entropy/rollout": (6 + 9 + 2 + 7) / 10,
    }


def test_a_rollout_counts_as_clipped_without_its_end_of_sequence_token():
    for completions, share in ((["ab", "ba"], 1.0), (["ae", "eb"], 0.0), (["ab", "ab", "ae"], 2 / 3)):
        assert means_over_sums(trajectory_sums(rollouts(completions)))["completions/clipped_ratio"] == share
    # Padding that looks like an EOS was never revealed.
    assert means_over_sums(trajectory_sums(rollouts(["abe"], ["01-"])))["completions/clipped_ratio"] == 1.0


@by_hand("edits")
def test_edits_by_hand():
    t = rollouts(["abe", "bbe"])
    step_BE = torch.tensor([[2, 3, 3], [4, -1, -1]])  # three edits, and one
    none = torch.zeros_like(step_BE)
    editing = SamplerConfig(remasking="low_confidence_dynamic", threshold=0.9, editing_threshold=0.9)
    edited = EditedTrajectory(
        **{f.name: getattr(t, f.name) for f in dataclasses.fields(t)} | {"sampler": editing},
        revealed=t.tokens,
        edit_position=none,
        edit_step=step_BE,
        edit_token=none,
        edit_confidence=none.float(),
        edit_entropy=none.float(),
    )
    assert means_over_sums(trajectory_sums(edited))["edits"] == 2.0
    assert "edits" not in trajectory_sums(t)


@by_hand("turns/mean", "turns/cut")
def test_turns_by_hand(tmp_path: Path):
    """One episode ends in its first turn, one is too long for a second one, and one has two: "y" ends an episode."""
    model = tiny.write_llada(tmp_path / "short", max_sequence_length=10)
    batch, _, _ = scripted(model, ["12", "1234567", "12"], [["y", "n", "n"], ["y"]])
    assert batch.metrics["turns/mean"] == pytest.approx(4 / 3)
    assert batch.metrics["turns/cut"] == pytest.approx(1 / 3)
    # Of a turn, not of an episode: "y" or "n" and an EOS.
    assert [batch.metrics[f"completions/{name}"] for name in ("mean_length", "clipped_ratio")] == [2.0, 0.0]
    assert (batch.metrics["num_tokens"], batch.metrics["steps"], batch.metrics["nfe"]) == (8, 3, 3)
    assert batch.metrics["rewards/Scripted/mean"] == batch.metrics["reward"] == pytest.approx(batch.reward_R.mean())


# Blocks.


@pytest.mark.parametrize(("prompts", "generations", "count"), [(4, 4, 4), (2, 5, 2)])
def test_each_round_of_rollouts_is_dealt_to_blocks_in_an_order_of_its_own(prompts: int, generations: int, count: int):
    """Two places of one round are never in the same block; two places of different rounds are, in one of `count`
    iterations, whichever places and rounds. One order for all rounds would make it always or never."""
    size, iterations = prompts * generations, 100
    args = LFPOConfig(
        "unused", prompts_per_iteration=prompts, num_generations=generations, optimizer_steps_per_iteration=count
    )
    together = torch.zeros(size, size)
    for iteration in range(iterations):
        block_R = torch.zeros(size, dtype=torch.long)
        for number, block in enumerate(optimizer_blocks(args, make_objective({"name": "lfpo"}), iteration)):
            block_R[block] = number
        together += block_R[:, None] == block_R
    round_R = torch.arange(size) // count
    one_round = round_R[:, None] == round_R
    assert together[one_round].sum() == size * iterations  # a rollout with itself
    # Within six standard errors of a share of 100 draws, at most 0.3.
    shares = together[~one_round] / iterations
    assert float((shares - 1 / count).abs().max()) < 6 * math.sqrt((1 / count) * (1 - 1 / count) / iterations)


# What losses measure.


@by_hand(
    "entropy/targets",
    "kl/old",
    "kl/base",
    "p_target/good",
    "p_target/bad",
    "p_target_old/good",
    "p_target_old/bad",
    "negatives/saturated",
)
def test_measures_of_targets_by_hand():
    """Targets a and b of good rollouts, b twice and a of bad ones; all policies predict the same at each.

    Odds of theta 2:1:1, of theta_old 1:97:2, of the base 1:1:2. pi- at beta 1 has the odds p_old^2 / p, so
    1/2 : 97^2 : 4, which is nearly sure of b.
    """
    tables: Any = {CURRENT: Table({"_": "211"}), BASE: Table({"_": "112"}), OLD: OddsTable(1, 97, 2)}
    predictions = Predictions(fully_masked(rollouts(["a", "b", "b", "b", "a"])), tables)
    for policy in (CURRENT, OLD, BASE):
        predictions.hidden(policy)
    r_T = double(1, 0.7, 0.2, 0, 0.4)
    found = means_over_ranks(measure_targets(predictions, r_T, neutral=0.5, beta=1.0))
    assert found == pytest.approx(
        {
            "entropy/targets": 1.5 * log(2),
            "kl/old": 0.5 * log(0.5 / 0.01) + 0.25 * log(0.25 / 0.97) + 0.25 * log(0.25 / 0.02),
            "kl/base": 0.5 * log(2) - 0.25 * log(2),
            "p_target/good": (0.5 + 0.25) / 2,
            "p_target/bad": (0.25 + 0.25 + 0.5) / 3,
            "p_target_old/good": (0.01 + 0.97) / 2,
            "p_target_old/bad": (0.97 + 0.97 + 0.01) / 3,
            "negatives/saturated": 2 / 3,
        },
        rel=1e-5,
    )


class OddsTable(Table):
    """A table of one position with odds of several digits."""

    def __init__(self, *odds: float):
        super().__init__({"_": "111"})
        self.log_odds = double(*odds).log()

    def hidden(self, ids: torch.Tensor, attention: torch.Tensor | None = None) -> torch.Tensor:
        return self.log_odds.expand(*ids.shape, -1)


@by_hand("ratio/mean", "ratio/clipped")
def test_ratios_of_two_passes_by_hand():
    """A clip to [0.8, 1.2] takes 2 out where the advantage is positive, and 0.5 where it is negative."""
    measures = ratio_measures(double(2, 2, 1), double(1, -1, 1), 0.8, 1.2)
    add_measures(measures, ratio_measures(double(0.5, 0.5), double(1, -1), 0.8, 1.2))
    assert means_over_ranks(measures) == pytest.approx({"ratio/mean": 6 / 5, "ratio/clipped": 2 / 5})


@by_hand("router/entropy", "router/max_load")
def test_routers_by_hand(tmp_path: Path):
    """Four experts, two a token: of six tokens four go to the experts 0 and 1, two to 2 and 3."""
    model = load_model(golden("lladamoe", tmp_path / "m"))
    logits_TE = double(4, 2, 1, 1).log().float().repeat(6, 1)
    logits_TE[4:] = logits_TE[4:].flip(-1)
    chosen_TK = torch.tensor([[0, 1]] * 4 + [[3, 2]] * 2)

    def replaced(router: Any, _: Any, output: Any) -> Any:
        return logits_TE, *output[1:-1], chosen_TK

    for router in routers(model.backbone):
        router.register_forward_hook(replaced)
    with watched_routers(model.backbone) as measures:
        model(torch.arange(6)[None])
    # Entropy of (1/2, 1/4, 1/8, 1/8) over ln 4; the busiest expert has 4 tokens, an even share is 6 * 2 / 4.
    assert means_over_ranks(measures) == pytest.approx({"router/entropy": 1.75 / 2, "router/max_load": 4 / 3})


# Optimiser steps.


def test_loss_and_norm_of_a_step_by_hand():
    """A good "a" and a bad "b" under odds 2:1:1 of theta and theta_old, one scale of the logits as the only weight.

    Loss: -(ln 1/2 + ln 1/4) / (2 beta). Its gradient at the logits is pi+ - a and b - pi-, that is (-1/2, 1/4, 1/4) and
    (-1/2, 3/4, -1/4), halved; the logits are (ln 2, 0, 0) times the scale.
    """
    model: Any = Table({"_": "211"})
    objective = make_objective({**LFPO_PAPER, "beta": 0.5})
    views = fully_masked(rollouts(["a", "b"]))
    loss, _ = accumulate_gradients(objective, {CURRENT: model, OLD: model}, views, double(1, 0), update_tokens=100)
    assert loss == pytest.approx(3 * log(2))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    rate = {"learning_rate": 1.0, "lr_scheduler_type": "constant", "warmup_steps": 0}
    args, state = SimpleNamespace(max_grad_norm=0.1, **rate), {"skipped_in_a_row": 2}
    taken = take_step(optimizer, model, args, loss, number=0, total=1, state=state, observer=Observer())
    assert taken == pytest.approx({"loss": 3 * log(2), "grad_norm": log(2) / 2, "learning_rate": 1.0})
    assert state == {"skipped_in_a_row": 0}
    assert model.scale.item() == pytest.approx(1.1, abs=1e-5)  # clipped to 0.1, the norm is that before


@by_hand("loss", "grad_norm", "learning_rate", "skipped_updates")
def test_steps_are_averaged_and_skipped_ones_counted(llada: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Two iterations of two steps, a learning rate that falls to 0 over the four; the fourth update is not finite."""
    steps: list[dict[str, float]] = []
    step, loss = learner.optimizer_step, LFPO.loss

    def recorded(*args: Any) -> Any:
        steps.append(step(*args)[0])
        return steps[-1], {}

    def poisoned(self: LFPO, *args: Any) -> Any:
        value, measures = loss(self, *args)
        return value * (math.nan if len(steps) == 3 else 1.0), measures

    monkeypatch.setattr(learner, "optimizer_step", recorded)
    monkeypatch.setattr(LFPO, "loss", poisoned)
    changes = {"objective": LFPO_PAPER, "learning_rate": 0.01, "lr_scheduler_type": "linear"}
    args = config(tmp_path, max_steps=2, eval_steps=0, **changes)
    LFPOTrainer(str(llada), even_letters, args=args, train_dataset=ROWS).train()
    first, second = metrics(tmp_path / "run")
    assert [first["learning_rate"], second["learning_rate"]] == pytest.approx([0.01 * 7 / 8, 0.01 * 3 / 8])
    for name in ("loss", "grad_norm"):
        assert steps[0][name] != steps[1][name]
        assert first[name] == pytest.approx((steps[0][name] + steps[1][name]) / 2)
    assert [first["skipped_updates"], second["skipped_updates"]] == [0, 1]


@by_hand("flops")
def test_flops_by_hand(llada: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A layer has two norms, four matrices for attention and three of the MLP. A step predicts all masked positions."""
    d, layers = tiny.D, tiny.LAYERS
    weights = layers * (2 * d + 4 * d * d + 3 * d * tiny.MLP)
    seen: list[Views] = []
    accumulate = learner.accumulate_gradients

    def recorded(objective: Any, policies: Any, views: Views, *args: Any, **settings: Any) -> Any:
        seen.append(views)
        return accumulate(objective, policies, views, *args, **settings)

    monkeypatch.setattr(learner, "accumulate_gradients", recorded)
    args = config(tmp_path, max_steps=2, objective=LFPO_PAPER)
    trainer = LFPOTrainer(str(llada), even_letters, args=args, train_dataset=ROWS)
    vocabulary = trainer.model.vocab_size

    def forward(length: int, predicted: int) -> int:
        return 2 * weights * length + 4 * layers * d * length**2 + 2 * vocabulary * d * predicted

    total = 0
    for iteration in range(2):
        seen.clear()
        line = trainer.run_iteration(iteration, Context(trainer.run))
        for record in rollout_lines(tmp_path / "run", iteration + 1):
            length = len(record["prompt_ids"]) + len(record["token_ids"])
            total += sum(forward(length, sum(s >= step for s in record["reveal_step"])) for step in range(4))
        for number, views in enumerate(seen):
            # Forward and backward are three forwards of theta; theta_old is theta in an iteration's first step.
            passes = 3 if number == 0 else 4
            sizes = zip(views.attention_mask.sum(-1).tolist(), views.target.sum(-1).tolist(), strict=True)
            total += sum(passes * forward(length, targets) for length, targets in sizes)
        assert line["flops"] == pytest.approx(total)


# Whole iterations.


def rollout_lines(run: Path, step: int, kind: str = "rollouts") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / kind / f"step-{step}.jsonl").read_text().splitlines()]


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def share_of_vowels(text: str) -> float:
    return sum(letter in "aeiou 13579" for letter in text) / max(1, len(text))


@by_hand("step", "rewards/NAME/mean", "num_tokens", "r")
@by_hand("eval/NAME/reward", "eval/NAME/steps", "eval/NAME/nfe")
def test_two_iterations_from_their_own_records(tmp_path: Path):
    """Rewards are computed again from the completions of the records, with weights 1/2 and 1/4: all are in [0, 1]."""

    def vowels(prompts: Any, completions: list[str], **columns: Any) -> list[float]:
        return [share_of_vowels(text) for text in completions]

    def long(
        prompts: Any, completions: list[str], forwards: list[int], reveal_step: list[list[int]]
    ) -> list[float | None]:
        seen.extend(zip(completions, forwards, reveal_step, strict=True))
        return [1.0 if len(text) > 3 else 0.0 if len(text) > 1 else None for text in completions]

    seen: list[tuple[str, int, list[int]]] = []
    args = config(
        tmp_path,
        max_steps=2,
        eval_steps=1,
        prompts_per_iteration=4,
        sampler={"gen_length": 8, "temperature": 1.5, "block_length": 4, "early_stop": "eos", "cfg_scale": 0.5},
        eval_samplers={"one": {"gen_length": 4, "threshold": 0.2, "temperature": 1.0}},
        reward_weights=[0.5, 0.25],
        objective={"name": "lfpo", "reward_transform": "raw", "timesteps": 2, "num_iterations": 1},
    )
    rows = [{"prompt": text} for text in ("1 + 2 =", "abc", "what is 3?", "x")]
    trainer = LFPOTrainer("embedded", [vowels, long], args=args, train_dataset=rows, eval_dataset=rows)
    trainer.train()
    eos = trainer.model.eos_id
    lines = metrics(tmp_path / "run")
    assert [line["step"] for line in lines] == [0, 1, 2]
    for line in lines[1:]:
        records = rollout_lines(tmp_path / "run", line["step"])
        texts, lengths = [record["completion"] for record in records], [len(record["tokens"]) for record in records]
        revealed = [
            [i for i, step in zip(record["token_ids"], record["reveal_step"], strict=True) if step >= 0]
            for record in records
        ]
        assert lengths == [[*ids, eos].index(eos) + (eos in ids) for ids in revealed]
        told = [(r["completion"], r["nfe"], r["reveal_step"][: len(r["tokens"])]) for r in records]
        assert all(rollout in seen for rollout in told)  # what the second function asked for
        first = [share_of_vowels(text) for text in texts]
        second = [None if len(text) < 2 else float(len(text) > 3) for text in texts]
        reward = [0.5 * a + (0.0 if b is None else 0.25 * b) for a, b in zip(first, second, strict=True)]
        groups = [reward[i : i + 4] for i in range(0, 16, 4)]
        spread = [math.sqrt(mean([(x - mean(group)) ** 2 for x in group])) for group in groups]
        endings = Counter(text.rstrip().split("\n")[-1].strip() for text in texts)
        expected = {
            "reward": mean(reward),
            "reward_std": mean(spread),
            "frac_reward_zero_std": mean([float(max(group) - min(group) < 1e-9) for group in groups]),
            "frac_signal": mean([float(abs(x - 0.5) > 1e-9) for x in reward]),
            "r": mean(reward),  # reward_transform "raw"
            "rewards/vowels/mean": mean(first),
            "rewards/long/mean": mean([x for x in second if x is not None]),
            "completions/mean_length": mean(lengths),
            "completions/clipped_ratio": mean([float(eos not in ids) for ids in revealed]),
            "completions/frac_same_ending": max(endings.values()) / 16,
            "num_tokens": sum(lengths),
            "steps": mean([record["scheduled_steps"] for record in records]),
            "nfe": mean([record["nfe"] for record in records]),
        }
        assert {name: line[name] for name in expected} == pytest.approx(expected)
        assert line["nfe"] > line["steps"]  # with guidance two a state
        evaluated = rollout_lines(tmp_path / "run", line["step"], "eval")
        texts = [record["completion"] for record in evaluated]
        reward = [0.5 * share_of_vowels(x) + (0.25 if len(x) > 3 else 0.0) for x in texts]
        assert line["eval/one/reward"] == pytest.approx(mean(reward))
        assert line["eval/one/steps"] == mean([record["scheduled_steps"] for record in evaluated])
        assert line["eval/one/nfe"] == mean([record["nfe"] for record in evaluated])


@by_hand("eval/NAME/accuracy", "eval/NAME/low", "eval/NAME/high")
def test_accuracy_and_its_interval_from_the_verdicts(tmp_path: Path):
    """Wilson's interval of k right ones among 24, whose ends p solve (p - k / 24)^2 = 1.96^2 p (1 - p) / 24."""
    args = config(tmp_path, task="choice", eval_size=24, eval_samplers={"hot": {"temperature": 1.0}}, max_steps=1)
    trainer = LFPOTrainer("embedded", args=args)
    line = trainer.evaluate(0, Context(trainer.run))
    correct = [record["correct"] for record in rollout_lines(tmp_path / "run", 0, "eval")]
    share = mean([float(x) for x in correct])
    assert len(correct) == 24 and 0 < share < 1 and line["eval/hot/accuracy"] == share
    for end in (line["eval/hot/low"], line["eval/hot/high"]):
        assert (end - share) ** 2 == pytest.approx(1.96**2 * end * (1 - end) / 24)
    assert line["eval/hot/low"] < share < line["eval/hot/high"]


@by_hand("rewards/NAME/failed")
def test_a_failed_function_is_counted_for_its_iteration(llada: Path, tmp_path: Path):
    broken = False

    def sometimes(prompts: Any, completions: list[str], **columns: Any) -> list[float]:
        if broken:
            raise ConnectionError("nobody there")
        return [float(len(text)) for text in completions]

    args = config(tmp_path, objective=LFPO_PAPER)
    trainer = LFPOTrainer(str(llada), [even_letters, sometimes], args=args, train_dataset=ROWS)
    assert "rewards/sometimes/failed" not in trainer.run_iteration(0)
    broken = True
    line = trainer.run_iteration(1)
    assert line["rewards/sometimes/failed"] == 1.0 and "rewards/even_letters/failed" not in line
    assert "rewards/sometimes/mean" not in line
    assert line["reward"] == pytest.approx(line["rewards/even_letters/mean"])


# Times, by a clock that only the test moves.


class Clock:
    """Seconds that pass when a wrapped function is called."""

    def __init__(self, patch: pytest.MonkeyPatch):
        self.now = 1000.0
        patch.setattr(time, "perf_counter", lambda: self.now)

    def takes(self, seconds: float, function: Callable[..., Any]) -> Callable[..., Any]:
        def slow(*args: Any, **settings: Any) -> Any:
            self.now += seconds
            return function(*args, **settings)

        slow.__name__ = function.__name__
        return slow


@by_hand("time/rollout", "time/reward", "time/update", "time/eval", "time/total")
def test_times_by_a_clock(llada: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Sampling takes 3 seconds, a batch of rewards 5, and each of two optimiser steps 7."""
    clock = Clock(monkeypatch)
    reward = clock.takes(5, lambda prompts, completions, **columns: [float(len(text)) for text in completions])
    args = config(tmp_path, max_steps=2, eval_steps=1, objective=LFPO_PAPER)
    trainer = LFPOTrainer(str(llada), reward, args=args, train_dataset=ROWS, eval_dataset=ROWS)
    monkeypatch.setattr(trainer.engine, "sample", clock.takes(3, trainer.engine.sample))
    monkeypatch.setattr(learner, "optimizer_step", clock.takes(7, learner.optimizer_step))
    trainer.train()
    lines = metrics(tmp_path / "run")
    assert lines[0]["time/eval"] == 8
    for number, line in enumerate(lines[1:], start=1):
        spent = {name: line[f"time/{name}"] for name in ("rollout", "reward", "update", "eval", "total")}
        assert spent == {"rollout": 3, "reward": 5, "update": 14, "eval": 8, "total": 22 * number}


@by_hand("engine/staleness", "engine/queue", "time/waiting")
def test_rollouts_sampled_ahead_by_hand(llada: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Two batches ahead in a run of four: batches 0 to 2 are sampled by version 0, batch 3 by version 1."""
    clock = Clock(monkeypatch)
    args = config(tmp_path, max_steps=4, objective=LFPO_PAPER, engine={"max_staleness": 2})
    trainer = LFPOTrainer(str(llada), even_letters, args=args, train_dataset=ROWS)
    engine: Any = trainer.engine
    monkeypatch.setattr(engine, "submit", clock.takes(3, engine.submit))
    monkeypatch.setattr(engine, "result", clock.takes(2, engine.result))
    lines = [trainer.run_iteration(i) for i in range(4)]
    assert [line["engine/staleness"] for line in lines] == [0, 1, 2, 2]
    assert [line["engine/queue"] for line in lines] == [2, 2, 1, 0]  # behind the batch that is learned from
    assert [line["time/waiting"] for line in lines] == [2] * 4  # without what it took to submit
    assert [line["time/rollout"] for line in lines] == [3 * 3 + 2, 3 + 2, 2, 2]


@by_hand("predictions/scored", "predictions/reward", "time/reward_predictions")
def test_scored_predictions_by_hand(llada: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The reward is the share of even tokens; predictions are scored once for each distinct one of a rollout."""

    def even(prompts: Any, completions: Any, completion_ids: list[list[int]], **columns: Any) -> list[float]:
        return [share_of_even(ids) for ids in completion_ids]

    def share_of_even(ids: list[int]) -> float:
        return mean([float(i % 2 == 0) for i in ids])

    clock = Clock(monkeypatch)
    args = config(tmp_path, objective={"name": "mdpo", "rewarded_steps": 3})
    trainer = LFPOTrainer(str(llada), clock.takes(5, even), args=args, train_dataset=ROWS)
    batch = trainer.algorithm.sample_and_score(0, Observer())
    t = batch.trajectory
    assert isinstance(t, KeptTrajectory)
    of_steps = t.predicted_tokens.tolist()  # 8 rollouts, 3 steps
    cut = [[ids[: ids.index(t.eos_id) + 1] if t.eos_id in ids else ids for ids in rollout] for rollout in of_steps]
    assert batch.metrics["predictions/scored"] == sum(len(set(map(tuple, rollout))) for rollout in of_steps)
    assert batch.metrics["predictions/reward"] == pytest.approx(mean([share_of_even(x) for r in cut for x in r]))
    assert batch.metrics["time/reward_predictions"] == batch.metrics["time/reward"] == 5
