"""Phase 1 of an iteration: sample rollouts from theta_old and score them. Each rank keeps its own."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from lfpo.base import distributed
from lfpo.base.progress import Progress
from lfpo.base.rng import key
from lfpo.models import MaskedDiffusionLM
from lfpo.prompts.encoding import decode_completions, encode_rows
from lfpo.prompts.sources import PromptSource
from lfpo.prompts.tasks import Row
from lfpo.rewards import Rewards
from lfpo.rewards.scoring import measured
from lfpo.rollout.engine import Engine, Request
from lfpo.rollout.queue import RolloutQueue
from lfpo.rollout.sampler import SamplerConfig
from lfpo.rollout.trajectory import Trajectory, join

AGREE = 1e-9  # rewards of a group with a smaller standard deviation are equal


@dataclass(frozen=True)
class Batch:
    """This rank's b rollouts of one iteration, and what it knows of all B rollouts on all ranks.

    rows, completions, seeds [b]: data row, text and key of later random choices of each rollout.
    trajectory [b rows]: on the policy's device. rewards [b]: on the CPU.
    first: the number of this rank's first rollout among all B; its own are first .. first + b - 1.
    reward_B, group_B [B]: reward (float64) and prompt number (int64) of every rollout on every rank, on the CPU.
    predicted_reward_BM: float64 [B, M], rewards of the predictions kept at M steps, of all ranks; None if none were.
    failed: reward function -> why it failed, on any rank. metrics: of all B rollouts, under TRL's names.
    version: of the weights that sampled them: the number of iterations that these had been trained for.
    replaced: this rank's rollouts of groups that were replaced (see `collect`'s refill); their FLOPs count.
    """

    rows: list[Row]
    trajectory: Trajectory
    completions: list[str]
    rewards: Rewards
    seeds: list[int]
    first: int
    reward_B: torch.Tensor
    group_B: torch.Tensor
    failed: dict[str, str]
    metrics: dict[str, float]
    version: int
    predicted_reward_BM: torch.Tensor | None = None
    replaced: tuple[Trajectory, ...] = ()

    def mine(self, block: torch.Tensor) -> torch.Tensor:
        """Which of this rank's rollouts are among those numbered `block`, in its order; int64, 0 .. b - 1."""
        return block[(block >= self.first) & (block < self.first + len(self.rows))] - self.first

    def of_rank(self, value_B: torch.Tensor) -> torch.Tensor:
        """The values of this rank's rollouts [b], on the trajectory's device."""
        return value_B[self.first : self.first + len(self.rows)].to(self.trajectory.tokens.device)

    @property
    def unscored(self) -> bool:
        """Whether every reward function failed, on some rank each: there is nothing to learn from."""
        return bool(self.rewards.parts) and self.failed.keys() == self.rewards.parts.keys()


def collect(
    source: PromptSource,
    engine: Engine,
    policy: MaskedDiffusionLM,
    tokenizer: Any,
    sampler: SamplerConfig,
    *,
    iteration: int,
    n_prompts: int,
    n_generations: int,
    seed: int,
    reward_weights: Sequence[float],
    reward_timeout: float = 0.0,
    keep_steps: Sequence[int] = (),
    tree: Sequence[int] = (),
    refill: int = 0,
    queue: RolloutQueue | None = None,
    progress: Progress | None = None,
) -> Batch:
    """Sample `n_generations` rollouts for each of the iteration's prompts with an engine, and score them.

    policy: whose weights the engine samples with; it says what a prompt may be.
    keep_steps: scheduled steps whose whole predictions are kept, and scored too. tree: how a prompt's rollouts branch
    (none: they do not). progress: told what is done.
    refill: rounds in which each group whose rewards are all equal is replaced by the group of a fresh prompt; those
    that agree after the last round stay. Groups that are kept come first, then those of each round.
    queue: takes the iteration's rollouts from there, after requests of it and of coming iterations were submitted; not
    with refill. Without it the engine samples them now.
    Each rank samples and scores those of its share of the prompts. Rewards and the sums behind the metrics are
    exchanged; nothing else is.
    """
    phase = _Phase(
        source,
        engine,
        policy,
        tokenizer,
        Request([], [], sampler, n_generations, keep_steps, tree),
        iteration,
        n_prompts,
        refill,
        seed,
        functools.partial(source.score, weights=reward_weights, timeout=reward_timeout),
        progress or Progress(),
        queue,
    )
    mine = distributed.share(n_prompts)
    own, replaced, rewards_of_all = _rounds(phase, mine)

    predicted_BM = None
    if own.trajectory.predicted_tokens is not None:
        started = time.perf_counter()
        of_predictions, which_bM = _score_predictions(own.trajectory, own.rows, tokenizer, phase.score)
        phase.times["time/reward_predictions"] = time.perf_counter() - started
        predicted_BM = distributed.all_gather_tensor(of_predictions.reward_b[which_bM])
        own.rewards.failed.update(of_predictions.failed)

    reward_B = distributed.all_gather_tensor(own.rewards.reward_b)
    group_B = torch.arange(n_prompts).repeat_interleave(n_generations)
    metrics = group_metrics(reward_B, group_B)
    if predicted_BM is not None:
        metrics["predictions/scored"] = distributed.sum_number(float(len(of_predictions.reward_b)))
        metrics["predictions/reward"] = float(predicted_BM.mean())
    if refill:  # the reward of the policy, not of the groups that were chosen
        everything = distributed.all_gather_tensor(torch.cat(rewards_of_all))
        metrics |= {"reward": float(everything.mean()), "refilled": (len(everything) - len(reward_B)) / n_generations}
    version = engine.version if queue is None else queue.version(iteration)
    if queue is not None:
        metrics |= {"engine/staleness": float(iteration - version), "engine/queue": float(len(queue) - 1)}
    failed, metrics = _over_ranks(own.rewards, own.trajectory, phase.times, metrics)
    metrics |= measured(source.reward_functions)
    return Batch(
        own.rows,
        own.trajectory,
        own.texts,
        own.rewards,
        own.seeds,
        mine[0] * n_generations,
        reward_B,
        group_B,
        failed,
        metrics | engine.metrics(),
        version,
        predicted_BM,
        tuple(replaced),
    )


@dataclass(frozen=True)
class _Phase:
    """What the rounds of one iteration share. request: without rows. score: of (data rows, texts, token ids). times:
    seconds so far, of all rounds."""

    source: PromptSource
    engine: Engine
    policy: MaskedDiffusionLM
    tokenizer: Any
    request: Request
    iteration: int
    n_prompts: int
    refill: int
    seed: int
    score: Callable[..., Rewards]
    progress: Progress
    queue: RolloutQueue | None
    times: dict[str, float] = field(default_factory=lambda: {"time/rollout": 0.0, "time/reward": 0.0})


def _rounds(phase: _Phase, mine: Sequence[int]) -> tuple[_Scored, list[Trajectory], list[torch.Tensor]]:
    """Scored rollouts of this rank's prompts `mine`; the rollouts that were replaced; the rewards of both, by round.

    A collective: a rank that has nothing left to sample takes part until none has.
    """
    kept: list[_Scored] = []
    replaced: list[Trajectory] = []
    rewards: list[torch.Tensor] = []
    places = list(mine)
    for number in range(phase.refill + 1):
        if number and not distributed.sum_number(float(len(places))):
            break
        if not places:
            phase.engine.idle()
            continue
        found = _one_round(phase, places, number)
        rewards.append(found.rewards.reward_b)
        agree = found.rewards.reward_b.view(-1, phase.request.generations).std(dim=1, correction=0) < AGREE
        if number == phase.refill or found.rewards.failed:
            agree[:] = False
        if not agree.any():
            kept.append(found)
        else:
            again_b = agree.repeat_interleave(phase.request.generations)
            kept += [found.select(~again_b)] if not agree.all() else []
            replaced.append(found.trajectory.rows(again_b.to(found.trajectory.tokens.device)))
        places = [i for i, same in zip(places, agree.tolist(), strict=True) if same]
    return _joined(kept, phase.policy.pad_id), replaced, rewards


def _one_round(phase: _Phase, places: Sequence[int], number: int) -> _Scored:
    """Sample and score a group of rollouts for each of some prompts.

    places: numbers of the prompts in the iteration. number: of the round.
    """
    progress = phase.progress
    rows, request = _request(phase, places, number)
    started = time.perf_counter()
    trajectory = _sampled(phase, request, places)
    sampled = time.perf_counter()
    texts = decode_completions(phase.tokenizer, trajectory.tokens, phase.policy.eos_id)
    progress.begin("verdicts", len(rows), "completions")
    rewards = phase.score(rows, texts, trajectory.completion_ids())
    progress.advance(len(rows))
    phase.times["time/rollout"] += sampled - started
    phase.times["time/reward"] += time.perf_counter() - sampled
    return _Scored(rows, trajectory, texts, rewards, list(request.seeds))


def _request(phase: _Phase, places: Sequence[int], number: int) -> tuple[list[Row], Request]:
    """The data row of each rollout of a round, and what is asked of the engine; the arguments are those of
    `_one_round`."""
    n, stream = phase.request.generations, (phase.iteration * (phase.refill + 1) + number) * phase.n_prompts
    prompt_rows = [phase.source.train_row(stream + i) for i in places]
    again = (f"refill {number}",) if number else ()
    seeds = [key(phase.seed, phase.iteration, *again, i * n + j, "rollout") for i in places for j in range(n)]
    encoded = encode_rows(prompt_rows, phase.tokenizer, phase.policy, phase.request.sampler.gen_length or 0)
    request = dataclasses.replace(phase.request, prompts=[ids for ids in encoded for _ in range(n)], seeds=seeds)
    return [row for row in prompt_rows for _ in range(n)], request


def _sampled(phase: _Phase, request: Request, places: Sequence[int]) -> Trajectory:
    """The rollouts of a request: sampled now, or out of the queue, which then has the coming iterations' requests."""
    progress, queue, size = phase.progress, phase.queue, len(request.prompts)

    def told(index: Sequence[int], t: Trajectory) -> None:
        progress.advance(len(index), int(t.lengths.sum()))

    if queue is None:
        progress.begin("sampling", size, "rollouts")
        return phase.engine.sample(request, told)
    for coming in queue.missing(phase.iteration):
        progress.begin("sampling", size, "rollouts")
        _, its = _request(dataclasses.replace(phase, iteration=coming), places, 0)
        queue.submit(coming, its, told)
    progress.begin("waiting for rollouts", size, "rollouts")
    started = time.perf_counter()
    trajectory = queue.result(phase.iteration, request, told)
    phase.times["time/waiting"] = time.perf_counter() - started
    return trajectory


@dataclass(frozen=True)
class _Scored:
    """b rollouts with their data rows, texts, rewards and keys of later random choices."""

    rows: list[Row]
    trajectory: Trajectory
    texts: list[str]
    rewards: Rewards
    seeds: list[int]

    def select(self, which_b: torch.Tensor) -> _Scored:
        """Those rollouts of which `which_b`, bool [b], is true."""

        def picked(values: list[Any]) -> list[Any]:
            return [value for value, chosen in zip(values, which_b.tolist(), strict=True) if chosen]

        parts = {name: picked(values) for name, values in self.rewards.parts.items()}
        rewards = Rewards(self.rewards.reward_b[which_b], parts, self.rewards.failed)
        trajectory = self.trajectory.rows(which_b.to(self.trajectory.tokens.device))
        return _Scored(picked(self.rows), trajectory, picked(self.texts), rewards, picked(self.seeds))


def _joined(parts: Sequence[_Scored], pad_id: int) -> _Scored:
    """Rollouts of several rounds as one, in order."""
    if len(parts) == 1:
        return parts[0]
    rewards = Rewards(
        torch.cat([p.rewards.reward_b for p in parts]),
        {name: [v for p in parts for v in p.rewards.parts[name]] for name in parts[0].rewards.parts},
        {name: why for p in parts for name, why in p.rewards.failed.items()},
    )
    return _Scored(
        [row for p in parts for row in p.rows],
        join([p.trajectory for p in parts], pad_id),
        [text for p in parts for text in p.texts],
        rewards,
        [seed for p in parts for seed in p.seeds],
    )


def _score_predictions(
    t: Trajectory, rows: Sequence[Row], tokenizer: Any, scored: Callable[..., Rewards]
) -> tuple[Rewards, torch.Tensor]:
    """Rewards of the distinct kept predictions of each row, and which of them each of its M steps has, int64 [b, M]."""
    assert t.predicted_tokens is not None
    found: dict[tuple[int, ...], int] = {}
    which = [
        [found.setdefault((b, *ids), len(found)) for ids in steps]
        for b, steps in enumerate(t.predicted_tokens.tolist())
    ]
    own = [rows[b] for b, *_ in found]
    tokens = [list(ids) for _, *ids in found]
    cut = [ids[: ids.index(t.eos_id) + 1] if t.eos_id in ids else ids for ids in tokens]
    return scored(own, decode_completions(tokenizer, torch.tensor(tokens), t.eos_id), cut), torch.tensor(which)


def group_metrics(reward_B: torch.Tensor, group_B: torch.Tensor) -> dict[str, float]:
    """Mean reward, mean standard deviation within a prompt's group, and the share of groups without any."""
    std_G = reward_B.view(int(group_B.max()) + 1, -1).std(dim=1, correction=0)
    return {
        "reward": float(reward_B.mean()),
        "reward_std": float(std_G.mean()),
        "frac_reward_zero_std": float((std_G < AGREE).double().mean()),
    }


def _over_ranks(
    rewards: Rewards, t: Trajectory, times: dict[str, float], metrics: dict[str, float]
) -> tuple[dict[str, str], dict[str, float]]:
    """Reward functions that failed on any rank, and `metrics` with the means over all ranks' rollouts added. Times are
    the slowest rank's."""
    sums = {f"rewards/{name}/mean": _sum_and_count(values) for name, values in rewards.parts.items()}
    sums |= trajectory_sums(t)
    ranks = distributed.gather((rewards.failed, times, sums))
    failed = {name: why for part, _, _ in ranks for name, why in part.items()}
    for name in sums:
        total, count = (sum(part[name][i] for _, _, part in ranks) for i in (0, 1))
        if count:
            metrics[name] = total / count
    metrics |= {f"rewards/{name}/failed": 1.0 for name in failed}
    metrics["num_tokens"] = sum(part["completions/mean_length"][0] for _, _, part in ranks)
    return failed, metrics | {name: max(part[name] for _, part, _ in ranks) for name in times}


def _sum_and_count(values: Sequence[float | None]) -> tuple[float, int]:
    given = [v for v in values if v is not None]
    return sum(given), len(given)


def trajectory_sums(t: Trajectory) -> dict[str, tuple[float, int]]:
    """Metric -> (sum, count) over a trajectory's rows; the entropy over their tokens up to the first EOS."""
    lengths, has_eos = t.lengths, t.has_eos
    per_row = {
        "completions/mean_length": lengths,
        "completions/clipped_ratio": ~has_eos,
        "steps": t.scheduled_steps,
        "nfe": t.nfe,
    }
    if t.edit_step is not None:
        per_row["edits"] = (t.edit_step >= 0).sum(-1)
    sums = {name: (float(value.double().sum()), len(t)) for name, value in per_row.items()}
    entropy = t.entropy.double().masked_fill(~t.counted, 0.0).sum()
    return sums | {"entropy/rollout": (float(entropy), int(lengths.sum()))}
