"""The engine of a trainer, made from its settings, and the queue of what it samples ahead."""

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, cast

from lfpo.base.errors import UserError
from lfpo.base.plugins import resolve
from lfpo.models import MaskedDiffusionLM
from lfpo.models.fsdp import gathered, gathered_by_layer
from lfpo.models.placement import sampling
from lfpo.rollout.engine import AsyncEngine, Engine, LocalEngine
from lfpo.rollout.queue import RolloutQueue
from lfpo.rollout.trajectory import Trajectory
from lfpo.train.config import LFPOConfig
from lfpo.train.engine_settings import ENGINES


def make_engine(args: LFPOConfig) -> Engine:
    """The engine that `args.engine` names. A collective. Raises UserError for what it cannot run with."""
    engine: Engine = resolve(args.engine.name, ENGINES, kind="engine")(args)
    return engine


def make_queue(args: LFPOConfig, engine: Engine, pad_id: int) -> RolloutQueue | None:
    """The queue of rollouts that are sampled ahead; None for max_staleness 0. Raises UserError for an engine that
    cannot sample ahead."""
    staleness = args.engine.max_staleness
    if not staleness:
        return None
    if not (hasattr(engine, "submit") and hasattr(engine, "result")):
        raise UserError(
            f"engine {args.engine.name!r} has no 'submit' and 'result', which engine.max_staleness {staleness} needs; "
            "set it to 0, or take another engine"
        )
    generations, steps = args.num_generations, args.max_steps
    engine = cast(AsyncEngine, engine)
    return RolloutQueue(engine, staleness=staleness, iterations=steps, generations=generations, pad_id=pad_id)


def local_engine(args: LFPOConfig, run: Callable[..., Trajectory] | None = None) -> LocalEngine:
    """Rollouts in the trainer's own processes. run: samples a unit of work (see LocalEngine)."""

    def ready(policy: MaskedDiffusionLM) -> AbstractContextManager[MaskedDiffusionLM]:
        trained = any(p.requires_grad for p in policy.parameters())  # theta, which is evaluated, stays on the device
        return ready_to_sample(policy, args, move=args.offload_reference and not trained)

    return LocalEngine(
        ready,
        rollout_tokens=args.rollout_tokens,
        compiled=args.rollout_compile,
        rows_per_unit=args.engine.prompts_per_unit * args.num_generations,
        run=run,
    )


@contextlib.contextmanager
def ready_to_sample(policy: MaskedDiffusionLM, args: Any, *, move: bool = False) -> Iterator[MaskedDiffusionLM]:
    """A policy made ready for many forwards without gradients. move: its layers are stored in CPU memory."""
    merge = args.merges_lora(policy.device.type)
    if args.fsdp:
        by_layer = args.rollout_gather == "layer"
        with gathered_by_layer(policy) if by_layer else gathered(policy, cast=policy.autocast, merge=merge) as ready:
            yield ready
        return
    # A compiled forward casts as it goes: it must find its weights where they were when it was compiled.
    cast = policy.autocast and not args.rollout_compile
    with sampling(policy, cast=cast, move_to_device=move, merge=merge):
        yield policy
