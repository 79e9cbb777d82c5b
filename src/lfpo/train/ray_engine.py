"""Rollouts by Ray workers beside the trainer, each with a model of its own.

Rank 0 of the trainer puts new weights into Ray's object store, hands out units of work one at a time, and sends every
rank its trajectories. Ray places the workers, moves the data and starts a worker again that died; its unit is sampled
again.
A unit always runs with the same shapes and its noise is a function of its seeds, so the result does not depend on
which worker ran it, or how often.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import os
import time
from collections import Counter, defaultdict, deque
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import torch

from lfpo.base import distributed
from lfpo.base.environment import versions
from lfpo.base.errors import UserError
from lfpo.models import MaskedDiffusionLM
from lfpo.models.lora import factors
from lfpo.models.placement import narrow_matrices
from lfpo.models.roles import CURRENT, OLD
from lfpo.rollout.denoise import Finished
from lfpo.rollout.engine import GIVES, Request, run_unit, shifted
from lfpo.rollout.trajectory import Trajectory, join
from lfpo.train.config import LFPOConfig
from lfpo.train.engines import ready_to_sample
from lfpo.train.setup import load_policies

MAX_LOST = 3  # workers that may be lost with the same unit
START = 1800.0  # seconds for all workers to load their models

# Name -> (bytes, dtype, shape). numpy arrays of bytes go through Ray's object store without copies.
Weights = dict[str, tuple[Any, str, tuple[int, ...]]]


class RayEngine:
    """An engine (lfpo.rollout.engine.Engine) of `args.engine.workers` Ray actors. All ranks make it; rank 0 calls Ray.

    Raises UserError where Ray is missing, or its cluster has too few cores or GPUs, or another version of lfpo.
    """

    gives: Collection[str] = GIVES

    def __init__(self, args: LFPOConfig):
        self.args, self.settings, self.version = args, args.engine, 0
        self.pad_id, self.device = 0, distributed.device()
        self.weights: Any = None  # a reference to the newest weights in the object store
        self.measured: dict[str, float] = defaultdict(float)
        self.actors: list[Any] = []
        self.free: deque[int] = deque(range(args.engine.workers))
        self.away: dict[Any, tuple[int, float]] = {}  # Ray's reference to a lost worker's first answer -> worker, since
        self.began_ray = False
        distributed.together(lambda: self._start() if distributed.rank() == 0 else None)

    def update(self, version: int, policy: MaskedDiffusionLM) -> None:
        started = time.perf_counter()
        weights = weights_of(policy)  # a collective under FSDP
        self.version, self.pad_id = version, policy.pad_id
        if distributed.rank() == 0:
            self.weights = _ray().put(weights)
            self.measured["engine/weights_bytes"] = sum(value.nbytes for value, _, _ in weights.values())
            self.measured["engine/weights_seconds"] = time.perf_counter() - started

    def sample(self, request: Request, finished: Finished | None = None) -> Trajectory:
        own = self._on_all_ranks(request, finished)
        if distributed.rank() and finished is not None:
            finished(list(range(len(own))), own)
        return own.to(self.device)

    def idle(self) -> None:
        self._on_all_ranks(None, None)

    def _on_all_ranks(self, request: Request | None, finished: Finished | None) -> Any:
        """This rank's trajectories; None without a request."""
        requests = distributed.gather_to_first(request)
        parts: list[Trajectory | None] = []

        def run() -> None:
            if distributed.rank() == 0:
                parts.extend(self._run(requests, finished))

        distributed.together(run)
        return distributed.scatter_from_first(parts)

    def metrics(self) -> dict[str, float]:
        found, self.measured = dict(self.measured), defaultdict(float)
        return found

    def close(self) -> None:
        for actor in self.actors:
            _ray().kill(actor)
        self.actors, self.weights = [], None
        if self.began_ray:
            _ray().shutdown()
            self.began_ray = False

    def _start(self) -> None:
        ray, s = _ray(), self.settings
        if not ray.is_initialized():
            address = s.address or os.environ.get("RAY_ADDRESS")
            own: dict[str, Any] = {"num_cpus": max(os.cpu_count() or 1, s.workers * s.cpus_per_worker)}
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            try:
                ray.init(
                    address=address,
                    log_to_driver=False,
                    logging_level="ERROR",
                    **({} if address else {**own, "include_dashboard": False}),
                )
            except (ConnectionError, ValueError, RuntimeError) as error:
                raise UserError(f"engine ray: no cluster at {address!r} ({_first_line(error)})") from error
            self.began_ray = True
        found = ray.cluster_resources()
        for kind, each in (("CPU", s.cpus_per_worker), ("GPU", s.gpus_per_worker)):
            if s.workers * each > found.get(kind, 0):
                raise UserError(
                    f"engine ray: {s.workers} workers with {each:g} {kind}s each need {s.workers * each:g}, and "
                    f"the cluster has {found.get(kind, 0):g}; lower engine.workers, or add machines"
                )
        # A call waits for a worker that is being started again; `sample` does not, and fails at once.
        ray.method(max_task_retries=-1)(Worker.start)
        actor = ray.remote(num_cpus=s.cpus_per_worker, num_gpus=s.gpus_per_worker, max_restarts=-1)(Worker)
        self.actors = [actor.remote(self.args) for _ in range(s.workers)]
        try:
            found = ray.get([a.start.remote() for a in self.actors], timeout=START)
        except ray.exceptions.RayTaskError as error:
            raise _cause(error) from error
        except (ray.exceptions.RayActorError, ray.exceptions.GetTimeoutError) as error:
            raise UserError(f"engine ray: a worker did not start ({_first_line(error)})") from error
        for theirs in found:
            if theirs != versions():
                raise UserError(f"engine ray: a worker has {theirs}, the trainer has {versions()}; install the same")

    def _run(self, requests: Sequence[Request | None], finished: Finished | None) -> list[Trajectory | None]:
        """The trajectories of each rank's request, None for none. finished: told about rank 0's."""
        size = self.settings.prompts_per_unit or 1
        units = [(r, unit) for r, request in enumerate(requests) if request for unit in request.units(size)]
        first = [sum(len(u.prompts) for r, u in units[:i] if r == 0) for i in range(len(units))]
        done: dict[int, Trajectory] = {}
        for i, trajectory in self._sampled([unit for _, unit in units]):
            done[i] = trajectory
            tell = shifted(finished, first[i]) if units[i][0] == 0 else None
            if tell is not None:
                tell(list(range(len(trajectory))), trajectory)
        of_ranks = [[done[i] for i, (r, _) in enumerate(units) if r == rank] for rank in range(len(requests))]
        return [join(parts, self.pad_id) if parts else None for parts in of_ranks]

    def _sampled(self, units: Sequence[Request]) -> Iterator[tuple[int, Trajectory]]:
        """(number, trajectory) of each unit, as they are finished. A unit whose worker is lost is sampled again."""
        waiting, lost = deque(range(len(units))), Counter[int]()
        running: dict[Any, _Running] = {}
        self.measured["engine/units"] += len(units)
        while waiting or running:
            while waiting and self.free:
                unit, worker = waiting.popleft(), self.free.popleft()
                task = self.actors[worker].sample.remote(self.version, self.weights, units[unit])
                running[task] = _Running(unit, worker, time.monotonic())
            ready, _ = _ray().wait([*running, *self.away], num_returns=1, timeout=1.0)
            self._welcome([task for task in ready if task in self.away], alone=not running)
            for task in [t for t in ready if t in running] or self._late(running):
                one = running.pop(task)
                trajectory, why = self._result(task, one)
                if trajectory is not None:
                    self.free.append(one.worker)
                    self.measured[f"engine/worker_{one.worker}/seconds"] += time.monotonic() - one.began
                    self.measured[f"engine/worker_{one.worker}/rollouts"] += len(trajectory)
                    yield one.unit, trajectory
                    continue
                self.measured["engine/lost"] += 1
                self.away[self.actors[one.worker].start.remote()] = one.worker, time.monotonic()
                waiting.appendleft(one.unit)
                lost[one.unit] += 1
                if lost[one.unit] == MAX_LOST:
                    raise UserError(
                        f"engine ray: {MAX_LOST} workers were lost with the same prompts, the last one because: {why}; "
                        "if memory ran out, lower rollout_tokens or engine.prompts_per_unit"
                    )

    def _result(self, task: Any, one: _Running) -> tuple[Trajectory | None, str]:
        """What a task returned; or None, and why its worker was lost. A worker past its time limit is stopped."""
        ray = _ray()
        try:
            if self._is_late(one):
                ray.kill(self.actors[one.worker], no_restart=False)
                return None, f"no result after {self.settings.unit_timeout:g} seconds (engine.unit_timeout)"
            return ray.get(task), ""
        except ray.exceptions.RayTaskError as error:
            raise _cause(error) from error
        except ray.exceptions.RayActorError as error:
            return None, _first_line(error)

    def _late(self, running: dict[Any, _Running]) -> list[Any]:
        return [task for task, one in running.items() if self._is_late(one)]

    def _is_late(self, one: _Running) -> bool:
        limit = self.settings.unit_timeout
        return bool(limit) and time.monotonic() - one.began > limit

    def _welcome(self, tasks: Sequence[Any], *, alone: bool) -> None:
        """Take back workers that were started again. alone: nothing else is running.

        Raises UserError where no worker is left, or none came back in time.
        """
        ray, why = _ray(), "it did not start again in time"
        for task in tasks:
            worker, _ = self.away.pop(task)
            try:
                ray.get(task)
                self.free.append(worker)
            except ray.exceptions.RayError as error:
                why = _first_line(error)
        late = all(time.monotonic() - since > START for _, since in self.away.values())
        if alone and not self.free and late:
            raise UserError(f"engine ray: no worker is left; the last one was lost because: {why}")


@dataclasses.dataclass(frozen=True)
class _Running:
    """A unit at a worker, both by number, and when it was handed out."""

    unit: int
    worker: int
    began: float


class Worker:
    """One model in a process of its own, with the weights that it sampled with last."""

    def __init__(self, args: LFPOConfig):
        self.args = dataclasses.replace(args, fsdp=False, fsdp_size=0, offload_reference=False)
        self.policy: MaskedDiffusionLM | None = None
        self.version = -1
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

    def sample(self, version: int, weights: Weights, unit: Request) -> Trajectory:
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
    return factors(policy) if policy.adapter else list(policy.backbone.named_parameters())


def weights_of(policy: MaskedDiffusionLM) -> Weights:
    """What training changes in a policy, on the CPU; the layers' matrices in bfloat16 where their products are. A
    collective where weights are split."""
    found: Weights = {}
    narrow = {n for n, _ in narrow_matrices(policy.backbone)} if policy.autocast and not policy.adapter else set()
    for name, parameter in _parameters(policy):
        tensor = distributed.whole(parameter.detach())
        if name in narrow:
            tensor = tensor.to(torch.bfloat16)
        if distributed.rank() == 0:
            flat = tensor.cpu().contiguous().view(-1)
            found[name] = (
                flat.view(torch.uint8).numpy(),
                str(tensor.dtype).removeprefix("torch."),
                tuple(tensor.shape),
            )
    return found


@torch.no_grad()
def set_weights(policy: MaskedDiffusionLM, weights: Weights) -> None:
    """Copy weights made by `weights_of` into a policy's parameters, in place."""
    for name, parameter in _parameters(policy):
        value, dtype, shape = weights[name]
        parameter.copy_(torch.from_numpy(value.copy()).view(getattr(torch, dtype)).view(shape))


def _ray() -> Any:
    if importlib.util.find_spec("ray") is None:
        raise UserError("engine ray: Ray is not installed; pip install 'lfpo[ray]', or leave out engine")
    import ray

    return ray


def _cause(error: Any) -> BaseException:
    """What a worker raised."""
    return error.cause if isinstance(error.cause, UserError) else error


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
