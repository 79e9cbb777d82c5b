"""The confidence stop (SamplerConfig.early_stop_threshold): a block is committed once all of it is confident."""

import dataclasses

import torch

from lfpo.core.rule import Proposal, Reveal, Rule


def stopping_early(rule: Rule) -> Rule:
    """The rule, but where each eligible position of a row is confident, all of them are revealed at the current step.
    What a forward reveals is then not known before it."""

    def reveal(step: Proposal) -> Reveal:
        chosen = rule.reveal(step)
        at_step = step.block_step if chosen.at_step is None else chosen.at_step
        # A new state is met first at the current step.
        confident = ((step.confidence >= step.sampler.early_stop_threshold) | ~step.eligible).all(-1)
        positions = torch.where(confident[:, None], step.eligible, chosen.positions)
        return chosen._replace(positions=positions, at_step=torch.where(confident, step.block_step, at_step))

    return dataclasses.replace(rule, reveal=reveal, plan=None)
