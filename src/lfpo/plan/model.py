"""A model without its weights: its config.json, its numbers of parameters, and the memory of a pass through it."""

import functools
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, ParamSpec, TypeVar

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lfpo.config.errors import UserError, first_line
from lfpo.config.files import user_path
from lfpo.config.json import Json
from lfpo.config.models import LoraSettings
from lfpo.models import MaskedDiffusionLM
from lfpo.models.experts import active_weights, is_expert
from lfpo.models.families import family_of
from lfpo.models.family import build_backbone
from lfpo.models.fsdp import tie
from lfpo.models.layouts import LAYOUTS, PUBLISHED, with_layers
from lfpo.models.loading import SHIPPED, read_config
from lfpo.models.lora import inject
from lfpo.models.policies import checkpoint_layers

P = ParamSpec("P")
R = TypeVar("R")
Kind = Literal["full", "checkpointed", "forward"]


@dataclass(frozen=True)
class Sizes:
    """Numbers of parameters."""

    layers: int
    active: int  # of the layers' those that a token uses, which are fewer in a mixture of experts
    experts: int  # in the experts' matrices
    layer: int  # the largest layer
    matrices: int  # all matrices of the layers
    matrix: int  # the largest of these
    dense: int  # the largest of them that is not of experts
    head: int  # 0 if it is tied to the embeddings
    outside: int  # head, embeddings and last norm, which FSDP leaves whole on every rank

    @property
    def total(self) -> int:
        return self.layers + self.outside


def model_config(name: str) -> Json:
    """The config.json of a layout, a folder, `embedded`, or a hub id; weights are not downloaded. Raises UserError
    where there is none."""
    if name in LAYOUTS or name in PUBLISHED:
        return LAYOUTS[PUBLISHED.get(name, name)]
    folder = SHIPPED.get(name, user_path(name))
    if folder.is_dir():
        return read_config(folder)[1]
    known = ", ".join(LAYOUTS)
    if name.count("/") != 1 or name.startswith((".", "/", "~")):
        raise UserError(f"model {name!r}: no such folder; give one, a hub id, or a layout: {known}")
    from huggingface_hub import hf_hub_download

    try:
        return read_config(Path(hf_hub_download(name, "config.json")).parent)[1]
    except (OSError, ValueError) as error:
        raise UserError(
            f"model {name!r}: its config.json could not be downloaded from the hub ({first_line(error)}); give a "
            f"folder that holds one, or a layout: {known}"
        ) from error


def skeleton(config: Json, *, layers: int | None = None, dtype: torch.dtype = torch.float32) -> MaskedDiffusionLM:
    """The model on the meta device, with `layers` layers (None: its own number)."""
    config = with_layers(config, layers)
    family = family_of(config, "config.json")
    backbone = build_backbone(family, config)
    tie(backbone)
    for p in backbone.parameters():
        p.data = p.data.to(dtype)
    return family.model(backbone, family, config, mask_id=0, eos_id=0, pad_id=0)


def by_value(function: Callable[P, R]) -> Callable[P, R]:
    """A cache for arguments that are equal where their repr is, such as the dict of a config.json."""
    results: dict[str, R] = {}

    @functools.wraps(function)
    def cached(*args: P.args, **kwargs: P.kwargs) -> R:
        key = repr((args, kwargs))
        if key not in results:
            results[key] = function(*args, **kwargs)
        return results[key]

    return cached


@by_value
def model_shape(config: Json) -> tuple[Sizes, MaskedDiffusionLM]:
    """Parameter counts of a config.json's model, and the model on the meta device."""
    model = skeleton(config)
    backbone, stack = model.backbone, model.backbone.model.layers
    counts = {f"layers.{name}": p.numel() for name, p in stack.named_parameters()}
    matrices = {name: p.numel() for name, p in stack.named_parameters(prefix="layers") if p.ndim >= 2}
    sizes = Sizes(
        layers=sum(counts.values()),
        active=int(sum(active_weights(backbone, name, count) for name, count in counts.items())),
        experts=sum(count for name, count in counts.items() if is_expert(name)),
        layer=max(sum(p.numel() for p in layer.parameters()) for layer in stack),
        matrices=sum(matrices.values()),
        matrix=max(matrices.values()),
        dense=max(count for name, count in matrices.items() if not is_expert(name)),
        head=0 if backbone.config.tie_word_embeddings else backbone.lm_head.weight.numel(),
        outside=sum(p.numel() for p in backbone.parameters()) - sum(counts.values()),
    )
    return sizes, model


@by_value
def adapter_size(config: Json, settings: LoraSettings) -> int:
    """The number of weights of one adapter. It grows linearly in the layers, unless they differ: in some models only
    some have experts."""
    full, sizes = model_shape(config)[1], []
    layers = full.backbone.config.num_hidden_layers
    for count in (layers,) if full.family.stacked or full.asks_about_all else (2, 3):
        model = skeleton(config, layers=count)
        inject(model, settings)
        sizes.append(sum(p.numel() for _, p in model.factors()))
    return sizes[0] + (layers - 2) * (sizes[-1] - sizes[0])


def activations(kind: Kind, config: Json, rows: int, *shape: Any) -> tuple[float, float]:
    """Bytes of the body beside weights and gradients, for `rows` rows: those that are held from the forward to the
    backward pass, and the most in both. They grow linearly in rows and layers, or in periods of layers that differ.

    kind: "full", forward and backward; "checkpointed", the same with gradient checkpointing; "forward", a forward
    without gradients. shape: tokens of a row, dtype of the weights, LoRA settings or None, and whether under autocast.
    """
    few, more = _of_small_runs(kind, config, *shape).unbind(1)
    counts, layers = layer_counts(config), model_shape(config)[1].backbone.config.num_hidden_layers
    one_row, two_rows = few + (layers - counts[0]) / (counts[1] - counts[0]) * (more - few)
    held, peak = (one_row + (rows - 1) * (two_rows - one_row)).tolist()
    return held, peak


def layer_counts(config: Json) -> tuple[int, int]:
    """The numbers of layers of two small models: 2 and 3, for the input of the first layer is kept in any case. Where
    layers of several kinds follow each other, one and two of their periods."""
    kinds = getattr(model_shape(config)[1].backbone.config, "layer_types", None) or []
    period = kinds.index("full_attention") + 1 if "full_attention" in kinds else 1
    return (2, 3) if period == 1 else (period, 2 * period)


@by_value
def _of_small_runs(
    kind: Kind, config: Json, length: int, dtype: torch.dtype, lora: LoraSettings | None, autocast: bool
) -> torch.Tensor:
    """[rows 1 and 2, numbers of layers as in `layer_counts`, (held, peak)], float64, measured by the training code
    itself on fake tensors, which allocate nothing. All tokens count as noised."""
    # Small numbers, which are quick: `activations` draws its line in rows and layers through them.
    counts = layer_counts(config)
    model = skeleton(config, layers=counts[1], dtype=dtype)
    if lora is not None:
        inject(model, lora)
    if kind == "checkpointed":
        checkpoint_layers(model)
    model.autocast = autocast
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    with fake:
        model.backbone.to_empty(device="cpu")  # CPU kernels save the same tensors as a GPU's
    # Gradients of parameters are not activations: drop them, and do not compute the embedding's, which is large.
    for p in model.parameters():
        if p.requires_grad:
            p.register_post_accumulate_grad_hook(_drop_gradient)
    model.train()
    body = model.backbone.model
    body.embed_tokens.requires_grad_(False)
    measured, all_layers = torch.zeros(2, 2, 2, dtype=torch.float64), body.layers
    for rows in (1, 2):
        for number, layers in enumerate(counts):
            body.layers = all_layers[:layers]
            with fake:
                ids = torch.zeros(rows, length, dtype=torch.long)
                with _LiveBytes(model.parameters()) as live, torch.set_grad_enabled(kind != "forward"):
                    hidden = model.hidden_of_noised(ids)
                    held = live.now
                    if hidden.requires_grad:
                        hidden.backward(torch.empty_like(hidden))
            measured[rows - 1, number] = torch.tensor([held, live.peak])
    return measured


def _drop_gradient(parameter: torch.Tensor) -> None:
    parameter.grad = None


class _LiveBytes(TorchDispatchMode):
    """Counts the bytes of live storages that operations create, those of `excluded` tensors aside. now: at present.
    peak: the most so far."""

    def __init__(self, excluded: Any):
        super().__init__()
        self.now = self.peak = 0
        self.seen = weakref.WeakSet(p.untyped_storage() for p in excluded)

    def __torch_dispatch__(self, func: Any, types: object, args: Any = (), kwargs: Any = None) -> object:
        if func is torch.ops.prim.device.default:  # two thirds of all calls
            return torch.device("cpu")
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor) and tensor.untyped_storage() not in self.seen:
                storage = tensor.untyped_storage()
                self.seen.add(storage)
                self.now += storage.nbytes()
                self.peak = max(self.peak, self.now)
                weakref.finalize(storage, self._freed, storage.nbytes())
        return out

    def _freed(self, size: int) -> None:
        self.now -= size
