"""A model's shape without its weights, from a folder, the hub's config.json, or the name of a published layout."""

from __future__ import annotations

import functools
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from lfpo.base.errors import UserError
from lfpo.base.files import read_json
from lfpo.models import MaskedDiffusionLM
from lfpo.models.backbone import build_backbone
from lfpo.models.experts import active_weights, is_expert
from lfpo.models.layouts import LAYOUTS, with_layers
from lfpo.models.loading import SHIPPED, family_of
from lfpo.models.lora import factors, inject
from lfpo.models.settings import LoraSettings

# Published checkpoints of a known layout: a plan for them needs no network.
PUBLISHED = {
    "GSAI-ML/LLaDA-8B-Base": "llada-8b",
    "GSAI-ML/LLaDA-8B-Instruct": "llada-8b",
    "GSAI-ML/LLaDA-1.5": "llada-8b",
    "Dream-org/Dream-v0-Base-7B": "dream-7b",
    "Dream-org/Dream-v0-Instruct-7B": "dream-7b",
    "Dream-org/Dream-Coder-v0-Instruct-7B": "dream-7b",
    "apple/DiffuCoder-7B-Base": "dream-7b",
    "apple/DiffuCoder-7B-Instruct": "dream-7b",
    "apple/DiffuCoder-7B-cpGRPO": "dream-7b",
    "inclusionAI/LLaDA-MoE-7B-A1B-Base": "llada-moe-7b",
    "inclusionAI/LLaDA-MoE-7B-A1B-Instruct": "llada-moe-7b",
    "inclusionAI/LLaDA2.0-mini": "llada2-mini",
    "inclusionAI/LLaDA2.1-mini": "llada2-mini",
    "JetLM/SDAR-1.7B-Chat": "sdar-1.7b",
    "JetLM/SDAR-4B-Chat": "sdar-4b",
    "JetLM/SDAR-8B-Chat": "sdar-8b",
    "JetLM/SDAR-30B-A3B-Chat": "sdar-30b-a3b",
}


@dataclass(frozen=True)
class Sizes:
    """Numbers of parameters. layers: all layers. active: those of the layers that a token uses, which are fewer in a
    mixture of experts. experts: those of the experts' matrices. layer: the largest layer. matrices: all matrices of the
    layers. matrix: the largest of these. head: the head, 0 if it is tied to the embeddings. rest: embeddings and the
    last norm."""

    layers: int
    active: int
    experts: int
    layer: int
    matrices: int
    matrix: int
    head: int
    rest: int

    @property
    def outside(self) -> int:
        """Parameters that FSDP leaves whole on every rank."""
        return self.head + self.rest

    @property
    def total(self) -> int:
        return self.layers + self.outside

    @property
    def total_active(self) -> int:
        """All parameters that a token uses."""
        return self.active + self.outside


def model_config(name: str) -> dict[str, Any]:
    """The config.json of a layout, a folder, `embedded`, or a hub id; weights are not downloaded.

    Raises UserError where there is none.
    """
    if name in LAYOUTS or name in PUBLISHED:
        return LAYOUTS[PUBLISHED.get(name, name)]
    folder = SHIPPED.get(name, Path(name).expanduser())
    if folder.is_dir():
        return read_json(folder / "config.json")
    if name.count("/") != 1 or name.startswith((".", "/", "~")):
        raise UserError(f"model {name!r}: no such folder; give one, a hub id, or a layout: {', '.join(LAYOUTS)}")
    from huggingface_hub import hf_hub_download

    try:
        return read_json(Path(hf_hub_download(name, "config.json")))
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(
            f"model {name!r}: its config.json could not be downloaded from the hub ({reason}); give a folder that "
            f"holds one, or a layout: {', '.join(LAYOUTS)}"
        ) from error


def skeleton(
    config: dict[str, Any], *, layers: int | None = None, dtype: torch.dtype = torch.float32
) -> MaskedDiffusionLM:
    """The model on the meta device, with `layers` layers (None: its own number)."""
    config = with_layers(config, layers)
    family = family_of(config, "config.json")
    backbone: Any = build_backbone(family, config)
    if backbone.config.tie_word_embeddings:
        backbone.lm_head.weight = backbone.model.embed_tokens.weight
    for p in backbone.parameters():
        p.data = p.data.to(dtype)
    return MaskedDiffusionLM(backbone, family, config, mask_id=0, eos_id=0, pad_id=0)


def sizes_of(model: MaskedDiffusionLM) -> Sizes:
    """Parameter counts of a model that is not split."""
    backbone = model.backbone
    stack = backbone.model.layers
    layers = sum(p.numel() for p in stack.parameters())
    active = sum(active_weights(backbone, f"layers.{name}", p.numel()) for name, p in stack.named_parameters())
    matrices = [p.numel() for p in stack.parameters() if p.ndim >= 2]
    tied = backbone.config.tie_word_embeddings
    head = 0 if tied else backbone.lm_head.weight.numel()
    total = sum(p.numel() for p in backbone.parameters())
    return Sizes(
        layers=layers,
        active=int(active),
        experts=sum(p.numel() for name, p in stack.named_parameters() if is_expert(f"layers.{name}")),
        layer=max(sum(p.numel() for p in layer.parameters()) for layer in stack),
        matrices=sum(matrices),
        matrix=max(matrices),
        head=head,
        rest=total - layers - head,
    )


def model_shape(config: dict[str, Any]) -> tuple[Sizes, Any, bool]:
    """Parameter counts, transformers configuration and logit shift of a config.json's model."""
    return _model_shape(json.dumps(config))


@functools.cache
def _model_shape(config: str) -> tuple[Sizes, Any, bool]:
    model = skeleton(json.loads(config))
    return sizes_of(model), model.backbone.config, model.family.shift


def adapter_size(config: dict[str, Any], settings: LoraSettings) -> int:
    """The number of weights of one adapter."""
    return _adapter_size(json.dumps(config), json.dumps(asdict(settings)))


@functools.cache
def _adapter_size(config: str, settings: str) -> int:
    two, three = (_adapter_of_layers(json.loads(config), n, LoraSettings(**json.loads(settings))) for n in (2, 3))
    layers = model_shape(json.loads(config))[1].num_hidden_layers
    return two + (layers - 2) * (three - two)  # the first layer of a mixture of experts may be without experts


def _adapter_of_layers(config: dict[str, Any], layers: int, settings: LoraSettings) -> int:
    model = skeleton(config, layers=layers)
    inject(model, settings)
    return sum(p.numel() for _, p in factors(model))
