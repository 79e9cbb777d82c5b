"""Where rollouts are sampled: the keys of `engine`."""

from dataclasses import dataclass
from typing import Annotated

from lfpo.config.build import check_fields
from lfpo.config.checks import Count, CountOrZero, NotNegative, OneOf, Seconds
from lfpo.config.plugins import DOTTED, dotted

# Name -> what makes an engine (lfpo.core.engine.Engine) from an LFPOConfig.
ENGINES = {"local": "lfpo.rollout.sampling:local_engine", "ray": "lfpo.ray.engine:RayEngine"}


@dataclass(frozen=True)
class EngineSettings:
    """Where rollouts are sampled."""

    name: Annotated[str, OneOf(tuple(ENGINES), DOTTED)] = "local"
    """`local`, in the trainer's own processes; `ray`, by workers beside it; or a dotted path of what makes an engine
    from an LFPOConfig (see docs/engines.md)."""

    prompts_per_unit: CountOrZero = 0
    """Prompts whose rollouts are sampled together, as one unit of work. A unit always runs with the same shapes, so its
    trajectories are the same bits on like hardware, whoever runs it. 0: all prompts of a rank together for `local`, one
    for `ray`. An evaluation's units have as many completions."""

    max_staleness: CountOrZero = 0
    """k: batch i is sampled with the weights after max(0, i - k) iterations, so that rollouts of the next k batches can
    go on while a batch is learned from. 0: each batch is sampled with the newest weights."""

    workers: Count = 1
    """Workers of the Ray engine."""

    gpus_per_worker: NotNegative = 0.0
    """GPUs that Ray reserves for each worker."""

    cpus_per_worker: Count = 1
    """Cores that Ray reserves for each worker, and threads of each."""

    address: str | None = None
    """Of a running Ray cluster; without it $RAY_ADDRESS, or else a Ray of this machine that ends with the run."""

    unit_timeout: Seconds = 3600.0
    """Seconds that a Ray worker may take for a unit before it is stopped and started again (0: no limit)."""

    reward_workers: CountOrZero = 0
    """Ray workers that call the reward functions, with any engine (0: the trainer's processes call them)."""

    def __post_init__(self) -> None:
        dotted(self.name, ENGINES, kind="engine")
        check_fields(self)
        if self.name == "local":
            others = ["workers", "gpus_per_worker", "cpus_per_worker", "unit_timeout"]
            others += [] if self.reward_workers else ["address"]
            set_keys = [name for name in others if getattr(self, name) != getattr(type(self), name)]
            if set_keys:
                raise ValueError(
                    f"{set_keys[0]!r} is for the engine 'ray', found 'local'; set 'name' to ray, or leave it out"
                )
