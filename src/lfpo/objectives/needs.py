"""What objectives need of rollouts, and whether a sampler, a model and an engine give it: checked at start."""

from collections.abc import Collection

import torch

from lfpo.config.errors import UserError
from lfpo.config.sampler import Sampler
from lfpo.config.train import LFPOConfig
from lfpo.core.objective import Objective
from lfpo.core.trajectory import GIVES

# What an objective may name in `needs` beside lfpo.core.trajectory.GIVES, and how an error calls it. A model that
# attends block by block predicts a block from itself and from the blocks before it, without masks.
NEEDS = {
    "masks": "masked tokens, at which its probabilities are defined",
    "full_attention": "a model with full attention",
    "masked_prompt": "a model with full attention, because it masks prompt tokens (p_mask_prompt 0 masks none)",
    "unedited": "tokens that stay as they were revealed (no sampler.editing_threshold)",
    "drawn": "tokens drawn at random (sampler.temperature above 0)",
    "unguided": "tokens drawn without guidance (sampler.cfg_scale 0)",
}


def check_rollouts(
    objective: Objective,
    sampler: Sampler,
    gives: Collection[str] | None = None,
    *,
    trained_block: int | None = None,
) -> None:
    """Raise UserError where an objective cannot learn from rollouts of a sampler, by its `needs` or `check_sampler`.
    One that needs reveal steps needs the edits too, if the sampler edits.

    sampler: with its lengths filled in. gives: what the engine's trajectories hold (None: not checked). trained_block:
    the block length of a model that attends block by block.
    """
    # What rollouts of these settings give; first of masks, or of a canvas with uniform noise.
    available = {"reveal_step", "confidence", "entropy", "masks", "variant", "edits" if sampler.edits else "unedited"}
    if sampler.rule_name == "canvas":
        available = {"reveal_step", "entropy", "drawn"}
    available |= {"drawn"} if sampler.temperature else set()
    available |= {"unguided"} if not sampler.cfg_scale else set()
    one_at_a_time = sampler.rule_name == "sequential" and sampler.steps == sampler.gen_length
    available |= {"left_to_right"} if one_at_a_time or sampler.block_length == 1 else set()
    if trained_block is None:
        available |= {"full_attention", "masked_prompt"}
    needs, called, name = objective.needs, GIVES | NEEDS, type(objective).__name__
    if sampler.edits and "reveal_step" in needs:
        needs |= {"edits"}
    # "masks" first: where they are missing, noise is uniform, which is the reason for what else is missing.
    for need in sorted((needs & called.keys()) - available, key=lambda need: (need != "masks", need)):
        cause = "which rollouts of this sampler do not give"
        if need == "masks":
            cause = "and where the rule is 'canvas' noise is uniform; take lfpo, unigrpo, agrpo, dtm or rejection"
        elif trained_block is not None and need not in ("unedited", "drawn", "unguided"):
            cause = f"and this model attends in blocks of {trained_block} tokens"
        raise UserError(f"objective {name} needs {called[need]}, {cause}")
    for need in sorted(needs - NEEDS.keys() - set(needs if gives is None else gives)):
        raise UserError(
            f"objective {name} needs {called.get(need, repr(need))}, which this engine does not give; take another "
            "engine or objective"
        )
    objective.check_sampler(sampler)


def samplers(
    args: LFPOConfig, gen_length: int, objective: Objective, block_length: int | None
) -> tuple[Sampler, dict[str, Sampler]]:
    """The rollouts' sampler and the evaluations' by name, with their lengths filled in.

    gen_length: the prompt source's default. block_length: the model's. Raises UserError where a length does not fit, or
    the objective cannot learn from such rollouts or from so few of them a prompt.
    """
    sampler = args.sampler.fitted("sampler", gen_length, block_length)
    length = sampler.gen_length
    evaluated = {name: s.fitted("sampler", length, block_length) for name, s in args.eval_samplers.items()}
    check_rollouts(objective, sampler, trained_block=block_length)
    separate = args.multi_objective_aggregation == "normalize_then_sum"
    if separate and not (objective.compares and "variant" not in objective.needs):
        raise UserError(
            f"multi_objective_aggregation normalize_then_sum adds each function's advantages within a group, and "
            f"objective {type(objective).__name__} takes none of whole rollouts; leave it out"
        )
    if args.environment is not None and (objective.whole_groups or "variant" in objective.needs):
        name = type(objective).__name__
        raise UserError(f"objective {name} needs rollouts of one row each, which an environment does not give")
    # Advantages within a group need several rollouts of a prompt: asked on rewards of 0, an objective says so now.
    group_R = torch.arange(args.prompts_per_iteration).repeat_interleave(args.num_generations)
    reward_R = torch.zeros(len(group_R), dtype=torch.float64)
    objective.signal(reward_R, group_R)
    return sampler, evaluated
