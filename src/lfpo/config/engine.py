"""Where rollouts are sampled: the keys of `engine`."""

from dataclasses import dataclass, field
from typing import Annotated

from lfpo.config.build import check_fields
from lfpo.config.checks import Count, CountOrZero, NotNegative, OneOf, Seconds, refuse
from lfpo.config.plugins import DOTTED, dotted

# Name -> what makes an engine (lfpo.core.engine.Engine) from an LFPOConfig.
ENGINES = {
    "local": "lfpo.rollout.sampling:local_engine",
    "ray": "lfpo.ray.engine:RayEngine",
    "sglang": "lfpo.contrib.sglang:SGLangEngine",
}
# Keys that only some of them read. An engine of the user's own may read all of them.
KEYS = {
    "local": (),
    "ray": ("workers", "gpus_per_worker", "cpus_per_worker", "address", "unit_timeout"),
    "sglang": ("urls", "unit_timeout"),
}


@dataclass(frozen=True)
class EngineSettings:
    """Where rollouts are sampled."""

    name: Annotated[str, OneOf(tuple(ENGINES), DOTTED)] = "local"
    """`local`, in the trainer's own processes; `ray`, by workers beside it; `sglang`, by servers at `urls`; or a dotted
    path of what makes an engine from an LFPOConfig (see docs/engines.md)."""

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

    urls: list[str] = field(default_factory=list)
    """Of SGLang's servers, as http://HOST:30000."""

    unit_timeout: Seconds = 3600.0
    """Seconds that a Ray worker may take for a unit before it is stopped and started again, and an SGLang server for an
    answer (0: no limit)."""

    reward_workers: CountOrZero = 0
    """Ray workers that call the reward functions, with any engine (0: the trainer's processes call them)."""

    def __post_init__(self) -> None:
        dotted(self.name, ENGINES, kind="engine")
        check_fields(self)
        own = {*KEYS.get(self.name, ()), *(["address"] if self.reward_workers else [])}
        for engine, keys in KEYS.items() if self.name in KEYS else ():
            for key in set(keys) - own:
                given = getattr(self, key) != getattr(EngineSettings, key, [])
                refuse((given, f"{key!r} is for the engine {engine!r}, found {self.name!r}; leave it out"))
        refuse((self.name == "sglang" and not self.urls, "the engine 'sglang' needs 'urls', those of its servers"))
