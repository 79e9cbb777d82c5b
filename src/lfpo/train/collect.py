"""Phase 1 of an iteration: sample rollouts from theta_old and score them. Each rank keeps its own."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch

from lfpo.base import distributed
from lfpo.base.progress import Progress
from lfpo.base.rng import key
from lfpo.prompts.encoding import decode_completions, encode_rows
from lfpo.prompts.tasks import Row
from lfpo.rewards import Rewards
from lfpo.rewards.scoring import measured
from lfpo.rollout.edits import EditedTrajectory
from lfpo.rollout.engine import Request
from lfpo.rollout.episodes import Turn, play
from lfpo.rollout.kept import score_predictions
from lfpo.rollout.trajectory import Trajectory

if TYPE_CHECKING:
    from lfpo.train.rl import LFPOTrainer

AGREE = 1e-9  # rewards of a group with a smaller standard deviation are equal
LEAST_PROMPTS = 4  # with fewer prompts in an iteration, completions may end alike because the prompts are alike


@dataclass(frozen=True)
class Batch:
    """This rank's B rollouts of one iteration, and what it knows of all R rollouts on all ranks.

    A rollout has a row, or with an environment one for each of its turns; B counts rows.

    turns [B]: what a row is. trajectory [B rows]: on the policy's device. rewards: of this rank's rollouts, on the CPU.
    first: the number of this rank's first rollout among all R.
    reward_R, group_R [R]: reward (float64) and prompt number (int64) of every rollout on every rank, on the CPU. A NaN
        is neutral: nothing is learned from that rollout (see lfpo.train.signals).
    predicted_RM: float64 [R, M], rewards of the predictions kept at M steps, of all ranks; None if none were.
    failed: reward function -> why it failed, on any rank. metrics: of all R rollouts, under TRL's names.
    version: of the weights that sampled them: the number of iterations that these had been trained for.
    """

    turns: list[Turn]
    trajectory: Trajectory
    rewards: Rewards
    first: int
    reward_R: torch.Tensor
    predicted_RM: torch.Tensor | None
    group_R: torch.Tensor
    failed: dict[str, str]
    metrics: dict[str, float]
    version: int

    @property
    def rollout_B(self) -> torch.Tensor:
        """The number of each row's rollout among all R, int64 [B]."""
        return self.first + torch.tensor([turn.rollout for turn in self.turns])

    def mine(self, block: torch.Tensor) -> torch.Tensor:
        """Which of this rank's rows are of the rollouts numbered `block`; int64, 0 .. B - 1, ascending."""
        return torch.isin(self.rollout_B, block).nonzero().flatten()

    def of_rank(self, value_R: torch.Tensor) -> torch.Tensor:
        """The values of the rollouts of this rank's rows [B], on the trajectory's device."""
        return value_R[self.rollout_B].to(self.trajectory.tokens.device)

    @property
    def unscored(self) -> bool:
        """Whether no rollout of any rank has a reward: there is nothing to learn from. The same on all ranks."""
        return bool(self.reward_R.isnan().all())


def collect(trainer: LFPOTrainer, iteration: int, progress: Progress) -> Batch:
    """Sample a group of rollouts for each of the iteration's prompts from theta_old, and score them. A collective.

    They come from the trainer's queue, where there is one, and are then of earlier weights; an environment plays them
    in turns, and gives their rewards. Each rank samples and scores those of its share of the prompts. Rewards and the
    sums behind the metrics are exchanged; nothing else is. progress: told what is done.
    """
    args, source, policy, tokenizer = trainer.args, trainer.source, trainer.reference, trainer.tokenizer
    engine, queue, environment = trainer.engine, trainer.queue, trainer.environment
    n, n_prompts, mine = args.num_generations, args.prompts_per_iteration, distributed.share(args.prompts_per_iteration)

    def asked(iteration: int) -> tuple[list[Row], Request]:
        """The data row of each of this rank's rollouts, and what is asked of the engine."""
        skipped = trainer.state["rows_skipped"]  # a callback may have ended epochs early
        rows = [source.train_row(iteration * n_prompts + skipped + i) for i in mine]
        seeds = [key(args.seed, iteration, i * n + j, "rollout") for i in mine for j in range(n)]
        encoded = encode_rows(rows, tokenizer, policy, trainer.sampler.gen_length or 0)
        prompts = [ids for ids in encoded for _ in range(n)]
        return [row for row in rows for _ in range(n)], Request(prompts, seeds, trainer.sampler, n, trainer.keep_steps)

    def told(index: Sequence[int], t: Trajectory) -> None:
        progress.advance(len(index), int(t.lengths.sum()))

    times, started = dict[str, float](), time.perf_counter()
    rows, request = asked(iteration)
    progress.begin("sampling", len(rows), "rollouts")
    if environment is not None:
        progress.begin("sampling", environment.max_turns * len(rows), "turns")
        turns, played, rewards, sums = play(environment, engine, policy, tokenizer, request, rows, told)
        assert played is not None  # each rank has prompts
        trajectory, sampled = played, time.perf_counter()
    else:
        if queue is None:
            trajectory = engine.sample(request, told)
        else:
            trajectory, times["time/waiting"] = queue.take(
                iteration, lambda i: request if i == iteration else asked(i)[1], told, progress
            )
        sampled = time.perf_counter()
        progress.begin("verdicts", len(rows), "completions")
        texts = decode_completions(tokenizer, trajectory.tokens, policy.eos_id)
        rewards = distributed.alone(partial(source.score, rows, texts, trajectory.completion_ids()))
        sums = {}
        progress.advance(len(rows))
        turns = [Turn(b, row, request.seeds[b], texts[b]) for b, row in enumerate(rows)]
    times |= {"time/rollout": sampled - started, "time/reward": time.perf_counter() - sampled}

    reward_R = distributed.all_gather_tensor(rewards.reward_B)
    group_R = torch.arange(n_prompts).repeat_interleave(n)
    metrics, predicted_RM = group_metrics(reward_R, group_R), None
    if trajectory.predicted_tokens is not None:
        started = time.perf_counter()
        predicted_BM, scored = distributed.alone(
            partial(score_predictions, trajectory, rows, tokenizer, source.score, rewards.failed)
        )
        times["time/reward_predictions"] = time.perf_counter() - started
        predicted_RM = distributed.all_gather_tensor(predicted_BM)
        metrics["predictions/scored"] = distributed.sum_number(float(scored))
        metrics["predictions/reward"] = float(predicted_RM.nanmean())
    version = iteration
    if queue is not None:
        version = queue.version(iteration)
        metrics |= {"engine/staleness": float(iteration - version), "engine/queue": float(len(queue) - 1)}
    metrics |= distributed.means_over_ranks(reward_sums(rewards) | trajectory_sums(trajectory) | sums)
    metrics["num_tokens"] = distributed.sum_number(float(trajectory.lengths.sum()))
    if n_prompts >= LEAST_PROMPTS:
        metrics["completions/frac_same_ending"] = share_of_commonest_ending([turn.text for turn in turns])
    ranks = distributed.gather((rewards.failed, times))
    failed = {name: why for part, _ in ranks for name, why in part.items()}
    metrics |= {f"rewards/{name}/failed": sum(name in part for part, _ in ranks) / len(ranks) for name in failed}
    metrics |= {name: max(part[name] for _, part in ranks) for name in times}  # the slowest rank's
    metrics |= measured(source.reward_functions) | engine.metrics()
    first = mine[0] * n
    return Batch(turns, trajectory, rewards, first, reward_R, predicted_RM, group_R, failed, metrics, version)


def group_metrics(reward_R: torch.Tensor, group_R: torch.Tensor) -> dict[str, float]:
    """Mean reward, mean standard deviation within a prompt's group, and the share of groups without any. Over what has
    a reward; NaN where nothing has."""
    # In units of the largest reward, so that no square or sum leaves the range of float64.
    unit = float(reward_R.abs().nan_to_num(0.0).max()) or 1.0
    groups = (reward_R / unit).view(int(group_R.max()) + 1, -1)
    mean_G = groups.nanmean(dim=1, keepdim=True)
    std_G = (groups - mean_G).square().nanmean(dim=1).sqrt()
    std_G = std_G[~std_G.isnan()] * unit  # groups with a reward
    return {
        "reward": float((reward_R / unit).nanmean()) * unit,
        "reward_std": float((std_G / unit).mean()) * unit,
        "frac_reward_zero_std": float((std_G < AGREE).double().mean()),
    }


def share_of_commonest_ending(texts: Sequence[str]) -> float:
    """The share of all ranks' completions that end in the most frequent last line. A collective.

    texts: this rank's completions. Blank lines do not count; an empty completion has the last line "".
    """
    endings = Counter(text.rstrip().rpartition("\n")[2].strip() for text in texts)
    # Endings travel as hashes: a line may be long, and only equality matters.
    counts = sum(distributed.gather(Counter({key(ending): n for ending, n in endings.items()})), Counter[int]())
    return max(counts.values()) / counts.total()


def reward_sums(rewards: Rewards) -> dict[str, tuple[float, int]]:
    """Metric -> (sum, count) of what each reward function gave."""
    given = {name: [v for v in values if v is not None] for name, values in rewards.parts.items()}
    return {f"rewards/{name}/mean": (sum(values), len(values)) for name, values in given.items()}


def trajectory_sums(t: Trajectory) -> dict[str, tuple[float, int]]:
    """Metric -> (sum, count) over a trajectory's rows; the entropy over their tokens up to the first EOS."""
    lengths, has_eos = t.lengths, t.has_eos
    per_row = {
        "completions/mean_length": lengths,
        "completions/clipped_ratio": ~has_eos,
        "steps": t.scheduled_steps,
        "nfe": t.nfe,
    }
    if isinstance(t, EditedTrajectory):
        per_row["edits"] = (t.edit_step >= 0).sum(-1)
    sums = {name: (float(value.double().sum()), len(t)) for name, value in per_row.items()}
    entropy = t.entropy.double().masked_fill(~t.counted, 0.0).sum()
    return sums | {"entropy/rollout": (float(entropy), int(lengths.sum()))}
