"""The transformers model inside a MaskedDiffusionLM: how it is built, and what checkpoints hold beside weights."""

from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from torch import nn

from lfpo.base.errors import UserError
from lfpo.models.attention import NAME as ATTENTION
from lfpo.models.attention import FullPrecisionRope
from lfpo.models.experts import NAME as EXPERTS
from lfpo.models.experts import without_autocast
from lfpo.models.family import Family


def build_backbone(family: Family, config: dict[str, Any], where: object = "config.json") -> nn.Module:
    """The transformers model of a family's config.json on the meta device, bidirectional, with float32 RoPE (its
    inv_freq buffer holds real values, on the CPU).

    Raises UserError, beginning with `where`, for a missing field or a wrong value.
    """
    import transformers

    try:
        hf_config = family.hf_config(config)
        hf_config.is_causal = False  # read by transformers when it builds the mask from padding
        hf_config._attn_implementation = ATTENTION
        hf_config._experts_implementation = EXPERTS
        with torch.device("meta"):
            backbone: Any = getattr(transformers, family.architecture)(hf_config)
        # Checkpoints do not hold inv_freq: rebuild it in float32, outside of the meta device.
        backbone.model.rotary_emb = FullPrecisionRope(type(backbone.model.rotary_emb)(config=hf_config))
    except UserError as error:  # the family's, which does not know the file
        raise UserError(str(error).replace("config.json", str(where), 1)) from error
    except KeyError as error:
        raise UserError(f"{where}: field {error} is missing") from error
    except (StrictDataclassError, TypeError, ValueError, ArithmeticError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"{where}: a field has a wrong value ({reason})") from error
    without_autocast(backbone)
    return backbone


def saved_buffers(backbone: nn.Module) -> list[tuple[str, torch.Tensor]]:
    """Names and values of the buffers that checkpoints hold, such as the bias of a router. They are float32 in a model
    of any dtype, are not trained and not split."""
    return [(f"{path}.{name}", buffer) for path, _, name, buffer in placed_buffers(backbone)]


def placed_buffers(backbone: nn.Module) -> list[tuple[str, nn.Module, str, torch.Tensor]]:
    """`saved_buffers` as (path of the module, module, name in it, value)."""
    return [
        (path, module, name, buffer)
        for path, module in backbone.named_modules()
        for name, buffer in module._buffers.items()
        if buffer is not None and name not in module._non_persistent_buffers_set
    ]
