"""What `lfpo plan` counts of canvases."""

import dataclasses

import torch

from lfpo.config.sampler import Sampler
from lfpo.contrib.canvases.noise import with_noise
from lfpo.contrib.canvases.trajectory import CanvasTrajectory
from lfpo.core.completions import SpecialTokens
from lfpo.core.model import NO_TOKEN
from lfpo.core.trajectory import Trajectory
from lfpo.core.views import BlockViews, Views


def step_counts(sampler: Sampler) -> torch.Tensor:
    """Tokens that become final in each step of a canvas, int64: all in its last one."""
    counts = torch.zeros(sampler.canvas.max_denoising_steps, dtype=torch.long)
    counts[-1] = sampler.block_length
    return counts


def toy(trajectory: Trajectory) -> CanvasTrajectory:
    """A trajectory with these final tokens."""
    steps = trajectory.sampler.canvas.max_denoising_steps
    canvases = trajectory.tokens[:, None].expand(-1, steps, -1).int()
    accepted = torch.ones(canvases.shape, dtype=torch.bool)
    accepted[:, -1] = False
    plain = dataclasses.replace(trajectory, special=SpecialTokens(NO_TOKEN, trajectory.eos_id))
    return CanvasTrajectory(**vars(plain), canvases=canvases, accepted=accepted, entropies=torch.zeros(canvases.shape))


def noised(views: Views, seeds: list[int], vocab_size: int) -> tuple[Views, int]:
    """The views with noise, as a model without conditioning runs them; and how many theta_old runs once more, to
    condition them."""
    views = with_noise(views, seeds, 0, vocab_size)
    plain = {field.name: getattr(views, field.name) for field in dataclasses.fields(BlockViews)}
    return BlockViews(**plain), int((views.temperature > 0).any(-1).sum())
