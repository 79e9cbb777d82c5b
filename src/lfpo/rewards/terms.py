"""Ready terms of a reward: speed, penalties on length, and a weight for each row. A length is the number of tokens up
to and including the first end-of-sequence token."""

import inspect
import itertools
from typing import Any

from lfpo.config.json import Json
from lfpo.core.reward_values import checked
from lfpo.core.scoring import RewardFunction, accepted
from lfpo.rewards.names import reward_name


def overlong_penalty(max_length: int, buffer: int) -> RewardFunction:
    """0 up to max_length - buffer tokens, then linear down to -1 at max_length, and -1 beyond.

    DAPO's soft overlong punishment (arXiv 2503.14476, Eq. 13: L_max and L_cache). With max_length = gen_length, a
    completion that never ends gets -1.
    """

    def overlong(
        prompts: object, completions: object, completion_ids: list[list[int]], **columns: object
    ) -> list[float]:
        return [-min(1.0, max(0.0, (len(ids) - max_length + buffer) / buffer)) for ids in completion_ids]

    return overlong


def tokens_per_forward(target: float, right: RewardFunction | None) -> RewardFunction:
    """Tokens of a completion over the forwards that its rollout took, in units of `target`, and at most 1.

    right: a completion whose reward by this function is not above 0 gets 0, since a fast wrong answer is worth nothing;
        None: wrong ones are rewarded too.
    With LightningRL (arXiv 2603.13319) it is a reward of its own; see multi_objective_aggregation.
    """

    def speed(
        prompts: object, completions: Any, completion_ids: list[list[int]], forwards: list[int], **columns: object
    ) -> list[float]:
        own = {"completion_ids": completion_ids, "forwards": forwards, **columns}
        given = [1.0] * len(completions) if right is None else _called(right, prompts, completions, own)
        per_forward = [len(ids) / max(1, n) for ids, n in zip(completion_ids, forwards, strict=True)]
        return [min(1.0, tpf / target) if (r or 0.0) > 0 else 0.0 for tpf, r in zip(per_forward, given, strict=True)]

    return speed


def tokens(prompts: object, completions: object, completion_ids: list[list[int]], **columns: object) -> list[float]:
    """The length itself; give it a small negative weight in reward_weights."""
    return [float(len(ids)) for ids in completion_ids]


def relative_length(
    prompts: Any, completions: object, completion_ids: list[list[int]], **columns: object
) -> list[float]:
    """0.5 for the shortest completion of a prompt, -0.5 for the longest, linear between; 0 where all are equally long.

    Kimi k1.5's length reward (arXiv 2501.12599, Section 2.3.3) without its exception: there, a wrong completion gets at
    most 0. The completions of a prompt follow each other.
    """
    values: list[float] = []
    for _, group in itertools.groupby(zip(prompts, completion_ids, strict=True), key=lambda pair: pair[0]):
        lengths = [len(ids) for _, ids in group]
        shortest, span = min(lengths), max(lengths) - min(lengths)
        values += [0.5 - (length - shortest) / span if span else 0.0 for length in lengths]
    return values


def target_length(column: str = "target_length", alpha: float = 0.0003) -> RewardFunction:
    """-alpha for each token that a completion is longer or shorter than its row's `column` says.

    The length term of L1's LCPO-Exact (arXiv 2503.04697), whose alpha is the default.
    """

    def off_target(
        prompts: object, completions: object, completion_ids: list[list[int]], **columns: Any
    ) -> list[float]:
        return [-alpha * abs(len(ids) - want) for ids, want in zip(completion_ids, columns[column], strict=True)]

    return off_target


def weighted(function: RewardFunction, column: str) -> RewardFunction:
    """The same reward function, whose rewards are multiplied by the number in their row's `column`; None stays None."""

    def reward(prompts: object, completions: Any, **columns: Any) -> list[float | None]:
        values = _called(function, prompts, completions, columns)
        return [None if v is None else v * weight for v, weight in zip(values, columns[column], strict=True)]

    reward.__name__ = reward_name(function)
    reward.__wrapped__ = function  # type: ignore[attr-defined]
    reward.__signature__ = inspect.signature(reward, follow_wrapped=False)  # type: ignore[attr-defined]
    return reward


def _called(function: RewardFunction, prompts: object, completions: Any, columns: Json) -> list[float | None]:
    """The checked rewards of a function that a term wraps."""
    returned = function(prompts=prompts, completions=completions, **accepted(function, columns))
    return checked(returned, reward_name(function), len(completions))
