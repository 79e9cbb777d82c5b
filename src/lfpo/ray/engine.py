"""Rollouts by Ray workers beside the trainer, each with a model of its own.

Rank 0 of the trainer puts new weights into Ray's object store, hands out units of work in threads beside training, and
sends every rank its trajectories. Ray places the workers, moves the data and starts a worker again that died; its unit
is sampled again. A unit always runs with the same shapes and its noise is a function of its seeds, so the result does
not depend on which worker ran it, or how often.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch

from lfpo.base import distributed
from lfpo.base.environment import versions
from lfpo.config.errors import UserError, first_line
from lfpo.config.json import Json
from lfpo.config.train import LFPOConfig
from lfpo.core import collectives, rank_tensors
from lfpo.core.denoise import Finished, Forwarded
from lfpo.core.engine import Request, Ticket, Version
from lfpo.core.model import CURRENT, OLD
from lfpo.core.trajectory import GIVES, Trajectory, join
from lfpo.models import MaskedDiffusionLM
from lfpo.models.placement import narrow_matrices
from lfpo.models.policies import load_policies, ready_to_sample
from lfpo.ray.cluster import LOOK, START, cause, check_head, connect, import_ray, leave, wait_for_start
from lfpo.rollout.local_engine import run_unit, units_of

# Name -> (bytes, dtype). numpy arrays of bytes go through Ray's object store without copies.
Weights = dict[str, tuple[Any, torch.dtype]]

MAX_LOST = 3  # workers that may be lost with the same unit
POLL = 0.5  # seconds after which a thread that waits for a task looks at the time, and at whether it is to end


@dataclasses.dataclass(eq=False)
class SamplingJob:
    """Units that are sampled with the same weights.

    weights: Ray's reference to them; it is dropped with the last unit, so the object store keeps them until then.
    ranks: the rank that asked for each unit. done: the trajectories so far, by the unit's number. lost: how many
    workers were lost with each unit.
    """

    version: Version
    weights: object
    units: Sequence[Request]
    ranks: Sequence[int] = ()
    done: dict[int, Trajectory] = dataclasses.field(default_factory=dict)
    lost: Counter[int] = dataclasses.field(default_factory=Counter)


class Dispatcher:
    """Units of submitted jobs, sampled by workers in the order of submission.

    Each worker has a thread while there are units, so that it gets its next one whatever the trainer does meanwhile. A
    unit whose worker is lost is sampled again, by whichever worker is free.
    actors: Ray's handles of the workers (Worker). unit_timeout: see EngineSettings.
    """

    def __init__(self, actors: Sequence[Any], unit_timeout: float):
        self.actors, self.limit = actors, unit_timeout
        self.waiting: deque[tuple[SamplingJob, int]] = deque()  # units by their numbers
        self.units_at_workers = 0  # units at workers
        self.lost_workers = 0  # workers that were lost and have not come back
        self.free_workers = set(range(len(actors)))  # workers without a thread
        self.measured: dict[str, float] = defaultdict(float)
        self.changed = threading.Condition()  # over all of the above, and `done` of jobs
        self.threads = ThreadPoolExecutor(max(1, len(actors)), "ray-units")
        self.serving: dict[int, Future[None]] = {}  # worker -> its thread, or the one it had last
        self.looked = time.monotonic()  # at the head of the cluster
        self.closed = False

    def submit(self, job: SamplingJob) -> SamplingJob:
        """Take the units of a job, and hand out as many as there are free workers."""
        with self.changed:
            self.waiting.extend((job, number) for number in range(len(job.units)))
            self.measured["engine/units"] += len(job.units)
            self._wake_free()
        return job

    def results(self, job: SamplingJob) -> Iterator[tuple[int, Trajectory]]:
        """(number, trajectory) of each unit of a job, as they are finished. Raises what ended a thread."""
        yielded: set[int] = set()
        while len(yielded) < len(job.units):
            with self.changed:
                new = [number for number in job.done if number not in yielded]
                if not new:
                    for thread in self.serving.values():
                        if thread.done():
                            thread.result()
                    self.changed.wait(1.0)
            for number in new:
                yielded.add(number)
                yield number, job.done[number]

    def metrics(self) -> dict[str, float]:
        """What was measured since the last call, and the units that are not sampled yet."""
        with self.changed:
            metrics, self.measured = dict(self.measured), defaultdict(float)
            return metrics | {"engine/units_open": float(len(self.waiting) + self.units_at_workers)}

    def close(self) -> None:
        """Drop all units, and wait for the threads."""
        with self.changed:
            self.closed = True
            self.waiting.clear()
        self.threads.shutdown()

    def _wake_free(self) -> None:
        for worker in sorted(self.free_workers)[: len(self.waiting)]:
            self.free_workers.remove(worker)
            self.serving[worker] = self.threads.submit(self._serve, worker)

    def _serve(self, worker: int) -> None:
        """Sample units with a worker until none waits, or the worker is lost for good. Raises UserError where MAX_LOST
        workers were lost with a unit, and where no worker is left."""
        while True:
            with self.changed:
                if not self.waiting:
                    self.free_workers.add(worker)
                    return
                job, number = self.waiting.popleft()
                self.units_at_workers += 1
            began = time.monotonic()
            trajectory, why = self._sample(worker, job, number)
            if self.closed:
                return
            with self.changed:
                self.units_at_workers -= 1
                if trajectory is not None:
                    job.done[number] = trajectory
                    job.weights = job.weights if len(job.done) < len(job.units) else None
                    self.measured[f"engine/worker_{worker}/seconds"] += time.monotonic() - began
                    self.measured[f"engine/worker_{worker}/rollouts"] += len(trajectory)
                    self.changed.notify_all()
                    continue
                self.measured["engine/lost"] += 1
                self.lost_workers += 1
                job.lost[number] += 1
                # In front: its iteration waits for it, and later ones can wait.
                self.waiting.appendleft((job, number))
                self._wake_free()
            if (lost := job.lost[number]) >= MAX_LOST:
                check_head()  # with it, all workers are lost
                raise UserError(
                    f"engine ray: {lost} workers were lost with the same prompts, the last one because: {why}; "
                    "if memory ran out, lower rollout_tokens or engine.prompts_per_unit"
                )
            if not self._started_again(worker):
                return
            with self.changed:
                self.lost_workers -= 1

    def _sample(self, worker: int, job: SamplingJob, number: int) -> tuple[Trajectory | None, str]:
        """A unit's trajectory; or None, and why the worker was lost. A worker past its time limit is stopped."""
        ray, began = import_ray(), time.monotonic()
        task = self.actors[worker].sample.remote(job.version, job.weights, job.units[number])
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
        """Wait for a lost worker; returns whether it came back. Raises UserError where it cannot, or not in time, and
        no other worker is left."""
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
            # While another worker samples, this one may take any time.
            if self.lost_workers == len(self.actors) and time.monotonic() - since > START:
                break
        if self.lost_workers == len(self.actors) and not self.closed:
            check_head()
            raise UserError(f"engine ray: no worker is left; the last one was lost because: {why}")
        return False

    def _ended(self, task: object) -> bool:
        """Wait for a task, for POLL seconds at most. Raises ProcessLost where the head of the cluster is lost."""
        ready, _ = import_ray().wait([task], num_returns=1, timeout=POLL)
        if not ready and time.monotonic() > self.looked + LOOK:
            self.looked = time.monotonic()
            check_head()
        return bool(ready)


class RayEngine:
    """An engine (lfpo.core.engine.Engine) of `args.engine.workers` Ray actors. All ranks make it; rank 0 calls Ray.
    Raises UserError where Ray is missing, or its cluster has too few cores or GPUs, or another version of lfpo."""

    gives: Collection[str] = GIVES
    forwarded: Forwarded | None = None  # workers run them; what comes back is whole units

    def __init__(self, args: LFPOConfig):
        self.args, self.settings = args, args.engine
        self.version: Version = 0
        self.pad_id, self.device = 0, collectives.device()
        self.weights: object = None  # a reference to the newest weights in the object store
        self.measured: dict[str, float] = {}
        self.actors: list[Any] = []
        self.began_ray = False
        collectives.on_every_rank(lambda: self._start() if collectives.rank() == 0 else None)
        self.dispatcher = Dispatcher(self.actors, args.engine.unit_timeout)

    def update(self, version: Version, policy: MaskedDiffusionLM) -> None:
        started = time.perf_counter()
        weights = weights_of(policy)  # a collective under FSDP
        self.version, self.pad_id = version, policy.pad_id
        if collectives.rank() == 0:
            check_head()
            self.weights = import_ray().put(weights)
            self.measured["engine/weights_bytes"] = sum(value.nbytes for value, _ in weights.values())
            self.measured["engine/weights_seconds"] = time.perf_counter() - started

    def submit(self, request: Request | None, finished: Finished | None = None) -> Ticket:
        requests, job = distributed.gather_to_first(request), None
        if collectives.rank() == 0:
            size = (self.settings.prompts_per_unit or 1) * self.args.num_generations
            cut = [(r, unit) for r, own in enumerate(requests) if own for unit in units_of(own, size)]
            units, ranks = [unit for _, unit in cut], [r for r, _ in cut]
            job = self.dispatcher.submit(SamplingJob(self.version, self.weights, units, ranks))
        return Ticket(self.version, job)

    def result(self, ticket: Ticket, finished: Finished | None = None) -> Trajectory:
        own = self._of_rank(ticket, finished)
        if collectives.rank() and finished is not None:
            finished(list(range(len(own))), own)
        return own.to(self.device)

    def sample(self, request: Request, finished: Finished | None = None) -> Trajectory:
        return self.result(self.submit(request), finished)

    def idle(self) -> None:
        self._of_rank(self.submit(None), None)

    def _of_rank(self, ticket: Ticket, finished: Finished | None) -> Any:
        """This rank's trajectories; None without a request."""
        parts: list[Trajectory | None] = []
        first = collectives.rank() == 0
        collectives.on_every_rank(lambda: parts.extend(self._of_ranks(ticket.work, finished)) if first else None)
        return distributed.scatter_from_first(parts)

    def _of_ranks(self, job: SamplingJob, finished: Finished | None) -> list[Trajectory | None]:
        """The trajectories of each rank's request, None for none. finished: told about rank 0's."""
        for i, trajectory in self.dispatcher.results(job):
            if finished is not None and job.ranks[i] == 0:  # whose units are the first ones
                start = sum(len(unit.prompts) for unit in job.units[:i])
                finished(list(range(start, start + len(trajectory))), trajectory)
        of_ranks: list[list[Trajectory]] = [[] for _ in range(collectives.world())]
        for i, rank in enumerate(job.ranks):
            of_ranks[rank].append(job.done[i])
        return [join(parts, self.pad_id) if parts else None for parts in of_ranks]

    def metrics(self) -> dict[str, float]:
        metrics, self.measured = self.measured | self.dispatcher.metrics(), {}
        if not self.settings.max_staleness or collectives.rank():
            del metrics["engine/units_open"]
        return metrics

    def close(self) -> None:
        self.dispatcher.close()
        for actor in self.actors:
            import_ray().kill(actor)
        self.actors, self.weights = [], None
        if self.began_ray:
            leave()
            self.began_ray = False

    def _start(self) -> None:
        ray, s = import_ray(), self.settings
        self.began_ray = connect(s)
        # A call waits for a worker that is being started again; `sample` does not, and fails at once.
        ray.method(max_task_retries=-1)(Worker.start)
        actor = ray.remote(num_cpus=s.cpus_per_worker, num_gpus=s.gpus_per_worker, max_restarts=-1)(Worker)
        self.actors = [actor.remote(self.args) for _ in range(s.workers)]
        wait_for_start([actor.start.remote() for actor in self.actors])


class Worker:
    """One model in a process of its own, with the weights that it sampled with last."""

    def __init__(self, args: LFPOConfig):
        alone: Json = {"fsdp": False, "fsdp_size": 0, "rollout_gather": "model", "offload_reference": False}
        self.args = dataclasses.replace(args, **alone, gradient_checkpointing=False)
        self.policy: MaskedDiffusionLM | None = None
        self.version: Version = -1
        self.ready = contextlib.ExitStack()

    def start(self) -> dict[str, str]:
        """Load the model; returns what is installed here."""
        torch.set_num_threads(self.args.engine.cpus_per_worker)
        lora = self.args.lora is not None
        policies, _ = load_policies(self.args, None, None, needs_base=False, needs_old=lora)
        self.policy = policies[OLD if lora else CURRENT]
        if self.policy.autocast and not lora and not self.args.rollout_compile:
            for _, matrix in narrow_matrices(self.policy.backbone):
                matrix.data = matrix.data.to(torch.bfloat16)  # the only copy, in the precision that products have
        return versions()

    def sample(self, version: Version, weights: Weights, unit: Request) -> Trajectory:
        """The trajectory of a unit, on the CPU, sampled with these weights."""
        if self.policy is None:
            self.start()
        assert self.policy is not None
        if version != self.version:
            self.ready.close()
            set_weights(self.policy, weights)
            self.model = self.ready.enter_context(ready_to_sample(self.policy, self.args))
            self.version = version
        tokens, compiled = self.args.rollout_tokens, self.args.rollout_compile
        return run_unit(self.model, unit, rollout_tokens=tokens, compiled=compiled).to("cpu")


def _parameters(policy: MaskedDiffusionLM) -> list[tuple[str, torch.nn.Parameter]]:
    """What training changes in a policy: the factors of its adapter, or all weights."""
    return policy.factors() if policy.adapter else list(policy.backbone.named_parameters())


def weights_of(policy: MaskedDiffusionLM) -> Weights:
    """What training changes in a policy, on the CPU; the layers' matrices in bfloat16 where their products are. A
    collective where weights are split."""
    weights: Weights = {}
    narrow = {n for n, _ in narrow_matrices(policy.backbone)} if policy.autocast and not policy.adapter else set()
    for name, parameter in _parameters(policy):
        tensor = rank_tensors.whole(parameter.detach())
        if name in narrow:
            tensor = tensor.to(torch.bfloat16)
        if collectives.rank() == 0:
            weights[name] = (tensor.cpu().contiguous().view(-1).view(torch.uint8).numpy(), tensor.dtype)
    return weights


@torch.no_grad()
def set_weights(policy: MaskedDiffusionLM, weights: Weights) -> None:
    """Copy weights made by `weights_of` into a policy's parameters, in place."""
    for name, parameter in _parameters(policy):
        value, dtype = weights[name]
        parameter.copy_(torch.from_numpy(value.copy()).view(dtype).view(parameter.shape))
