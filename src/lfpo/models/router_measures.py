"""How evenly the routers of a mixture use its experts, measured during the passes of an update."""

import contextlib
import math
from collections.abc import Iterator
from typing import Any

import torch

from lfpo.core.measures import Measures, add_measures, sum_and_count
from lfpo.models.experts import base_layer, experts_of, mixtures, routers


@contextlib.contextmanager
def watched_routers(backbone: Any) -> Iterator[Measures]:
    """How evenly routers use the experts of a mixture: measures of the forwards with gradients in the block, padding
    counted.

    router/entropy: of a token's scores over the experts, as a share of the highest possible one, mean over tokens and
        layers. Near 0 the router always prefers the same experts for a token.
    router/max_load: tokens of a layer's busiest expert, divided by those that it had if all were used evenly, mean over
        layers and passes. 1 is even; E / k (experts, chosen ones) is one set of experts for all tokens.
    """
    measures: Measures = {}

    def look(router: Any, _: object, output: Any) -> None:
        if not torch.is_grad_enabled():
            return
        logits_TE = (output[0] if isinstance(output, tuple) else output).detach().float()
        sigmoid = hasattr(router, "e_score_correction_bias")
        scores_TE = logits_TE.sigmoid() if sigmoid else logits_TE.softmax(-1)
        share_TE = scores_TE / scores_TE.sum(-1, keepdim=True)
        entropy_T = torch.special.entr(share_TE).sum(-1) / math.log(share_TE.shape[1])
        add_measures(measures, {"router/entropy": sum_and_count(entropy_T)})

    def count(experts: Any, arguments: tuple[torch.Tensor, ...]) -> None:
        if torch.is_grad_enabled():
            chosen, total = arguments[1].flatten(), len(experts.gate_up_proj)
            busiest = torch.bincount(chosen, minlength=total).max() * total / len(chosen)
            add_measures(measures, {"router/max_load": sum_and_count(busiest[None])})

    hooks = [router.register_forward_hook(look) for router in routers(backbone)]
    hooks += [base_layer(experts_of(layer)).register_forward_pre_hook(count) for layer in mixtures(backbone)]
    try:
        yield measures
    finally:
        for hook in hooks:
            hook.remove()
