"""The settings of the engine that samples rollouts. Settings are checked before torch is loaded."""

from dataclasses import dataclass

from lfpo.base.checks import at_least_one, not_negative, time_limits
from lfpo.base.plugins import dotted

# Name -> what makes an engine (lfpo.rollout.engine.Engine) from an LFPOConfig.
ENGINES = {"local": "lfpo.train.engines:local_engine", "ray": "lfpo.train.ray_engine:RayEngine"}


@dataclass(frozen=True)
class EngineSettings:
    """Where rollouts are sampled.

    name: `local`, in the trainer's own processes; `ray`, by workers beside it; or a dotted path of what makes an engine
        from an LFPOConfig (see docs/engines.md).
    prompts_per_unit: prompts whose rollouts are sampled together, as one unit of work. A unit always runs with the same
        shapes, so its trajectories are the same bits on like hardware, whoever runs it. 0: all prompts of a rank
        together for `local`, one for `ray`. An evaluation's units have as many completions.
    max_staleness: 0 samples each batch with the newest weights. k samples batch i with the weights after max(0, i - k)
        iterations, so that rollouts of the next k batches can go on while a batch is learned from.
    workers, gpus_per_worker: of the Ray engine. cpus_per_worker: cores that Ray reserves, and threads of each worker.
    address: of a running Ray cluster; without it $RAY_ADDRESS, or else a Ray of this machine that ends with the run.
    unit_timeout: seconds that a worker may take for a unit before it is stopped and started again (0: no limit).
    reward_workers: Ray workers that call the reward functions, with any engine (0: the trainer's processes call them).
    """

    name: str = "local"
    prompts_per_unit: int = 0
    max_staleness: int = 0
    workers: int = 1
    gpus_per_worker: float = 0.0
    cpus_per_worker: int = 1
    address: str | None = None
    unit_timeout: float = 3600.0
    reward_workers: int = 0

    def __post_init__(self) -> None:
        dotted(self.name, ENGINES, kind="engine")
        not_negative(self, "prompts_per_unit", "max_staleness", "gpus_per_worker", "reward_workers")
        at_least_one(self, "workers", "cpus_per_worker")
        time_limits(self, "unit_timeout")
        if self.name == "local":
            others = ["workers", "gpus_per_worker", "cpus_per_worker", "unit_timeout"]
            others += [] if self.reward_workers else ["address"]
            given = [name for name in others if getattr(self, name) != getattr(type(self), name)]
            if given:
                raise ValueError(
                    f"{given[0]!r} is for the engine 'ray', found 'local'; set 'name' to ray, or leave it out"
                )
