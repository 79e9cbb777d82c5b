"""Rollouts that are sampled before the iteration that learns from them (`engine.max_staleness`)."""

import dataclasses
import functools
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import cast

import torch
from safetensors.torch import load_file

from lfpo.base import distributed
from lfpo.config.build import build, to_dict
from lfpo.config.errors import UserError
from lfpo.config.files import read_json, write_json
from lfpo.config.json import Json
from lfpo.config.plugins import resolve
from lfpo.config.sampler import Sampler
from lfpo.config.train import LFPOConfig
from lfpo.core import collectives
from lfpo.core.batch import ScoredRollouts
from lfpo.core.completions import SpecialTokens, tensor_fields
from lfpo.core.denoise import Finished
from lfpo.core.engine import AsyncEngine, Engine, Request, Ticket
from lfpo.core.observer import Observer
from lfpo.core.rollouts import FreshRollouts
from lfpo.core.structure import Structure
from lfpo.core.trajectory import Trajectory, join
from lfpo.models.tensor_files import save_tensors

INDEX = "queue.json"


class RolloutQueue:
    """The batches of coming iterations. Batch i is sampled by version max(0, i - staleness) of the weights.

    Before iteration i its batch and the `staleness` next ones are submitted, as far as they are not yet; the weights
    are then version i, and a batch that was submitted before keeps its version. While iteration i learns, at most
    `staleness` further batches are in the queue. Batches are numbered by their iteration, counted from 0.

    No batch after the run's last iteration is sampled.
    engine: takes the requests. pad_id: of the model.
    """

    def __init__(self, engine: Engine, args: LFPOConfig, pad_id: int):
        self.staleness, self.args = args.engine.max_staleness, args
        self.generations, self.pad_id = args.num_generations, pad_id
        self.engine = cast(AsyncEngine, engine)
        self.tickets: dict[int, Ticket] = {}  # of all batches in the queue
        self.sampled: dict[int, Trajectory] = {}  # this rank's rollouts of those that the engine has given back

    def __len__(self) -> int:
        return len(self.tickets)

    def missing(self, iteration: int) -> list[int]:
        """The batches to submit before an iteration."""
        wanted = range(iteration, min(iteration + self.staleness + 1, self.args.max_steps))
        return [i for i in wanted if i not in self.tickets]

    def take(
        self, iteration: int, request_of: Callable[[int], Request], finished: Finished, observer: Observer
    ) -> tuple[Trajectory, float]:
        """This rank's rollouts of an iteration's batch, which stays in the queue, after missing batches were submitted;
        and the seconds that it waited for them. A collective.

        request_of: gives this rank's request of a batch. finished: called with rows as they are sampled.
        Raises UserError on all ranks where a checkpoint's rollouts are of other prompts.
        """
        request = request_of(iteration)
        for batch in self.missing(iteration):
            observer.begin("sampling", len(request.prompts), "rollouts")
            self.tickets[batch] = self.engine.submit(request if batch == iteration else request_of(batch), finished)
        observer.begin("waiting for rollouts", len(request.prompts), "rollouts")
        started = time.perf_counter()
        # A batch is there already where a checkpoint was written, which waits for all of them, or was loaded.
        if iteration not in self.sampled:
            self.sampled[iteration] = self.engine.result(self.tickets[iteration], finished)
        else:
            collectives.on_every_rank(lambda: _check_prompts(self.sampled[iteration], request, iteration))
        return self.sampled[iteration], time.perf_counter() - started

    def version(self, batch: int) -> int:
        """The version of the weights that a batch in the queue is sampled by."""
        version = self.tickets[batch].version
        assert isinstance(version, int)  # those with names are evaluated, and not queued
        return version

    def forget(self, batch: int) -> None:
        """Drop a batch that was learned from."""
        self.tickets.pop(batch, None)
        self.sampled.pop(batch, None)

    def save(self, folder: Path) -> None:
        """Write all rollouts in the queue, those of all ranks, into an existing folder. A collective; it waits for
        rollouts that are being sampled."""
        index = {}
        for batch in sorted(self.tickets):
            if batch not in self.sampled:
                self.sampled[batch] = self.engine.result(self.tickets[batch])
            own = self.sampled[batch]
            index[batch] = {
                "version": self.version(batch),
                "sampler": to_dict(own.sampler),
                "mask_id": own.mask_id,
                "eos_id": own.eos_id,
                "block_length": own.structure.block_length,
                "causal": own.structure.causal,
            }
            ranks = distributed.gather_to_first(own.to("cpu"))
            distributed.by_first(functools.partial(_write, ranks, self.pad_id, _file(folder, batch)))
        distributed.by_first(lambda: write_json(folder / INDEX, index))

    def load(self, folder: Path) -> None:
        """Read this rank's part of what `save` wrote; nothing where there is no such folder."""
        self.tickets, self.sampled = {}, {}
        if not folder.exists():
            return
        for number, entry in read_json(folder / INDEX).items():
            tensors = load_file(_file(folder, int(number)))
            joined = kind_of(tensors)(
                **tensors,
                sampler=build(Sampler, entry["sampler"], str(folder / INDEX)),
                special=SpecialTokens(entry["mask_id"], entry["eos_id"]),
                structure=Structure(entry["block_length"], causal=entry["causal"]),
            )
            # The number of ranks may have changed since the checkpoint, so each takes its share of all rollouts anew.
            prompts = collectives.own_indices(len(joined) // self.generations)
            if not prompts:
                raise _other_prompts(int(number))
            own = part(joined, prompts[0] * self.generations, len(prompts) * self.generations)
            self.tickets[int(number)] = Ticket(entry["version"], work=None)
            self.sampled[int(number)] = own.to(collectives.device())


@dataclasses.dataclass(frozen=True)
class Queued:
    """A source of rollouts that were sampled ahead, from an earlier theta_old. sampled: what says which prompts an
    iteration has, and scores their completions."""

    queue: RolloutQueue
    sampled: FreshRollouts

    def roll(self, iteration: int, observer: Observer) -> ScoredRollouts:
        inner = self.sampled
        # Weights are sent only for batches that are sampled with them.
        if self.queue.missing(iteration):
            inner.engine.update(iteration, inner.policy)
        inner.engine.forwarded = observer.forward
        started = time.perf_counter()
        rows, request = inner.request_of(iteration)

        def request_of(batch: int) -> Request:
            return request if batch == iteration else inner.request_of(batch)[1]

        trajectory, waited = self.queue.take(iteration, request_of, observer.finished, observer)
        version = self.queue.version(iteration)
        rolled = inner.scored(rows, request, trajectory, version, started, observer)
        ahead = {"engine/staleness": float(iteration - version), "engine/queue": float(len(self.queue) - 1)}
        times = {"time/waiting": waited, **rolled.times}
        return dataclasses.replace(rolled, metrics=ahead | rolled.metrics, times=times)


# A tensor that only trajectories of one kind have -> where their class is.
KINDS = {
    "edit_step": "lfpo.rollout.edits:EditedTrajectory",
    "canvases": "lfpo.contrib.canvases.trajectory:CanvasTrajectory",
    "predicted_at": "lfpo.contrib.kept:KeptTrajectory",
}


def kind_of(tensors: Collection[str]) -> type[Trajectory]:
    """The class of the trajectories that have tensors of these names."""
    for name, path in KINDS.items():
        if name in tensors:
            kind: type[Trajectory] = resolve(path, {}, kind="kind of trajectory")
            return kind
    return Trajectory


def _file(folder: Path, batch: int) -> Path:
    return folder / f"batch-{batch}.safetensors"


def _write(ranks: Sequence[Trajectory], pad_id: int, file: Path) -> None:
    tensors = tensor_fields(join(ranks, pad_id))
    save_tensors({name: value.contiguous() for name, value in tensors.items()}, file)


def _check_prompts(trajectory: Trajectory, request: Request, batch: int) -> None:
    """Raise UserError where rollouts are not of a request's prompts."""
    pairs = zip(trajectory.prompt_ids, trajectory.prompt_mask.bool(), strict=True)
    if [ids[mask].tolist() for ids, mask in pairs] != [list(ids) for ids in request.prompts]:
        raise _other_prompts(batch)


def _other_prompts(batch: int) -> UserError:
    return UserError(
        f"the checkpoint holds rollouts for iteration {batch + 1} of other prompts than this configuration draws; "
        "resume with the data, prompts_per_iteration, num_generations and seed that it was saved with"
    )


def part(joined: Trajectory, first: int, count: int) -> Trajectory:
    """Rows first .. first + count - 1 of trajectories that `join` made one, as they were before."""
    own = joined.rows(torch.arange(first, first + count, device=joined.tokens.device))
    # `join` padded prompts on the left, and edits on the right, to the longest of all ranks.
    width = int(own.prompt_mask.sum(-1).max())
    start = own.prompt_ids.shape[1] - width
    fields: Json = {"prompt_ids": own.prompt_ids[:, start:], "prompt_mask": own.prompt_mask[:, start:]}
    edits = int((own.with_edits("reveal_step")[:, own.tokens.shape[1] :] >= 0).sum(-1).max())
    fields |= {name: value[:, :edits] for name, value in tensor_fields(own).items() if name.startswith("edit_")}
    return dataclasses.replace(own, **fields)
