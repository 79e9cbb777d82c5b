"""The configuration of `lfpo plan`."""

from dataclasses import dataclass, fields
from typing import Annotated, Literal

from lfpo.config.build import build, merge, refusal
from lfpo.config.checks import Count, OneOf, Positive, check_ranges, refuse
from lfpo.config.errors import UserError, nearest
from lfpo.config.gpus import GPUS
from lfpo.config.json import Json
from lfpo.config.train import LFPOConfig


@dataclass
class PlanConfig:
    """Configuration of `lfpo plan`, beside the keys of the recipe (those of lfpo train)."""

    gpus: Count = 1
    """Ranks of torchrun, one for each GPU."""

    gpu: Annotated[str, OneOf(tuple(GPUS))] | None = None
    """The GPU by its name, such as rtx4090 or h100: memory and speed are those of lfpo.config.gpus (None: this
    machine's, or one for gpu_memory)."""

    gpu_memory: Positive | None = None
    """GiB of one GPU (None: those of `gpu`, else of this machine's GPU, else 80)."""

    prompt_length: Count | None = None
    """Tokens of a long prompt (None: of the longest in `data_file`, or that a task makes for the first iteration, where
    the model is a folder with its tokenizer; else 256)."""

    tflops: Positive | None = None
    """Speed of training's matrix products in 16 bits, in 10^12 FLOP/s (None: 0.4 of the peak of `gpu`, or of the
    fastest GPU with no more than gpu_memory; with neither, half of one large product's speed on this machine's GPU)."""

    tflops_float32: Positive | None = None
    """The same in float32 (None: as tflops)."""

    price_per_hour: Positive | None = None
    """Of one GPU, in any currency; adds the cost of each way."""

    gpus_per_machine: Count = 8
    """GPUs of one machine; more ranks take several machines."""

    device: Literal["cuda", "cpu"] = "cuda"
    """A CPU's chunks are smaller."""

    output: str | None = None
    """A JSON file to write the plan to."""

    def __post_init__(self) -> None:
        check_ranges(self)
        near, each = nearest(str(self.gpu), GPUS), self.gpus_per_machine
        refuse(
            (self.gpu and self.gpu not in GPUS, f"gpu {self.gpu!r} is not known (set gpu_memory and tflops){near}"),
            (
                self.gpus > each and self.gpus % each,
                f"gpus {self.gpus} is not a multiple of gpus_per_machine {each}",
            ),
        )


def configure(values: Json, overrides: Json, where: str = "lfpo plan") -> tuple[PlanConfig, LFPOConfig]:
    """The plan's own keys, which are taken out of `overrides`, and the recipe's.

    values: a recipe file's. overrides: the command line's. where: how errors begin.
    """
    plan_values = {name: overrides.pop(name) for name in list(overrides) if name in PlanConfig.__dataclass_fields__}
    known = [f.name for f in (*fields(LFPOConfig), *fields(PlanConfig))] + [*LFPOConfig.ALIASES]
    listed = "; `lfpo plan --help` and `lfpo train --help` list the keys"
    for problem in (refusal(name, LFPOConfig.REFUSED, known, listed) for name in overrides):
        if problem is not None:
            raise UserError(f"{where}: {problem}")
    recipe = merge({"output_dir": "runs/plan", **values}, overrides)
    return build(PlanConfig, plan_values, where), build(LFPOConfig, recipe, where)
