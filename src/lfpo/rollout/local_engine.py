"""The engine that samples in the trainer's own processes: lfpo.core.denoise, and what settings ask for beside it."""

import dataclasses
import functools
from collections.abc import Callable, Collection
from typing import Any

from lfpo.config.json import Json
from lfpo.core.denoise import Finished, Forwarded, denoise
from lfpo.core.engine import Request, Ticket, Version
from lfpo.core.hooks import Hook
from lfpo.core.model import MaskedDiffusionLM
from lfpo.core.rule import Rule
from lfpo.core.trajectory import GIVES, Trajectory, join
from lfpo.rollout.reveal import RULES
from lfpo.rollout.reveal.own import checked_rule
from lfpo.rollout.variants import OWN_RULES, check_context, variant


class LocalEngine:
    """Samples in this process; a request that is submitted is sampled at once.

    rollout_tokens, compiled: those of lfpo.rollout.sampling.rollout.
    rows_per_unit: of a unit of work (0: a request is one unit).
    run: samples a unit: `run_unit`, or what is called like it.
    """

    gives: Collection[str] = GIVES
    forwarded: Forwarded | None = None

    def __init__(
        self, run: Callable[..., Trajectory], *, rollout_tokens: int, compiled: bool = False, rows_per_unit: int = 0
    ):
        find_rule.cache_clear()  # a notebook may have loaded a rule's module again
        self.rows_per_unit, self.run = rows_per_unit, run
        self.rollout_tokens, self.compiled = rollout_tokens, compiled
        self.policy: MaskedDiffusionLM | None = None
        self.version: Version = 0

    def update(self, version: Version, policy: MaskedDiffusionLM) -> None:
        self.version, self.policy = version, policy

    def sample(self, request: Request, finished: Finished | None = None) -> Trajectory:
        assert self.policy is not None
        parts, units = list[Trajectory](), units_of(request, self.rows_per_unit)

        def of_unit(index: list[int], trajectory: Trajectory) -> None:
            assert finished is not None
            first = sum(map(len, parts))  # rows of earlier units
            finished([first + i for i in index], trajectory)

        options: Json = {"rollout_tokens": self.rollout_tokens, "compiled": self.compiled}
        options["finished"] = finished if finished is None or len(units) == 1 else of_unit
        options["forwarded"] = self.forwarded
        with self.policy.ready_to_sample() as model:
            for unit in units:
                parts.append(self.run(model, unit, **options))
        return parts[0] if len(parts) == 1 else join(parts, self.policy.pad_id)

    def submit(self, request: Request, finished: Finished | None = None) -> Ticket:
        return Ticket(self.version, self.sample(request, finished))

    def result(self, ticket: Ticket, finished: Finished | None = None) -> Trajectory:
        return ticket.work

    def idle(self) -> None:
        assert self.policy is not None
        with self.policy.ready_to_sample():
            pass

    def metrics(self) -> dict[str, float]:
        return {}

    def close(self) -> None:
        self.policy = None


def units_of(request: Request, rows: int) -> list[Request]:
    """A request cut into units of so many rows (0: one unit), in order; a multiple of its `generations`."""
    size = rows or max(1, len(request.prompts))
    cuts = [slice(i, i + size) for i in range(0, len(request.prompts), size)]
    return [dataclasses.replace(request, prompts=request.prompts[cut], seeds=request.seeds[cut]) for cut in cuts]


def run_unit(
    model: MaskedDiffusionLM, unit: Request, *, hook: Hook | None = None, store_blocks: bool = True, **options: Any
) -> Trajectory:
    """The trajectories of a request whose rows are sampled together and fit the model. options: further arguments
    of lfpo.rollout.sampling.rollout."""
    sampler = unit.sampler
    if model.own_rule is not None or sampler.rule_name in OWN_RULES:
        check_context(sampler, model)
        sampled: Trajectory = model.sample_unit(unit, hook=hook, **options)
        return sampled
    rule = find_rule(sampler.rule_name)
    # Plain denoising runs whole rows, and revealed tokens stay. Any of these needs another rule, forward or hook.
    special = hook, unit.variant, model.block_length, sampler.first_token, sampler.edits, sampler.cache != "none"
    options["rule"] = rule
    if any(special) or sampler.stops_at_confidence:
        options |= variant(model, unit, sampler, rule, hook, store_blocks=store_blocks)
    return denoise(model, unit.prompts, sampler, unit.seeds, **options)


@functools.cache
def find_rule(name: str) -> Rule:
    """The reveal rule of this name or dotted path (SamplerConfig.rule_name). Raises UserError as `checked_rule`."""
    return RULES.get(name) or checked_rule(name)
