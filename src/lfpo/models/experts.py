"""The experts and routers of a mixture of experts, as transformers' models call them.

Routers compute in float32, so that autocast does not change which experts are chosen. Experts compute in the dtype of
the other layers: products of each expert's tokens with its matrix, in one call, and with the factors of its adapter.
"""

import functools
from typing import Any

import torch
from torch.nn import functional as F
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

from lfpo.core.attention import product_dtype
from lfpo.models.narrow_products import matmul

NAME = "lfpo_experts"
MATRICES = ("mlp.experts.gate_up_proj", "mlp.experts.down_proj")  # as peft's target_parameters
ALIGNED = 8  # rows of a matrix, in numbers, that the GPU's grouped product takes


def routers(backbone: Any) -> list[Any]:
    """The routers of a backbone, in the order of its layers: none in a model without experts."""
    return [layer.mlp.gate if hasattr(layer.mlp, "experts") else layer.router for layer in mixtures(backbone)]


def mixtures(backbone: Any) -> list[Any]:
    """The layers with experts, in order. They stand in its `mlp`, or beside that (DiffusionGemma)."""
    return [layer for layer in backbone.model.layers if hasattr(layer.mlp, "experts") or hasattr(layer, "experts")]


def experts_of(layer: Any) -> Any:
    return layer.mlp.experts if hasattr(layer.mlp, "experts") else layer.experts


def is_expert(name: str) -> bool:
    """Whether a parameter holds the matrices of a layer's experts. name: without an adapter."""
    return ".experts." in name


def active_weights(backbone: Any, name: str, count: int) -> float:
    """How many of the `count` weights of a parameter (its name without an adapter) a token uses: of the experts'
    matrices those of the chosen experts."""
    if not is_expert(name):
        return count
    (experts, *_), config = map(experts_of, mixtures(backbone)), backbone.config
    chosen = config.num_experts_per_tok if hasattr(config, "num_experts_per_tok") else config.top_k_experts
    return count * chosen / base_layer(experts).num_experts


def without_autocast(backbone: object) -> None:
    for router in routers(backbone):
        # A partial, not a bound function: a deep copy of the module then refers to its own copy.
        router.forward = functools.partial(_route, router)


def _route(router: Any, hidden: torch.Tensor) -> Any:
    with torch.autocast(hidden.device.type, enabled=False):
        return type(router).forward(router, hidden.to(next(router.parameters()).dtype))


def grouped_experts(
    module: Any, hidden_TD: torch.Tensor, expert_TK: torch.Tensor, weight_TK: torch.Tensor
) -> torch.Tensor:
    """The sum of each token's K experts, weighted (weight_TK: float32), [T, D] in the dtype of `hidden_TD`.

    module: transformers' experts with the parameters gate_up_proj [E, 2 I, D] and down_proj [E, D, I].
    """
    (tokens, chosen), experts = expert_TK.shape, len(module.down_proj)
    expert_S, order_S = expert_TK.flatten().sort(stable=True)  # S = T K pairs, those of an expert together
    ends_E = torch.searchsorted(expert_S, torch.arange(experts, device=expert_S.device), right=True).int()
    rows_SD = hidden_TD.to(product_dtype(module.down_proj))[order_S // chosen]
    gate, linear = _adapted(module, "gate_up_proj", rows_SD, ends_E).chunk(2, dim=-1)
    out_SD = _adapted(module, "down_proj", module.act_fn(gate) * linear, ends_E)
    out_SD = out_SD * weight_TK.flatten()[order_S, None]  # float32
    return out_SD[order_S.argsort()].view(tokens, chosen, -1).sum(1).to(hidden_TD.dtype)


def _adapted(module: object, name: str, rows_SD: torch.Tensor, ends_E: torch.Tensor) -> torch.Tensor:
    """`grouped_product` with a parameter of the experts, plus its active adapter, [S, O] in the dtype of the rows."""
    out_SO = grouped_product(rows_SD, getattr(module, name).to(rows_SD.dtype), ends_E)
    for wrapper in getattr(module, "adapters", ()):
        if wrapper.parameter_name == name and not wrapper.disable_adapters:
            (adapter,) = wrapper.active_adapters
            a_ERD, b_EOR = stacked_factors(wrapper, adapter)
            dtype = product_dtype(a_ERD)
            low_SR = grouped_product(rows_SD.to(dtype), a_ERD.to(dtype), ends_E)
            high_SO = grouped_product(low_SR, b_EOR.to(dtype).contiguous(), ends_E)
            out_SO = (out_SO + wrapper.scaling[adapter] * high_SO).to(rows_SD.dtype)
    return out_SO


def base_layer(module: Any) -> Any:
    """The layer that peft has wrapped; `module` itself where it has wrapped none."""
    return base_layer(module.base_layer) if hasattr(module, "base_layer") else module


def stacked_factors(wrapper: Any, adapter: str) -> tuple[torch.Tensor, torch.Tensor]:
    """A [E, r, inputs] and B [E, outputs, r] of the experts' matrices [E, outputs, inputs]. peft (0.20 and later) holds
    A as [E r, inputs] and B as [outputs, r E]."""
    a, b = wrapper.lora_A[adapter].weight, wrapper.lora_B[adapter].weight
    experts, rank = wrapper.num_experts, wrapper.r[adapter]
    return a.view(experts, rank, -1), b.view(-1, rank, experts).permute(2, 0, 1)


def without_sums(backbone: object) -> None:
    """Let experts that peft has wrapped compute with the factors of their adapters. peft's wrappers would add the
    factors' product to the matrices of all experts, at every forward."""
    for experts in map(experts_of, mixtures(backbone)):
        wrappers = [m for m in experts.modules() if hasattr(m, "base_layer")]
        for wrapper in wrappers:
            wrapper.forward = functools.partial(_run_base, wrapper)
        base_layer(experts).adapters = tuple(wrappers)


def _run_base(wrapper: Any, *args: object, **kwargs: object) -> Any:
    return wrapper.base_layer(*args, **kwargs)


def grouped_product(rows_SD: torch.Tensor, matrices_EOD: torch.Tensor, ends_E: torch.Tensor) -> torch.Tensor:
    """[S, O]: rows ends[e-1] .. ends[e] - 1 times the transpose of matrix e. ends_E: int32."""
    aligned = matrices_EOD.shape[1] % ALIGNED == 0 and matrices_EOD.shape[2] % ALIGNED == 0
    if rows_SD.is_cuda and rows_SD.dtype == torch.bfloat16 and aligned:
        return F.grouped_mm(rows_SD, matrices_EOD.transpose(-2, -1), offs=ends_E)
    return torch.ops.lfpo.grouped_product(rows_SD, matrices_EOD, ends_E)


# An operator of its own: tensors without data (`lfpo plan`) and torch.compile cannot enter the loop over experts.
@torch.library.custom_op("lfpo::grouped_product", mutates_args=())
def _product(rows_SD: torch.Tensor, matrices_EOD: torch.Tensor, ends_E: torch.Tensor) -> torch.Tensor:
    out_SO = rows_SD.new_empty(len(rows_SD), matrices_EOD.shape[1])
    for expert, group in _groups(ends_E):
        out_SO[group] = matmul(rows_SD[group], matrices_EOD[expert].T)
    return out_SO


@torch.library.custom_op("lfpo::grouped_product_gradient", mutates_args=())
def _gradient(
    grad_SO: torch.Tensor, rows_SD: torch.Tensor, matrices_EOD: torch.Tensor, ends_E: torch.Tensor
) -> torch.Tensor:
    grad_EOD = torch.zeros_like(matrices_EOD)
    for expert, group in _groups(ends_E):
        grad_EOD[expert] = matmul(grad_SO[group].T, rows_SD[group])
    return grad_EOD


def _groups(ends_E: torch.Tensor) -> list[tuple[int, slice]]:
    """The experts that have rows, and their rows."""
    ends = ends_E.tolist()
    return [(e, slice(a, b)) for e, (a, b) in enumerate(zip([0, *ends], ends, strict=False)) if b > a]


def _save(ctx: Any, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _backward(ctx: Any, grad_SO: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None, None]:
    rows_SD, matrices_EOD, ends_E = ctx.saved_tensors
    grad_SO, grad_SD, grad_EOD = grad_SO.contiguous(), None, None
    if ctx.needs_input_grad[0]:
        grad_SD = torch.ops.lfpo.grouped_product(grad_SO, matrices_EOD.transpose(1, 2), ends_E)
    if ctx.needs_input_grad[1]:
        grad_EOD = torch.ops.lfpo.grouped_product_gradient(grad_SO, rows_SD, matrices_EOD, ends_E)
    return grad_SD, grad_EOD, None


_product.register_fake(lambda rows, matrices, ends: rows.new_empty(len(rows), matrices.shape[1]))
_gradient.register_fake(lambda grad, rows, matrices, ends: torch.empty_like(matrices))
_product.register_autograd(_backward, setup_context=_save)

ALL_EXPERTS_FUNCTIONS.register(NAME, grouped_experts)
