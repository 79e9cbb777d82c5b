"""Phase 1 of an iteration: sample rollouts from theta_old and score them. Each rank samples and scores its own.

A source of rollouts gives them as Rolled. `Sampled` is the plain one; a queue (lfpo.train.queue), an environment
(lfpo.rollout.episodes) and rewards of kept predictions (lfpo.rollout.kept) wrap it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from lfpo.config.sampler import SamplerConfig
from lfpo.config.train import LFPOConfig
from lfpo.core import collectives
from lfpo.core.batch import Rolled, Turn
from lfpo.core.denoise import Finished
from lfpo.core.encoding import decode_completions, encode_rows
from lfpo.core.engine import Engine, Request
from lfpo.core.model import MaskedDiffusionLM
from lfpo.core.observer import Observer
from lfpo.core.rng import key
from lfpo.core.scoring import Rewards, Row
from lfpo.core.trajectory import Trajectory


class RolloutSource(Protocol):
    def roll(self, iteration: int, observer: Observer) -> Rolled:
        """This rank's scored rollouts of an iteration, a group for each of its prompts. A collective."""
        ...


class Prompts(Protocol):
    """Training prompts and the functions that score their completions (lfpo.prompts.sources.PromptSource)."""

    def train_row(self, index: int, /) -> Row:
        """The row at a position of the endless training stream; the same after a resume."""
        ...

    def score(self, rows: Sequence[Row], texts: Sequence[str], completion_ids: list[list[int]]) -> Rewards:
        """The rewards of b completions of b rows."""
        ...

    def metrics(self) -> dict[str, float]:
        """What the reward functions measured since the last call. A collective."""
        ...


@dataclass(frozen=True)
class Sampled:
    """Rollouts that are sampled when they are asked for.

    policy: theta_old. engine: samples from it. sampler: of the rollouts, with its lengths filled in. keep_steps: steps
    at which the predictions of all tokens are kept. state: of the run; its rows_skipped says how many rows of the data
    set are left out, because a callback ended epochs early.
    """

    args: LFPOConfig
    prompts: Prompts
    policy: MaskedDiffusionLM
    tokenizer: Any
    engine: Engine
    sampler: SamplerConfig
    keep_steps: Sequence[int]
    state: Mapping[str, Any]

    def request_of(self, iteration: int) -> tuple[list[Row], Request]:
        """The data row of each of this rank's rollouts, and the engine's request for them."""
        n, n_prompts, skipped = self.args.num_generations, self.args.prompts_per_iteration, self.state["rows_skipped"]
        numbers = collectives.share(n_prompts)
        rows = [self.prompts.train_row(iteration * n_prompts + skipped + i) for i in numbers]
        # Keyed by the rollout's number among those of all ranks: the same at every number of ranks.
        seeds = [key(self.args.seed, iteration, i * n + j, "rollout") for i in numbers for j in range(n)]
        encoded = encode_rows(rows, self.tokenizer, self.policy, self.sampler.gen_length or 0)
        prompts = [ids for ids in encoded for _ in range(n)]
        return [row for row in rows for _ in range(n)], Request(prompts, seeds, self.sampler, n, self.keep_steps)

    def roll(self, iteration: int, observer: Observer) -> Rolled:
        self.engine.update(iteration, self.policy)
        self.engine.forwarded = observer.forward
        started = time.perf_counter()
        rows, request = self.request_of(iteration)
        observer.begin("sampling", len(rows), "rollouts")
        trajectory = self.engine.sample(request, count_finished(observer))
        return self.scored(rows, request, trajectory, iteration, started, observer)

    def scored(
        self,
        rows: Sequence[Row],
        request: Request,
        trajectory: Trajectory,
        version: int,
        started: float,
        observer: Observer,
    ) -> Rolled:
        """The rollouts of a request with their rewards. version: of the weights that sampled them. started: the time at
        which sampling began. A collective."""
        sampled = time.perf_counter()
        observer.begin("verdicts", len(rows), "completions")
        texts = decode_completions(self.tokenizer, trajectory.tokens, self.policy.eos_id)
        rewards = collectives.alone(partial(self.prompts.score, rows, texts, trajectory.completion_ids()))
        observer.advance(len(rows))
        turns = [Turn(b, row, request.seeds[b], texts[b]) for b, row in enumerate(rows)]
        times = {"time/rollout": sampled - started, "time/reward": time.perf_counter() - sampled}
        metrics = self.prompts.metrics() | self.engine.metrics()
        return Rolled(turns, trajectory, rewards, version, metrics=metrics, times=times)


def count_finished(observer: Observer) -> Finished:
    """What an engine calls with finished rows: it counts them and their tokens."""
    return lambda index, t: observer.advance(len(index), int(t.lengths.sum()))
