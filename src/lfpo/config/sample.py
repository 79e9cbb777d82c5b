"""The configurations of `lfpo sample` and `demo`, which are checked before torch is loaded."""

import itertools
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from lfpo.config.build import build, load_yaml, merge, read_arguments
from lfpo.config.checks import CountOrZero, check_ranges
from lfpo.config.sampler import SamplerConfig
from lfpo.config.train import LFPOConfig


@dataclass
class SampleConfig:
    """Configuration of `lfpo sample`.

    prompt: the prompt's text, \\n standing for a line break; or task: take a prompt from that task's test split.
    index: which prompt of the test split, from 0.
    model: checkpoint folder, hub id, or "embedded".
    dtype: of the weights: "float32", or "bfloat16" for large models.
    chat: apply the model's chat template.
    sampler: how the completion is denoised.
    show_steps: print the state after each step that revealed a token, at most 24 of them, evenly spread. Colours
        go from tokens revealed early to those revealed late.
    """

    prompt: str | None = None
    task: str | None = None
    index: CountOrZero = 0
    model: str = "embedded"
    dtype: Literal["float32", "bfloat16"] = "float32"
    chat: bool = False
    sampler: SamplerConfig = field(default_factory=SamplerConfig)
    seed: int = 0
    show_steps: bool = False

    def __post_init__(self) -> None:
        if (self.prompt is None) == (self.task is None):
            raise ValueError("give either 'prompt' or 'task'")
        check_ranges(self)


def demo_config(arguments: list[str]) -> LFPOConfig:
    """The recipe `demo` with the keys of the command line, into a new folder under runs/."""
    about = "usage: lfpo demo [--key value ...]\n\nTrain with the recipe `demo`; its keys are lfpo train's."
    _, given = read_arguments(arguments, "demo", about, LFPOConfig, takes_file=False)
    folder = next(name for number in itertools.count(1) if not Path(name := f"runs/demo-{number}").exists())
    values = merge(load_yaml("demo"), {"output_dir": folder})
    return build(LFPOConfig, merge(values, given), "lfpo demo")
