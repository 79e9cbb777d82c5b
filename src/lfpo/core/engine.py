"""The seam between training and sampling: an engine turns prompts into trajectories. What each is, and no code:
lfpo.rollout.local_engine runs the model in this process."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from lfpo.config.json import Json
from lfpo.config.sampler import Sampler
from lfpo.core.denoise import Finished, Forwarded
from lfpo.core.model import MaskedDiffusionLM
from lfpo.core.trajectory import Trajectory

Version = int | str  # theta_old's: the iterations that it was trained for; evaluated weights have another name


@dataclass(frozen=True)
class Request:
    """Completions to sample, one for each of B rows.

    prompts: B lists of token ids; each prompt stands in `generations` rows, which follow each other.
    seeds: B integers; the noise of row i is a function of seeds[i].
    sampler: with its lengths filled in.
    variant: another way to denoise: gives the arguments of lfpo.core.denoise.denoise, of the model, the unit of rows
        that are denoised together, and the plain arguments. None: the plain way. An engine that can takes "variant"
        among what it `gives`; one with workers elsewhere pickles it.
    """

    prompts: Sequence[Sequence[int]]
    seeds: Sequence[int]
    sampler: Sampler
    generations: int = 1
    variant: Variant | None = None


# (model, unit, arguments of denoise) -> arguments of denoise
Variant = Callable[[MaskedDiffusionLM, Request, Json], Json]


class Engine(Protocol):
    """Samples rollouts; docs/engines.md says what an engine must keep to. All methods but the last two are collectives.

    gives: what its trajectories hold beside tokens, names of lfpo.core.trajectory.GIVES. version: of the weights that
    it samples with.
    forwarded: set by who waits for rows; called after each forward with its rows, by an engine that runs them itself.
    """

    gives: Collection[str]
    version: Version
    forwarded: Forwarded | None

    def update(self, version: Version, policy: MaskedDiffusionLM) -> None:
        """From here on sample from `policy`, whose weights are called `version`."""

    def sample(self, request: Request, finished: Finished | None = None) -> Trajectory:
        """This rank's trajectories, in the order of the request's rows, on the policy's device.

        finished: called with rows as they are finished: their indices and their trajectory.
        """
        ...

    def idle(self) -> None:
        """Take part in a `sample` of other ranks when this rank has no rows."""

    def metrics(self) -> dict[str, float]:
        """What it measured since the last call, under names that begin with `engine/`."""
        ...

    def close(self) -> None:
        """Give back what it holds beside this process."""


class Ticket(NamedTuple):
    """A request that an engine took. version: of the weights that sample it. work: the engine's own."""

    version: Version
    work: Any


class AsyncEngine(Engine, Protocol):
    """An engine that takes requests before their trajectories are asked for, as `engine.max_staleness` needs.

    A request is sampled with the weights that the engine has when it takes it, however many versions follow.
    """

    def submit(self, request: Request, finished: Finished | None = None) -> Ticket:
        """Take a request. A collective. finished: called with the rows that are finished before this returns."""
        ...

    def result(self, ticket: Ticket, finished: Finished | None = None) -> Trajectory:
        """What `sample` would have returned for the request; asked for once. A collective. finished: called with the
        rows that `submit` did not tell about."""
        ...
