"""The configurations of `lfpo sample` and `lfpo demo`."""

import itertools
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from lfpo.config.arguments import read_arguments
from lfpo.config.build import build, load_yaml, merge
from lfpo.config.checks import CountOrZero, check_ranges
from lfpo.config.data import ProblemConfig
from lfpo.config.models import ModelName
from lfpo.config.sampler import SamplerConfig
from lfpo.config.train import LFPOConfig


@dataclass
class SampleConfig(ProblemConfig):
    """Configuration of `lfpo sample`: denoises a prompt that is given, or a held-out one of a task or of rows of one's
    own (eval_file or data_file), whose completion `correct` or `reward_funcs` judge."""

    prompt: str | None = None
    """The prompt's text, \\n standing for a line break. Give either prompt or task or rows."""

    index: CountOrZero = 0
    """Which of the held-out prompts, from 0."""

    model: ModelName = "embedded"
    """Checkpoint folder, hub id, "embedded", "embedded-block", "embedded-causal" or "embedded-uniform"."""

    dtype: Literal["float32", "bfloat16"] = "float32"
    """Of the weights; "bfloat16" for large models."""

    chat: bool = False
    """Apply the model's chat template."""

    sampler: SamplerConfig = field(default_factory=SamplerConfig)
    """How the completion is denoised."""

    seed: int = 0
    """The key of all random choices."""

    show_steps: bool = False
    """Print the state after each step that revealed a token, at most 24 of them, evenly spread. Colours go from tokens
    revealed early to those revealed late."""

    def __post_init__(self) -> None:
        self.check_data()
        rows = self.task or self.data_file or self.eval_file or self.dataset_name
        if (self.prompt is None) == (rows is None):
            raise ValueError("give either 'prompt' or 'task', 'eval_file' or 'dataset_name'")
        if self.eval_file is None:
            self.data_file, self.eval_file = None, self.data_file
        check_ranges(self)


def demo_config(arguments: list[str]) -> LFPOConfig:
    """The recipe `demo` with the keys of the command line, into a new folder under runs/."""
    about = "usage: lfpo demo [--key value ...]\n\nTrain with the recipe `demo`; its keys are lfpo train's."
    _, overrides = read_arguments(arguments, about, LFPOConfig)
    folder = next(name for number in itertools.count(1) if not Path(name := f"runs/demo-{number}").exists())
    values = merge(load_yaml("demo"), {"output_dir": folder})
    return build(LFPOConfig, merge(values, overrides), "lfpo demo")
