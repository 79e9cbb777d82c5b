"""Hands units of work to Ray workers, one at a time each, in a thread of rank 0 beside training."""

from __future__ import annotations

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
HEAD = 5.0  # seconds between two looks at the head of the cluster, while no unit is finished
POLL = 0.1  # seconds after which the thread looks at units that were handed out meanwhile


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


@dataclasses.dataclass(frozen=True)
class _Running:
    """A unit at a worker, and when it was handed out."""

    unit: _Unit
    worker: int
    began: float


class Dispatcher:
    """Units of submitted jobs, sampled by workers in the order of submission.

    The thread runs while there are units, so that workers get their next one whatever the trainer does meanwhile. A
    unit whose worker is lost is sampled again, by whichever worker is free.
    actors: Ray's handles of the workers (lfpo.train.ray_engine.Worker). unit_timeout: see EngineSettings.
    """

    def __init__(self, actors: Sequence[Any], unit_timeout: float):
        self.actors, self.limit = actors, unit_timeout
        self.free: deque[int] = deque(range(len(actors)))
        self.away: dict[Any, tuple[int, float]] = {}  # Ray's reference to a lost worker's first answer -> worker, since
        self.waiting: deque[_Unit] = deque()
        self.running: dict[Any, _Running] = {}
        self.measured: dict[str, float] = defaultdict(float)
        self.changed = threading.Condition()  # over all of the above, and `done` of jobs
        self.threads = ThreadPoolExecutor(1, "ray-units")
        self.loop: Future[None] | None = None
        self.ending = False  # the loop has found nothing more to do

    def submit(self, version: Version, weights: Any, units: Sequence[Request]) -> Job:
        """Take the units of a job, and hand out as many as there are free workers."""
        job = Job(version, weights, units)
        with self.changed:
            self.waiting.extend(_Unit(job, number) for number in range(len(units)))
            self.measured["engine/units"] += len(units)
            self._hand_out()
            if self.loop is None or self.ending or self.loop.done():
                self.ending = False
                self.loop = self.threads.submit(self._run)
                self.loop.add_done_callback(lambda _: self._wake())
        return job

    def results(self, job: Job) -> Iterator[tuple[int, Trajectory]]:
        """(number, trajectory) of each unit of a job, as they are finished. Raises what ended the thread."""
        told: set[int] = set()
        while len(told) < len(job.units):
            with self.changed:
                new = [number for number in job.done if number not in told]
                if not new:
                    if self.loop is not None and self.loop.done():
                        self.loop.result()
                    self.changed.wait(1.0)
            for number in new:
                told.add(number)
                yield number, job.done[number]

    def metrics(self) -> dict[str, float]:
        """What was measured since the last call."""
        with self.changed:
            found, self.measured = dict(self.measured), defaultdict(float)
        return found

    def open_units(self) -> int:
        """Units that are not sampled yet."""
        with self.changed:
            return len(self.waiting) + len(self.running)

    def close(self) -> None:
        """Drop all units, and wait for the thread."""
        with self.changed:
            self.waiting.clear()
            self.running.clear()
        self.threads.shutdown()

    def _wake(self) -> None:
        with self.changed:
            self.changed.notify_all()

    def _hand_out(self) -> None:
        while self.waiting and self.free:
            unit, worker = self.waiting.popleft(), self.free.popleft()
            job = unit.job
            task = self.actors[worker].sample.remote(job.version, job.weights, job.units[unit.number])
            self.running[task] = _Running(unit, worker, time.monotonic())

    def _run(self) -> None:
        """Hand out units and take their results until there are none."""
        looked = time.monotonic()
        while True:
            with self.changed:
                self._hand_out()
                self.ending = not self.waiting and not self.running
                if self.ending:
                    return
                tasks, alone = [*self.running, *self.away], not self.running
            ready, _ = import_ray().wait(tasks, num_returns=1, timeout=POLL)
            if ready:
                looked = time.monotonic()
            elif time.monotonic() > looked + HEAD:
                check_head()
                looked = time.monotonic()
            self._welcome([task for task in ready if task in self.away], alone=alone)
            for task in [t for t in ready if t in self.running] or self._late():
                self._finish(task)

    def _finish(self, task: Any) -> None:
        """Take a unit's trajectory, or put the unit back where its worker was lost.

        Raises UserError where MAX_LOST workers were lost with it.
        """
        with self.changed:
            one = self.running.pop(task, None)
        if one is None:  # closed meanwhile
            return
        trajectory, why = self._result(task, one)
        with self.changed:
            if trajectory is not None:
                job = one.unit.job
                job.done[one.unit.number] = trajectory
                if len(job.done) == len(job.units):
                    job.weights = None
                self.free.append(one.worker)
                self.measured[f"engine/worker_{one.worker}/seconds"] += time.monotonic() - one.began
                self.measured[f"engine/worker_{one.worker}/rollouts"] += len(trajectory)
                self._hand_out()
                self.changed.notify_all()
                return
            self.measured["engine/lost"] += 1
            self.away[self.actors[one.worker].start.remote()] = one.worker, time.monotonic()
            self.waiting.appendleft(one.unit)
            one.unit.lost += 1
        if one.unit.lost >= MAX_LOST:
            check_head()  # with it, all workers are lost
            raise UserError(
                f"engine ray: {one.unit.lost} workers were lost with the same prompts, the last one because: {why}; "
                "if memory ran out, lower rollout_tokens or engine.prompts_per_unit"
            )

    def _result(self, task: Any, one: _Running) -> tuple[Trajectory | None, str]:
        """What a task returned; or None, and why its worker was lost. A worker past its time limit is stopped."""
        ray = import_ray()
        try:
            if self._is_late(one):
                ray.kill(self.actors[one.worker], no_restart=False)
                return None, f"no result after {self.limit:g} seconds (engine.unit_timeout)"
            return ray.get(task), ""
        except ray.exceptions.RayTaskError as error:
            raise cause(error) from error
        except ray.exceptions.RayActorError as error:
            return None, first_line(error)

    def _late(self) -> list[Any]:
        with self.changed:
            return [task for task, one in self.running.items() if self._is_late(one)]

    def _is_late(self, one: _Running) -> bool:
        return bool(self.limit) and time.monotonic() - one.began > self.limit

    def _welcome(self, tasks: Sequence[Any], *, alone: bool) -> None:
        """Take back workers that were started again. alone: nothing else is running.

        Raises UserError where no worker is left, or none came back in time.
        """
        ray, why = import_ray(), "it did not start again in time"
        for task in tasks:
            worker, _ = self.away.pop(task)
            try:
                ray.get(task)
            except ray.exceptions.RayError as error:
                why = first_line(error)
                continue
            with self.changed:
                self.free.append(worker)
        late = all(time.monotonic() - since > START for _, since in self.away.values())
        if alone and not self.free and late:
            check_head()
            raise UserError(f"engine ray: no worker is left; the last one was lost because: {why}")
