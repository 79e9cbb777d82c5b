"""The learning rate of a run that names none, and what a given one is compared with.

Sources of the table. 1.4 M parameters: measured, docs/comparison.md (train) and the recipes embedded and dpo. 135 M:
measured, docs/real-model.md: with rewards 2e-5, where 6e-5 lost what was learned; fine-tuning 3e-4. 8 B: published.
With rewards coupled-GRPO (arXiv 2506.20639) trains all weights at 1e-6, and d1 (arXiv 2504.12216) and SPG
(arXiv 2510.09541) adapters at 3e-6; LLaDA (arXiv 2502.09992) fine-tunes at 2.5e-5; VRPO is DARE's 5e-7. 0.6 B, and
preferences at 135 M: in between, not measured.
"""

import math
from dataclasses import replace
from typing import Any

from lfpo.models import MaskedDiffusionLM
from lfpo.models.four_bit import original_shape

PARAMETERS = (1.4e6, 135e6, 0.6e9, 8e9)
# Of all weights of models with so many PARAMETERS, by the command that trains.
RATES = {
    "train": (2e-4, 2e-5, 5e-6, 1e-6),
    "sft": (1e-3, 3e-4, 1e-4, 2.5e-5),
    "dpo": (3e-4, 2e-5, 5e-6, 5e-7),
}
OF_ADAPTER = 3  # times the rate of all weights of the same model
MUCH = 10  # times the usual rate, above which a line says so


def usual_rate(kind: str, parameters: int, *, adapter: bool) -> float:
    """The rate of the model in the table whose number of parameters is nearest, by its logarithm. kind: "train", "sft"
    or "dpo"."""
    distances = [abs(math.log(parameters / size)) for size in PARAMETERS]
    return RATES[kind][distances.index(min(distances))] * (OF_ADAPTER if adapter else 1)


def with_rate(args: Any, kind: str, model: MaskedDiffusionLM) -> tuple[Any, str]:
    """The configuration with the learning rate of the run, and a line about it."""
    parameters = sum(original_shape(p).numel() for p in model.parameters())
    usual = usual_rate(kind, parameters, adapter=args.lora is not None)
    what = f"{'an adapter of ' if args.lora is not None else ''}{parameters / 1e6:,.1f} M parameters"
    if args.learning_rate is None:
        return replace(args, learning_rate=usual), f"learning_rate {usual:g}, the usual one for {what}"
    line = f"learning_rate {args.learning_rate:g}"
    if args.learning_rate > MUCH * usual:
        line += f", {args.learning_rate / usual:.0f} times the usual {usual:g} for {what}: lower it if the reward falls"
    return args, line
