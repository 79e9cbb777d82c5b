"""AdamW as the settings ask for it. Moments take 8 bytes a parameter in float32 and about 2 in 8 bits, where each
block of 256 numbers shares a float32 scale (arXiv 2110.02861).
Functions raise UserError where bitsandbytes is missing or cannot serve.
"""

from typing import Any

import torch
from torch import nn

from lfpo.config.errors import UserError
from lfpo.models.four_bit import bitsandbytes


def build_adamw(model: nn.Module, args: Any) -> torch.optim.Optimizer:
    """AdamW over the trainable parameters; weight decay applies to matrices, not to norms and biases.

    args: a configuration with learning_rate, weight_decay, adam_beta1, adam_beta2, and optim: torch's fused AdamW, or
        bitsandbytes' with 8-bit moments, with moments that the driver moves to CPU memory when the GPU is full
        ("paged"), or with both.
    Raises UserError where bitsandbytes is missing, and for paging without a GPU.
    """
    trainable = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    # The order of groups numbers the parameters in checkpoints.
    groups = [
        {
            "params": [p for n, p in trainable if ("layers." in n) == in_layers and (p.ndim >= 2) == matrix],
            "weight_decay": args.weight_decay if matrix else 0.0,
        }
        for in_layers in (True, False)
        for matrix in (True, False)
    ]
    groups = [g for g in groups if g["params"]]
    optim, options = args.optim, {"lr": args.learning_rate, "betas": (args.adam_beta1, args.adam_beta2)}
    if optim == "adamw_torch":
        return torch.optim.AdamW(groups, **options, fused=True)
    paged = optim.startswith("paged")
    if paged and trainable[0][1].device.type != "cuda":
        raise UserError(f"optim {optim!r} needs a GPU, whose memory it pages; without a GPU take adamw_8bit")
    library = bitsandbytes(f"optim {optim!r}").optim
    return library.AdamW(groups, **options, optim_bits=8 if "8bit" in optim else 32, is_paged=paged)
