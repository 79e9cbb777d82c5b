"""The head's weights where they are split over ranks."""

import torch
from torch.distributed.tensor import DTensor, Partial

from lfpo.core.collectives import whole


def gather_head(weight: DTensor) -> torch.Tensor:
    """The whole weights [V, D] as a leaf of autograd. A collective, and so is the backward pass through it: as soon as
    the gradient [V, D] is complete, it is summed over the ranks, added to `weight.grad` and freed."""
    gathered = whole(weight).detach().requires_grad_(weight.requires_grad)

    def reduce(leaf: torch.Tensor) -> None:
        assert leaf.grad is not None
        mesh = weight.device_mesh
        summand = DTensor.from_local(leaf.grad, mesh, [Partial()] * mesh.ndim, run_check=False)
        leaf.grad = None
        own = summand.redistribute(placements=weight.placements)
        weight.grad = own if weight.grad is None else weight.grad + own

    if weight.requires_grad:
        gathered.register_post_accumulate_grad_hook(reduce)
    return gathered
