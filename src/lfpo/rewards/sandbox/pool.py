"""`Sandbox`: runs many jobs in parallel, each in new processes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from lfpo.base.errors import UserError
from lfpo.rewards.sandbox.job import Job, Limits, Verdict
from lfpo.rewards.sandbox.run_job import run_job
from lfpo.rewards.sandbox.rungs import Unsafe, require_rung, strongest_rung


class Sandbox:
    """Runs jobs, `workers` at a time. No process or file outlives its job, so a verdict depends on its job alone.

    rung: the kind of confinement, a name from `available_rungs()` (None: the strongest available).
    limits: for each job. workers: jobs at a time (None: the cores of this process, divided by the ranks that torchrun
    started on this machine). libraries: folders that programs and tests may import from, besides the standard library.
    unsafe: True allows the rung `limits`, which limits resources but does not confine; for root, only "root" does.
    Raises UserError if the rung is not available or not allowed, or if workers is below 1.
    """

    def __init__(
        self,
        rung: str | None = None,
        limits: Limits | None = None,
        workers: int | None = None,
        libraries: Sequence[str] = (),
        unsafe: Unsafe = False,
    ) -> None:
        if workers is not None and workers < 1:
            raise UserError(f"a sandbox needs at least one worker, not {workers}")
        self.rung = require_rung(rung, unsafe) if rung else strongest_rung(unsafe)
        self.limits = limits or Limits()
        self.workers = workers or _cores()
        self.libraries = tuple(os.path.abspath(path) for path in libraries)

    def run(self, jobs: Sequence[Job]) -> list[Verdict]:
        """One verdict for each job, in order."""
        with ThreadPoolExecutor(self.workers, thread_name_prefix="sandbox") as pool:
            return list(pool.map(self.judge, jobs))

    def judge(self, job: Job) -> Verdict:
        """The verdict of one job. The job fails if its processes cannot be started."""
        try:
            return run_job(job, self.rung, self.limits, self.libraries)
        except OSError as error:
            reason = f"the sandbox did not start: {error}"
            return Verdict(False, reason, 0.0, (False,) * len(job.calls or job.tests))


def _cores() -> int:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
