"""Rollouts of several turns: completions of the model, and between them the replies of an environment of the user's.

Each turn is a row of the trajectory. Its prompt is the conversation so far, its completion what the model wrote then,
and its reward that of the whole episode. So objectives and views need not know of turns.
"""

import dataclasses
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from lfpo.config.errors import UserError
from lfpo.config.torch_state import torch_state_kept
from lfpo.core import collectives
from lfpo.core.attempts import attempt
from lfpo.core.batch import ScoredRollouts, Turn
from lfpo.core.completions import decode_completions
from lfpo.core.denoise import Finished
from lfpo.core.encoding import encode_prompt, misfit, unusable
from lfpo.core.engine import Engine, Request
from lfpo.core.messages import prefill
from lfpo.core.observer import Observer
from lfpo.core.reward_values import number as as_reward
from lfpo.core.rng import key
from lfpo.core.rollouts import FreshRollouts
from lfpo.core.scoring import Rewards, copied, without_prefill
from lfpo.core.trajectory import Trajectory, join
from lfpo.models import MaskedDiffusionLM
from lfpo.prompts.tasks import Row
from lfpo.rewards.names import reward_name


@dataclass(frozen=True)
class Environment:
    """make: makes an object for each episode, with reset(row, seed) and step(text) -> (reply, reward, done).
    max_turns: most turns of an episode. timeout: seconds for a rank's environments in one turn (0: no limit)."""

    make: Callable[[], Any]
    max_turns: int
    timeout: float

    @property
    def name(self) -> str:
        return reward_name(self.make)


@dataclass
class Episode:
    """number: among the rank's. row: the data row, its prompt being the conversation so far. own: its environment, from
    the first step on. reward: the sum of its steps' so far; None while all of them were None. open: whether that goes
    on. ids, cut: the conversation's tokens, and whether they are too many for another turn."""

    number: int
    row: Row
    seed: int
    own: Any = None
    reward: float | None = None
    open: bool = True
    ids: Sequence[int] = ()
    cut: bool = False

    def step(self, environment: Environment, text: str) -> str:
        """Give the environment what the model wrote; returns the reply. Raises UserError for a wrong return value."""
        name = f"environment {environment.name!r}"
        if self.own is None:
            self.own = environment.make()
            returned = self.own.reset(*copied([dict(self.row)]), key(self.seed, "environment"))
            if returned is not None:
                raise UserError(
                    f"{name}: reset returned {returned!r:.60}, expected None; an episode begins with the row's prompt"
                )
        returned = self.own.step(text)
        try:
            reply, earned, done = returned
            reward, done = as_reward(earned), done.item() if hasattr(done, "item") else done
            if not (isinstance(reply, str) and isinstance(done, bool)):
                raise TypeError
        except (TypeError, ValueError):  # NotANumber is a ValueError
            raise UserError(
                f"{name}: step returned {returned!r:.60}, expected (reply, reward, done): text, a finite "
                "number, and True or False"
            ) from None
        if reward is not None:
            self.reward = (self.reward or 0.0) + reward
        self.open = not done
        before = without_prefill(self.row["prompt"])
        said: Any = text + reply
        if not isinstance(before, str):
            turn = prefill(self.row["prompt"]) + text
            said = [{"role": "assistant", "content": turn}, {"role": "user", "content": reply}]
        self.row = {**self.row, "prompt": before + said}
        return reply


def play(
    environment: Environment,
    engine: Engine,
    policy: MaskedDiffusionLM,
    tokenizer: object,
    request: Request,
    rows: Sequence[Row],
    finished: Finished,
) -> tuple[list[Turn], Trajectory | None, Rewards, dict[str, tuple[float, int]]]:
    """Play this rank's episodes. A collective: all ranks sample equally often, also those that have no episode left.

    Returns the turns and their trajectory [B rows], those of an episode one after the other, without a trajectory where
    there are no episodes; the episodes' rewards; and metric -> (sum, count) over them.

    request: of the first turns, with the seeds of the episodes. rows: the data row of each episode. finished: told of
    each turn's rows.
    An episode ends when its environment says so, after max_turns, or where the conversation no longer fits the model.
    If an environment raises or takes too long, the rank's episodes end and have no rewards (see Rewards.failed).
    """
    episodes = [Episode(i, row, seed) for i, (row, seed) in enumerate(zip(rows, request.seeds, strict=True))]
    turns, parts, failed, live = list[Turn](), list[Trajectory](), dict[str, str](), episodes
    for number in range(1, environment.max_turns + 1):
        if number > 1:
            gen_length = request.sampler.gen_length
            collectives.raise_on_all(partial(begin_turn, environment.name, live, tokenizer, policy, gen_length))
            live = [e for e in live if not e.cut]
            seeds = [key(e.seed, "turn", number) for e in live]
            request = dataclasses.replace(request, prompts=[e.ids for e in live], seeds=seeds, generations=1)
        if not collectives.sum_number(len(live)):
            break
        texts, numbers, before = list[str](), [e.number for e in live], [e.row for e in live]
        if live:
            parts.append(engine.sample(request, finished))
            texts = decode_completions(tokenizer, parts[-1].tokens, policy.eos_id)
        else:
            engine.idle()
        replies, why = collectives.on_every_rank(partial(step_all, environment, live, texts))[collectives.rank()]
        turns += map(Turn, numbers, before, request.seeds, texts, [number] * len(live), replies)
        failed |= {} if why is None else {environment.name: why}
        live = [e for e in live if e.open and not failed]

    trajectory = None
    if parts:
        trajectory = join(parts, policy.pad_id)
        order = sorted(range(len(turns)), key=lambda b: turns[b].rollout)
        turns = [turns[b] for b in order]
        trajectory = trajectory.rows(torch.tensor(order, device=trajectory.tokens.device))
    earned = [None if failed else e.reward for e in episodes]
    reward_N = torch.tensor([math.nan if x is None else x for x in earned], dtype=torch.float64)
    n, cut = len(episodes), sum(e.cut for e in episodes)
    sums = {"turns/mean": (float(len(turns)), n), "turns/cut": (float(cut), n)}
    return turns, trajectory, Rewards(reward_N, {environment.name: earned}, failed), sums


def begin_turn(
    name: str, live: Sequence[Episode], tokenizer: object, policy: MaskedDiffusionLM, gen_length: int
) -> None:
    """Encode the conversations, and mark those that leave no room for gen_length tokens. Raises UserError, with the
    environment's name, for a reply that the model cannot read."""
    for e in live:
        e.ids = encode_prompt(tokenizer, e.row["prompt"])
        if reason := unusable(e.ids, policy):
            raise UserError(f"environment {name!r}: the conversation after its reply cannot be used: {reason}")
        e.cut = bool(misfit(e.ids, policy, gen_length))


def step_all(environment: Environment, live: Sequence[Episode], texts: Sequence[str]) -> tuple[list[str], str | None]:
    """Give environments what the model wrote. Returns their replies, and why one failed, with "" from there on."""
    replies = [""] * len(texts)

    def steps() -> None:
        for i, e in enumerate(live):
            replies[i] = e.step(environment, texts[i])

    with torch_state_kept():
        return replies, attempt(steps, environment.timeout)[1]


@dataclass(frozen=True)
class Played:
    """A source of rollouts that an environment plays in turns; it gives their rewards. sampled: what says which prompts
    an iteration has, and samples from which policy."""

    environment: Environment
    sampled: FreshRollouts

    def roll(self, iteration: int, observer: Observer) -> ScoredRollouts:
        inner, started = self.sampled, time.perf_counter()
        inner.engine.update(iteration, inner.policy)
        inner.engine.forwarded = observer.forward
        rows, request = inner.request_of(iteration)
        observer.begin("sampling", self.environment.max_turns * len(rows), "turns")
        finished = observer.finished
        turns, t, rewards, sums = play(
            self.environment, inner.engine, inner.policy, inner.tokenizer, request, rows, finished
        )
        assert t is not None  # each rank has prompts
        times = {"time/rollout": time.perf_counter() - started, "time/reward": 0.0}
        return ScoredRollouts(turns, t, rewards, iteration, metrics=inner.engine.metrics(), times=times, sums=sums)
