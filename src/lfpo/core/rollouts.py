"""Phase 1 of an iteration: sample rollouts from theta_old and score them. Each rank samples and scores its own.

An engine (lfpo.core.engine) turns prompts into trajectories. A source of rollouts gives them scored, as
ScoredRollouts: `FreshRollouts` is the plain one. A queue (lfpo.train.queue), an environment (lfpo.rollout.episodes) and
an objective (Objective.rewarded) may wrap it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from lfpo.config.sampler import Sampler
from lfpo.config.train import LFPOConfig
from lfpo.core import collectives
from lfpo.core.batch import ScoredRollouts, Turn
from lfpo.core.completions import decode_completions
from lfpo.core.encoding import encode_rows
from lfpo.core.engine import Engine, Request, Variant
from lfpo.core.model import MaskedDiffusionLM
from lfpo.core.observer import Observer
from lfpo.core.rng import key
from lfpo.core.scoring import Row, Scorer
from lfpo.core.trajectory import Trajectory


@dataclass(frozen=True)
class FreshRollouts:
    """Rollouts that are sampled when they are asked for.

    train_row(index): the row at a position of the endless training stream; the same after a resume. scorer: of the
    completions. policy: theta_old. engine: samples from it. sampler: of the rollouts, with its lengths filled in.
    variant: see lfpo.core.engine.Request. state: of the run; its row_offset (see lfpo.train.trainer.Trainer) is where
    the stream stands after a resume with another batch size.
    """

    args: LFPOConfig
    train_row: Callable[[int], Row]
    scorer: Scorer
    policy: MaskedDiffusionLM
    tokenizer: Any
    engine: Engine
    sampler: Sampler
    variant: Variant | None
    state: Mapping[str, Any]

    def request_of(self, iteration: int) -> tuple[list[Row], Request]:
        """The data row of each of this rank's rollouts, and the engine's request for them."""
        n, n_prompts = self.args.num_generations, self.args.prompts_per_iteration
        first = iteration * n_prompts + self.state["row_offset"]
        data, rows, seeds, prompts = list[Row](), list[Row](), list[int](), list[list[int]]()
        for number in collectives.own_indices(n_prompts):
            data.append(self.train_row(first + number))
            for j in range(n):
                # Keyed by the rollout's number among those of all ranks: the same at every number of ranks.
                seeds.append(key(self.args.seed, iteration, number * n + j, "rollout"))
        encoded = encode_rows(data, self.tokenizer, self.policy, self.sampler.gen_length)
        for row, ids in zip(data, encoded, strict=True):
            rows += [row] * n
            prompts += [ids] * n
        return rows, Request(prompts, seeds, self.sampler, n, self.variant)

    def roll(self, iteration: int, observer: Observer) -> ScoredRollouts:
        rows, request = self.request_of(iteration)
        observer.begin("sampling", len(rows), "rollouts")
        started = time.perf_counter()
        self.engine.update(iteration, self.policy)
        self.engine.forwarded = observer.forward
        trajectory = self.engine.sample(request, observer.finished)
        return self.scored(rows, request, trajectory, iteration, started, observer)

    def scored(
        self,
        rows: Sequence[Row],
        request: Request,
        trajectory: Trajectory,
        version: int,
        started: float,
        observer: Observer,
    ) -> ScoredRollouts:
        """The rollouts of a request with their rewards. version: of the weights that sampled them. started: the time at
        which sampling began. A collective."""
        sampled = time.perf_counter()
        observer.begin("verdicts", len(rows), "completions")
        texts = decode_completions(self.tokenizer, trajectory.tokens, self.policy.eos_id)
        rewards = collectives.raise_on_all(partial(self.scorer.score, rows, texts, trajectory.for_rewards()))
        observer.advance(len(rows))
        turns = list(map(Turn, range(len(rows)), rows, request.seeds, texts))
        times = {"time/rollout": sampled - started, "time/reward": time.perf_counter() - sampled}
        metrics = self.scorer.metrics() | self.engine.metrics()
        return ScoredRollouts(turns, trajectory, rewards, version, metrics=metrics, times=times)
