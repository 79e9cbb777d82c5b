"""Hands units of work to Ray workers, one at a time each, in threads of rank 0 beside training."""

import dataclasses
import threading
import time
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from lfpo.base.errors import UserError
from lfpo.rollout.engine import Request, Version
from lfpo.rollout.trajectory import Trajectory
from lfpo.train.ray_cluster import START, cause, check_head, first_line, import_ray

MAX_LOST = 3  # workers that may be lost with the same unit
HEAD = 5.0  # seconds between two looks at the head of the cluster, while tasks are waited for
POLL = 0.5  # seconds after which a thread that waits for a task looks at the time, and at whether it is to end


@dataclasses.dataclass(eq=False)
class Job:
    """Units that are sampled with the same weights.

    weights: Ray's reference to them; it is dropped with the last unit, so the object store keeps them until then.
    done: the trajectories so far, by the unit's number.
    """

    version: Version
    weights: Any
    units: Sequence[Request]
    done: dict[int, Trajectory] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(eq=False)
class _Unit:
    """A unit of a job, by number, and how many workers were lost with it."""

    job: Job
    number: int
    lost: int = 0


class Dispatcher:
    """Units of submitted jobs, sampled by workers in the order of submission.

    Each worker has a thread while there are units, so that it gets its next one whatever the trainer does meanwhile. A
    unit whose worker is lost is sampled again, by whichever worker is free.
    actors: Ray's handles of the workers (lfpo.train.ray_engine.Worker). unit_timeout: see EngineSettings.
    """

    def __init__(self, actors: Sequence[Any], unit_timeout: float):
        self.actors, self.limit = actors, unit_timeout
        self.waiting: deque[_Unit] = deque()
        self.running = 0  # units at workers
        self.away = 0  # workers that were lost and have not come back
        self.idle = set(range(len(actors)))  # workers without a thread
        self.measured: dict[str, float] = defaultdict(float)
        self.changed = threading.Condition()  # over all of the above, and `done` of jobs
        self.threads = ThreadPoolExecutor(max(1, len(actors)), "ray-units")
        self.serving: dict[int, Future[None]] = {}  # worker -> its thread, or the one it had last
        self.looked = time.monotonic()  # at the head of the cluster
        self.closed = False

    def submit(self, version: Version, weights: Any, units: Sequence[Request]) -> Job:
        """Take the units of a job, and hand out as many as there are free workers."""
        job = Job(version, weights, units)
        with self.changed:
            self.waiting.extend(_Unit(job, number) for number in range(len(units)))
            self.measured["engine/units"] += len(units)
            self._wake_idle()
        return job

    def results(self, job: Job) -> Iterator[tuple[int, Trajectory]]:
        """(number, trajectory) of each unit of a job, as they are finished. Raises what ended a thread."""
        told: set[int] = set()
        while len(told) < len(job.units):
            with self.changed:
                new = [number for number in job.done if number not in told]
                if not new:
                    for thread in self.serving.values():
                        if thread.done():
                            thread.result()
                    self.changed.wait(1.0)
            for number in new:
                told.add(number)
                yield number, job.done[number]

    def metrics(self) -> dict[str, float]:
        """What was measured since the last call, and the units that are not sampled yet."""
        with self.changed:
            found, self.measured = dict(self.measured), defaultdict(float)
            return found | {"engine/units_open": float(len(self.waiting) + self.running)}

    def close(self) -> None:
        """Drop all units, and wait for the threads."""
        with self.changed:
            self.closed = True
            self.waiting.clear()
        self.threads.shutdown()

    def _wake_idle(self) -> None:
        for worker in sorted(self.idle)[: len(self.waiting)]:
            self.idle.remove(worker)
            self.serving[worker] = self.threads.submit(self._serve, worker)

    def _serve(self, worker: int) -> None:
        """Sample units with a worker until none waits, or the worker is lost for good.

        Raises UserError where MAX_LOST workers were lost with a unit, and where no worker is left.
        """
        while True:
            with self.changed:
                if not self.waiting:
                    self.idle.add(worker)
                    return
                unit = self.waiting.popleft()
                self.running += 1
            job, began = unit.job, time.monotonic()
            trajectory, why = self._sample(worker, unit)
            if self.closed:
                return
            with self.changed:
                self.running -= 1
                if trajectory is not None:
                    job.done[unit.number] = trajectory
                    job.weights = job.weights if len(job.done) < len(job.units) else None
                    self.measured[f"engine/worker_{worker}/seconds"] += time.monotonic() - began
                    self.measured[f"engine/worker_{worker}/rollouts"] += len(trajectory)
                    self.changed.notify_all()
                    continue
                self.measured["engine/lost"] += 1
                self.away += 1
                unit.lost += 1
                self.waiting.appendleft(unit)
                self._wake_idle()
            if unit.lost >= MAX_LOST:
                check_head()  # with it, all workers are lost
                raise UserError(
                    f"engine ray: {unit.lost} workers were lost with the same prompts, the last one because: {why}; "
                    "if memory ran out, lower rollout_tokens or engine.prompts_per_unit"
                )
            if not self._started_again(worker):
                return
            with self.changed:
                self.away -= 1

    def _sample(self, worker: int, unit: _Unit) -> tuple[Trajectory | None, str]:
        """A unit's trajectory; or None, and why the worker was lost. A worker past its time limit is stopped."""
        ray, began, job = import_ray(), time.monotonic(), unit.job
        task = self.actors[worker].sample.remote(job.version, job.weights, job.units[unit.number])
        try:
            while not self.closed:
                ended = self._ended(task)
                if self.limit and time.monotonic() - began > self.limit:
                    ray.kill(self.actors[worker], no_restart=False)
                    return None, f"no result after {self.limit:g} seconds (engine.unit_timeout)"
                if ended:
                    return ray.get(task), ""
        except ray.exceptions.RayTaskError as error:
            raise cause(error) from error
        except ray.exceptions.RayActorError as error:
            return None, first_line(error)
        return None, "closed"

    def _started_again(self, worker: int) -> bool:
        """Wait for a lost worker; returns whether it came back.

        Raises UserError where it cannot, or not in time, and no other worker is left.
        """
        ray, since, why = import_ray(), time.monotonic(), "it did not start again in time"
        task = self.actors[worker].start.remote()
        while not self.closed:
            if self._ended(task):
                try:
                    ray.get(task)
                    return True
                except ray.exceptions.RayError as error:
                    why = first_line(error)
                    break
            if self.away == len(self.actors) and time.monotonic() - since > START:
                break
        if self.away == len(self.actors) and not self.closed:
            check_head()
            raise UserError(f"engine ray: no worker is left; the last one was lost because: {why}")
        return False

    def _ended(self, task: Any) -> bool:
        """Wait for a task, for POLL seconds at most. Raises ProcessLost where the head of the cluster is lost."""
        ready, _ = import_ray().wait([task], num_returns=1, timeout=POLL)
        if not ready and time.monotonic() > self.looked + HEAD:
            self.looked = time.monotonic()
            check_head()
        return bool(ready)
