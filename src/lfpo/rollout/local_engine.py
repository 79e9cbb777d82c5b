"""The engine that samples in the trainer's own processes, from a run's settings."""

from collections.abc import Callable

from lfpo.config.train import LFPOConfig
from lfpo.core.rollouts import LocalEngine
from lfpo.core.trajectory import Trajectory
from lfpo.rollout.sampling import run_unit


def local_engine(args: LFPOConfig, run: Callable[..., Trajectory] | None = None) -> LocalEngine:
    """Rollouts in the trainer's own processes. run: samples a unit of work (see LocalEngine)."""
    return LocalEngine(
        run or run_unit,
        rollout_tokens=args.rollout_tokens,
        compiled=args.rollout_compile,
        rows_per_unit=args.engine.prompts_per_unit * args.num_generations,
    )
