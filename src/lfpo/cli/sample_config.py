"""The configuration of `lfpo sample`."""

from __future__ import annotations

from dataclasses import dataclass, field

from lfpo.base.checks import not_negative
from lfpo.rollout.sampler import SamplerConfig


@dataclass
class SampleConfig:
    """Configuration of `lfpo sample`.

    prompt: the prompt's text, \\n standing for a line break; or task: take a prompt from that task's test split.
    index: which prompt of the test split, from 0.
    model: checkpoint folder, hub id, or "embedded".
    chat: apply the model's chat template.
    sampler: how the completion is denoised.
    show_steps: print the state after each step that revealed a token, at most 24 of them, evenly spread. Colours
        go from tokens revealed early to those revealed late.
    """

    prompt: str | None = None
    task: str | None = None
    index: int = 0
    model: str = "embedded"
    chat: bool = False
    sampler: SamplerConfig = field(default_factory=SamplerConfig)
    seed: int = 0
    show_steps: bool = False

    def __post_init__(self) -> None:
        if (self.prompt is None) == (self.task is None):
            raise ValueError("give either 'prompt' or 'task'")
        not_negative(self, "index")
