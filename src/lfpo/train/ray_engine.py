"""Rollouts by Ray workers beside the trainer, each with a model of its own.

Rank 0 of the trainer puts new weights into Ray's object store, hands out units of work (lfpo.train.ray_dispatch), and
sends every rank its trajectories. Ray places the workers, moves the data and starts a worker again that died; its unit
is sampled again. A unit always runs with the same shapes and its noise is a function of its seeds, so the result does
not depend on which worker ran it, or how often.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Collection
from typing import Any, NamedTuple

import torch

from lfpo.base import distributed
from lfpo.base.environment import versions
from lfpo.models import MaskedDiffusionLM
from lfpo.models.lora import factors
from lfpo.models.placement import narrow_matrices
from lfpo.models.roles import CURRENT, OLD
from lfpo.rollout.denoise import Finished
from lfpo.rollout.engine import GIVES, Request, Ticket, Version, run_unit
from lfpo.rollout.trajectory import Trajectory, join
from lfpo.train.config import LFPOConfig
from lfpo.train.engines import ready_to_sample
from lfpo.train.ray_cluster import check_head, connect, import_ray, wait_for_start
from lfpo.train.ray_dispatch import Dispatcher, Job
from lfpo.train.setup import load_policies

# Name -> (bytes, dtype, shape). numpy arrays of bytes go through Ray's object store without copies.
Weights = dict[str, tuple[Any, str, tuple[int, ...]]]


class RayEngine:
    """An engine (lfpo.rollout.engine.Engine) of `args.engine.workers` Ray actors. All ranks make it; rank 0 calls Ray.

    Raises UserError where Ray is missing, or its cluster has too few cores or GPUs, or another version of lfpo.
    """

    gives: Collection[str] = GIVES

    def __init__(self, args: LFPOConfig):
        self.args, self.settings = args, args.engine
        self.version: Version = 0
        self.pad_id, self.device = 0, distributed.device()
        self.weights: Any = None  # a reference to the newest weights in the object store
        self.measured: dict[str, float] = {}
        self.actors: list[Any] = []
        self.began_ray = False
        distributed.together(lambda: self._start() if distributed.rank() == 0 else None)
        self.dispatcher = Dispatcher(self.actors, args.engine.unit_timeout)

    def update(self, version: Version, policy: MaskedDiffusionLM) -> None:
        started = time.perf_counter()
        weights = weights_of(policy)  # a collective under FSDP
        self.version, self.pad_id = version, policy.pad_id
        if distributed.rank() == 0:
            check_head()
            self.weights = import_ray().put(weights)
            self.measured["engine/weights_bytes"] = sum(value.nbytes for value, _, _ in weights.values())
            self.measured["engine/weights_seconds"] = time.perf_counter() - started

    def submit(self, request: Request | None, finished: Finished | None = None) -> Ticket:
        requests, work = distributed.gather_to_first(request), None
        if distributed.rank() == 0:
            size = (self.settings.prompts_per_unit or 1) * self.args.num_generations
            units = [(r, unit) for r, asked in enumerate(requests) if asked for unit in asked.units(size)]
            job = self.dispatcher.submit(self.version, self.weights, [unit for _, unit in units])
            work = _Work(job, [r for r, _ in units])
        return Ticket(self.version, work)

    def result(self, ticket: Ticket, finished: Finished | None = None) -> Trajectory:
        own = self._of_rank(ticket, finished)
        if distributed.rank() and finished is not None:
            finished(list(range(len(own))), own)
        return own.to(self.device)

    def sample(self, request: Request, finished: Finished | None = None) -> Trajectory:
        return self.result(self.submit(request), finished)

    def idle(self) -> None:
        self._of_rank(self.submit(None), None)

    def _of_rank(self, ticket: Ticket, finished: Finished | None) -> Any:
        """This rank's trajectories; None without a request."""
        parts: list[Trajectory | None] = []
        first = distributed.rank() == 0
        distributed.together(lambda: parts.extend(self._of_ranks(ticket.work, finished)) if first else None)
        return distributed.scatter_from_first(parts)

    def _of_ranks(self, work: _Work, finished: Finished | None) -> list[Trajectory | None]:
        """The trajectories of each rank's request, None for none. finished: told about rank 0's."""
        units = work.job.units
        for i, trajectory in self.dispatcher.results(work.job):
            if finished is not None and work.rank_of[i] == 0:  # whose units are the first ones
                start = sum(len(unit.prompts) for unit in units[:i])
                finished(list(range(start, start + len(trajectory))), trajectory)
        of_ranks: list[list[Trajectory]] = [[] for _ in range(distributed.world())]
        for i, rank in enumerate(work.rank_of):
            of_ranks[rank].append(work.job.done[i])
        return [join(parts, self.pad_id) if parts else None for parts in of_ranks]

    def metrics(self) -> dict[str, float]:
        found, self.measured = self.measured | self.dispatcher.metrics(), {}
        if not self.settings.max_staleness or distributed.rank():
            del found["engine/units_open"]
        return found

    def close(self) -> None:
        self.dispatcher.close()
        for actor in self.actors:
            import_ray().kill(actor)
        self.actors, self.weights = [], None
        if self.began_ray:
            import_ray().shutdown()
            self.began_ray = False

    def _start(self) -> None:
        ray, s = import_ray(), self.settings
        self.began_ray = connect(s)
        # A call waits for a worker that is being started again; `sample` does not, and fails at once.
        ray.method(max_task_retries=-1)(Worker.start)
        actor = ray.remote(num_cpus=s.cpus_per_worker, num_gpus=s.gpus_per_worker, max_restarts=-1)(Worker)
        self.actors = [actor.remote(self.args) for _ in range(s.workers)]
        wait_for_start([actor.start.remote() for actor in self.actors])


class _Work(NamedTuple):
    """What rank 0 keeps of a request: its units as a job, and the rank of each unit."""

    job: Job
    rank_of: list[int]


class Worker:
    """One model in a process of its own, with the weights that it sampled with last."""

    def __init__(self, args: LFPOConfig):
        alone: dict[str, Any] = {"fsdp": False, "fsdp_size": 0, "rollout_gather": "model", "offload_reference": False}
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
            flat = tensor.cpu().contiguous().view(-1).view(torch.uint8)
            found[name] = (flat.numpy(), str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))
    return found


@torch.no_grad()
def set_weights(policy: MaskedDiffusionLM, weights: Weights) -> None:
    """Copy weights made by `weights_of` into a policy's parameters, in place."""
    for name, parameter in _parameters(policy):
        value, dtype, shape = weights[name]
        parameter.copy_(torch.from_numpy(value.copy()).view(getattr(torch, dtype)).view(shape))
