"""Rollouts in this process: one call, or an engine, from settings or of a model as it is."""

from collections.abc import Callable, Sequence

from lfpo.config.errors import UserError
from lfpo.config.sampler import DEFAULT_LENGTH, SamplerConfig
from lfpo.config.train import LFPOConfig
from lfpo.core.denoise import Finished, Forwarded
from lfpo.core.encoding import misfit
from lfpo.core.engine import Request, Variant
from lfpo.core.hooks import Hook
from lfpo.core.model import MaskedDiffusionLM
from lfpo.core.trajectory import Trajectory
from lfpo.rollout.local_engine import LocalEngine, run_unit
from lfpo.rollout.variants import check_context


def rollout(
    model: MaskedDiffusionLM,
    prompts: Sequence[Sequence[int]],
    sampler: SamplerConfig,
    seeds: Sequence[int],
    *,
    rollout_tokens: int = 16384,
    hook: Hook | None = None,
    finished: Finished | None = None,
    forwarded: Forwarded | None = None,
    compiled: bool = False,
    variant: Variant | None = None,
    store_blocks: bool = True,
) -> Trajectory:
    """Denoise one completion for each of B prompts.

    prompts: B lists of token ids, of any lengths.
    seeds: B integers; row i's noise is a function of seeds[i].
    rollout_tokens: tokens of one forward, so rows x length run at once. With a cache a row's forward is its window,
        and keys and values of at most CACHED times rollout_tokens are held (see lfpo.rollout.cached). It bounds memory
        and never changes a result beyond rounding.
    hook: called after each forward, before the rows change (see lfpo.core.hooks.Hook).
    finished: called with rows as they are finished: their indices, ascending, and their trajectory.
    forwarded: called after each forward with the number of its rows, long before the first of them is finished.
    compiled: run forwards through torch.compile, padded to few shapes. Worth it on a GPU and in long runs.
    store_blocks: a model that attends block by block computes a block against the stored keys and values of the blocks
        before it, which is exact. False computes whole rows, for measuring what that saves.
    variant: another way to denoise (see lfpo.core.engine.Request).

    Returns a trajectory of B rows in the order of the prompts, on the model's device; P is the longest prompt's length,
    C = sampler.gen_length (DEFAULT_LENGTH if None).
    Raises UserError where there are no prompts or one does not fit the model, and for a reveal rule that reveals
    nothing.
    """
    sampler = sampler.fitted("sampler", DEFAULT_LENGTH, model.block_length)
    check_context(sampler, model)
    if not prompts:
        raise UserError("no prompts to sample from; give at least one")
    for number, prompt in enumerate(prompts):
        if reason := misfit(prompt, model, sampler.gen_length):
            raise UserError(f"prompt {number}: {reason}")
    request = Request(prompts, seeds, sampler, variant=variant)
    limits = {"rollout_tokens": rollout_tokens, "compiled": compiled}
    observers = {"finished": finished, "forwarded": forwarded}
    return run_unit(model, request, hook=hook, store_blocks=store_blocks, **limits, **observers)


def local_engine(args: LFPOConfig, run: Callable[..., Trajectory] | None = None) -> LocalEngine:
    """Rollouts in the trainer's own processes. run: samples a unit of work (see LocalEngine)."""
    return LocalEngine(
        run or run_unit,
        rollout_tokens=args.rollout_tokens,
        compiled=args.rollout_compile,
        rows_per_unit=args.engine.prompts_per_unit * args.num_generations,
    )


def as_it_is(model: MaskedDiffusionLM, rollout_tokens: int = 16384) -> LocalEngine:
    """An engine that samples from a model in this process, without getting it ready."""
    engine = LocalEngine(run_unit, rollout_tokens=rollout_tokens)
    engine.update(0, model)
    return engine
