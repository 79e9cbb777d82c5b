"""Reward functions called by Ray tasks, on cores of the whole cluster."""

import contextlib
import itertools
import os
from collections.abc import Sequence
from typing import Any

from lfpo.config.engine import EngineSettings
from lfpo.config.errors import first_line
from lfpo.core import collectives
from lfpo.core.attempts import RewardFailed, RewardTimeout
from lfpo.core.scoring import accepted
from lfpo.ray.cluster import LOOK, check_head, connect, import_ray, leave, wait_for_start
from lfpo.ray.reward_tasks import call, load
from lfpo.rewards import RewardFunction, reward_name

RETRIES = 2  # times that Ray calls a function again whose process died


def by_tasks(
    functions: Sequence[RewardFunction], settings: EngineSettings, closing: contextlib.ExitStack
) -> list[RewardFunction]:
    """The same reward functions, called by `settings.reward_workers` Ray tasks at a time. A collective.

    A task gets whole prompts: all completions of a prompt that are in the batch, which follow each other. Its process
    is kept for the next batch, and is killed when the batch's time limit ends the call.
    closing: at its end this process leaves Ray, if it joined here.
    Raises UserError for a function that a worker cannot load.
    """
    first = collectives.rank() == 0

    def join(*cluster: str | None) -> tuple[str, str | None]:
        """Join Ray; returns the cluster for the other ranks, which join the same."""
        if connect(settings, *cluster):
            closing.callback(leave)
        return import_ray().get_runtime_context().gcs_address, os.environ.get("RAY_AUTH_MODE")

    cluster = collectives.on_every_rank(lambda: join() if first else ())[0]
    collectives.on_every_rank(lambda: None if first else join(*cluster))
    from ray import cloudpickle  # only now: `connect` sets what Ray reads when it is imported

    sent = [cloudpickle.dumps(function) for function in functions]
    tasks = max(1, settings.reward_workers // collectives.world())
    ray = import_ray()
    loading, stored = ray.remote(num_cpus=1)(load), [ray.put(pickled) for pickled in sent]
    collectives.on_every_rank(lambda: wait_for_start([loading.remote(*stored) for _ in range(tasks)]))
    return [_by_tasks(function, pickled, tasks) for function, pickled in zip(functions, stored, strict=True)]


def _by_tasks(function: RewardFunction, pickled: object, tasks: int) -> RewardFunction:
    """The function, called by so many tasks. pickled: Ray's reference to it."""
    ray = import_ray()
    calling = ray.remote(num_cpus=1, max_retries=RETRIES)(call)

    def reward(**arguments: Any) -> list[float | None]:
        check_head()
        own = accepted(function, arguments)
        parts = [{n: v[part] for n, v in own.items()} for part in whole_prompts(arguments["prompts"], tasks)]
        called = [calling.remote(pickled, part) for part in parts]
        try:
            return [value for task in called for value in _result(task)]
        except RewardTimeout:
            for task in called:
                ray.cancel(task, force=True)
            raise

    reward.__name__ = reward_name(function)
    return reward


def whole_prompts(prompts: Sequence[object], parts: int) -> list[slice]:
    """Cuts a batch between prompts, into as many parts of about equal length as there are prompts for, at most `parts`.

    prompts: of each completion; those of a prompt follow each other.
    """
    starts = [i for i, prompt in enumerate(prompts) if i == 0 or prompt != prompts[i - 1]]
    n = min(parts, len(starts))
    cuts = [starts[len(starts) * i // n] for i in range(n)] + [len(prompts)]
    return [slice(a, b) for a, b in itertools.pairwise(cuts)]


def _result(task: Any) -> list[float | None]:
    """What a task returned. Raises what its function raised, and ProcessLost with the cluster's head.

    Waits in Python, where a signal handler may raise: Ray's own wait drops what is raised in it.
    """
    ray, future = import_ray(), task.future()
    while True:
        try:
            return future.result(LOOK)
        except ray.exceptions.RayTaskError as error:
            raise error.cause from None
        except ray.exceptions.RayError as error:
            raise RewardFailed(f"its Ray task was lost ({first_line(error)})") from None
        except TimeoutError:
            check_head()
