"""FSDP2: splits a policy's weights, gradients and optimiser state over ranks.

Each layer is a unit of its own under one root, the body. In a forward or backward pass a unit is gathered when it is
needed, and its gradient is reduced as soon as it is complete; units of one root prefetch each other and overlap with
computation. Embeddings and head are split by hand: a lookup moves the vectors of tokens, not the whole table, and
losses read the head's weights directly (MaskedDiffusionLM.head_weight). LoRA factors, norms and biases stay whole;
`rank_tensors.sum_gradients` sums their gradients.

Rollouts and evaluation run on whole weights (`gathered`), or gather each layer for its forward (`gathered_by_layer`).
"""

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import torch
from torch import distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard, distribute_tensor

from lfpo.config.json import Json
from lfpo.core.collectives import local, sum_number
from lfpo.core.model import MaskedDiffusionLM, saved_buffers
from lfpo.core.rank_tensors import whole
from lfpo.models.experts import routers
from lfpo.models.placement import merged_adapter, narrow_matrices
from lfpo.models.tensor_files import own_rows, split_like


def shard(policy: MaskedDiffusionLM, mesh: DeviceMesh, *, cast: bool) -> None:
    """Split a policy's weights over the ranks of a mesh (distributed.mesh), in place, on the meta device too. Replaces
    parameters by DTensors, so adapters and optimiser are made afterwards. Sets `policy.unsplit` for `gathered`.

    cast: gather the layers' matrices in bfloat16, for a policy that always runs under autocast, which would cast them
        where they are used: half the traffic, and the same results. Their gradients are summed in float32.
    """
    # deepcopy's memo: in place of each parameter the copy gets an empty one, so it takes no memory.
    empty = {
        id(p): nn.Parameter(torch.empty_like(p, device="meta"), requires_grad=False)
        for p in policy.backbone.parameters()
    }
    policy.unsplit = (policy.frozen_copy(empty),)
    _split(policy.backbone, mesh, cast)
    _set_hooks(policy)


def _set_hooks(policy: MaskedDiffusionLM) -> None:
    body, head = policy.backbone.model, GatheredHead(policy.backbone)

    def after_pass() -> None:
        head.free()
        _forget_forwards(body)

    policy.gathered_head, policy.after_pass = head, after_pass


class GatheredHead:
    """The whole weights [V, D] of a split head, gathered when they are asked for, a collective, and held until `free`.
    Policies on one backbone share them."""

    def __init__(self, backbone: Any):
        self.backbone = backbone
        self.weights: torch.Tensor | None = None

    def __call__(self) -> torch.Tensor:
        if self.weights is None:
            self.weights = gather_head(self.backbone.lm_head.weight)
        return self.weights

    def free(self) -> None:
        self.weights = None


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


def _split(backbone: Any, mesh: DeviceMesh, cast: bool) -> None:
    # A unit is gathered in one dtype, and autocast leaves norms in float32. Embeddings are split below.
    ignored = {p for p in backbone.model.parameters() if p.ndim < 2} | {backbone.model.embed_tokens.weight}
    in_bfloat16 = MixedPrecisionPolicy(torch.bfloat16, reduce_dtype=torch.float32, cast_forward_inputs=False)
    for unit in (*backbone.model.layers, backbone.model):
        narrow = cast and unit in [*backbone.model.layers] and not routers(backbone)  # routers compute in float32
        fully_shard(
            unit,
            mesh=mesh,
            reshard_after_forward=True,  # else FSDP keeps the root gathered after a forward
            mp_policy=in_bfloat16 if narrow else MixedPrecisionPolicy(),
            ignored_params=ignored,
        )
    for module in backbone.modules():
        if isinstance(module, FSDPModule):
            # Sum gradients, do not average them: the loss is already divided by the normaliser of all ranks.
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
    embeddings = backbone.model.embed_tokens
    embeddings.weight = _split_rows(embeddings.weight, mesh)
    embeddings.forward = functools.partial(look_up, embeddings)
    if not tie(backbone):
        backbone.lm_head.weight = _split_rows(backbone.lm_head.weight, mesh)


def _split_rows(weight: nn.Parameter, mesh: DeviceMesh) -> nn.Parameter:
    rows = distribute_tensor(weight.detach(), mesh, [Replicate()] * (mesh.ndim - 1) + [Shard(0)], src_data_rank=None)
    own = rows.to_local().clone()  # not a view, which would keep all rows in memory
    return nn.Parameter(split_like(rows, own), requires_grad=weight.requires_grad)


def look_up(embeddings: nn.Embedding, input_ids: torch.Tensor) -> torch.Tensor:
    """Vectors [..., D] of tokens [...] from rows that are split over ranks: each rank looks up its own rows for the
    tokens of all, and the vectors go back to their ranks. A collective, and so is its backward pass; ranks may have
    different numbers of tokens."""
    weight: Any = embeddings.weight
    mesh, ids, replicated = weight.device_mesh, input_ids.flatten(), weight.placements[:-1]
    shards = mesh.get_group(mesh.ndim - 1)

    def change(x: torch.Tensor, old: Placement, new: Placement) -> torch.Tensor:
        """`x` as each rank of the shards has it under another placement."""
        moved = DTensor.from_local(x, mesh, [*replicated, old], run_check=False).redistribute(mesh, [*replicated, new])
        return moved.to_local()

    # All ranks' tokens to every rank, padded to one number; each answers for its rows, the others add zeros; the sum
    # goes back to where the tokens came from.
    most = torch.tensor(len(ids), device=ids.device)
    dist.all_reduce(most, dist.ReduceOp.MAX, group=shards)
    padded = nn.functional.pad(ids, (0, int(most) - len(ids)))
    rows = change(padded, Shard(0), Replicate()) - own_rows(weight).start
    # The redistribution sums the gradient over groups that hold the same rows.
    own = weight.redistribute(mesh, weight.placements).to_local(
        grad_placements=[*(Partial() for _ in replicated), Shard(0)]
    )
    here = (rows >= 0) & (rows < len(own))
    vectors = nn.functional.embedding(rows.where(here, 0), own) * here[:, None]
    return change(vectors, Partial(), Shard(0))[: len(ids)].view(*input_ids.shape, -1)


def tie(backbone: Any) -> bool:
    """Make the head the embeddings if the configuration says so; returns whether it does."""
    if backbone.config.tie_word_embeddings:
        backbone.lm_head.weight = backbone.model.embed_tokens.weight
    return bool(backbone.config.tie_word_embeddings)


def assign(backbone: Any, state: Json) -> None:
    """Replace parameters and buffers by tensors, those of split ones by this rank's rows; a head that is tied to the
    embeddings stays tied."""
    old = backbone.state_dict()
    for name, new in state.items():
        if isinstance(old.get(name), DTensor) and not isinstance(new, DTensor):
            state[name] = split_like(old[name], new.detach())
    backbone.load_state_dict(state, strict=False, assign=True)
    tie(backbone)


def frozen_copy(policy: MaskedDiffusionLM) -> MaskedDiffusionLM:
    """`MaskedDiffusionLM.frozen_copy` of a split policy: each rank copies its own rows."""
    (unsplit,) = policy.unsplit
    copied = unsplit.frozen_copy()
    copied.unsplit, copied.autocast, copied.head_precision = policy.unsplit, policy.autocast, policy.head_precision
    _split(copied.backbone, policy.backbone.lm_head.weight.device_mesh, policy.autocast)
    assign(copied.backbone, {name: local(value).clone() for name, value in policy.backbone.state_dict().items()})
    _set_hooks(copied)
    return copied.requires_grad_(False)


@contextlib.contextmanager
def gathered(policy: MaskedDiffusionLM, *, cast: bool, merge: bool = False) -> Iterator[MaskedDiffusionLM]:
    """The same policy with whole weights on every rank, for forwards without gradients; ranks may run different numbers
    of them. A collective. The copies are freed at the end.

    cast, merge: as in lfpo.models.placement.sampling.
    """
    (unsplit,) = policy.unsplit
    unsplit.adapter, unsplit.autocast, unsplit.head_precision = policy.adapter, policy.autocast, policy.head_precision
    empty = dict([*unsplit.backbone.named_parameters(), *saved_buffers(unsplit.backbone)])
    narrow = {name for name, _ in narrow_matrices(policy.backbone)} if cast else set()
    with contextlib.ExitStack() as stack:
        stack.callback(lambda: assign(unsplit.backbone, empty))
        if merge:
            stack.enter_context(merged_adapter(policy, unsplit, cast=cast))
        missing = {name for name, p in unsplit.backbone.named_parameters() if p.is_meta}
        state = dict(saved_buffers(policy.backbone))
        with torch.no_grad():
            for name, p in policy.backbone.named_parameters():
                if name in missing:
                    state[name] = whole(p.to(torch.bfloat16) if name in narrow else p).detach()
        assign(unsplit.backbone, state)
        del state
        yield unsplit


@contextlib.contextmanager
def gathered_by_layer(policy: MaskedDiffusionLM) -> Iterator[MaskedDiffusionLM]:
    """The same policy, for forwards without gradients that gather each layer before it runs and free it afterwards; the
    head is gathered once. Every forward is a collective, so ranks that have run all of theirs run along on one token
    until the last one has. A collective."""
    body = policy.backbone.model

    def announce(*_: object) -> None:
        _forget_forwards(body)
        sum_number(1.0)  # the ranks that have ended run along

    hook = body.register_forward_pre_hook(announce, prepend=True)
    try:
        _ = policy.head_weight
        yield policy
        hook.remove()
        with torch.no_grad():
            while sum_number(0.0):
                policy.hidden(torch.zeros((1, 1), dtype=torch.long, device=policy.device), structure=policy.structure)
    finally:
        hook.remove()
        assert policy.after_pass is not None
        policy.after_pass()


def _forget_forwards(root: nn.Module) -> None:
    """Clear FSDP's record of forwards, from which it tells what to prefetch in the backward pass. It clears the record
    itself at the end of a backward pass only, so that of a reference policy would grow for ever. These names are
    private (torch 2.11 to 2.13); in a version without them the record grows, by some bytes a layer and pass."""
    if not isinstance(root, FSDPModule):
        return
    order = getattr(getattr(root._get_fsdp_state(), "_comm_ctx", None), "post_forward_order", [])
    for group in order:
        group._post_forward_indices.clear()
    order.clear()
