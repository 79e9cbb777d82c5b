"""Many verdicts at a time, each from fresh processes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from lfpo.base.errors import UserError
from lfpo.rewards.sandbox import ladder, trial
from lfpo.rewards.sandbox.job import Job, Limits, Verdict


class Sandbox:
    """Judges programs, `workers` of them at a time.

    A verdict depends on its job alone: no process, file or memory outlives it, so order and company do not matter.
    workers: by default the cores of this process, shared with the others that torchrun started on this machine.
    libraries: folders that programs and tests may import from, besides the standard library.
    rung: a name from `lfpo.rewards.sandbox.available_rungs()`; the strongest by default. unsafe allows bare resource
    limits.
    """

    def __init__(
        self,
        rung: str | None = None,
        limits: Limits | None = None,
        workers: int | None = None,
        libraries: Sequence[str] = (),
        unsafe: bool = False,
    ) -> None:
        if workers is not None and workers < 1:
            raise UserError(f"a sandbox needs at least one worker, not {workers}")
        self.rung = ladder.require(rung, unsafe) if rung else ladder.rung(unsafe)
        self.limits = limits or Limits()
        self.workers = workers or _cores()
        self.libraries = tuple(os.path.abspath(path) for path in libraries)

    def run(self, jobs: Sequence[Job]) -> list[Verdict]:
        """One verdict a job, in the order of the jobs."""
        with ThreadPoolExecutor(self.workers, thread_name_prefix="sandbox") as pool:
            return list(pool.map(self.judge, jobs))

    def judge(self, job: Job) -> Verdict:
        """One verdict. A process that cannot be started fails its job and no other."""
        try:
            return trial.judge(job, self.rung, self.limits, self.libraries)
        except OSError as error:
            reason = f"the sandbox did not start: {error}"
            return Verdict(False, reason, 0.0, (False,) * len(job.calls or job.tests))


def _cores() -> int:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
