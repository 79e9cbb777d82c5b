"""The configurations of `lfpo sample`, `export`, `push` and `demo`, which are checked before torch is loaded."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from lfpo.base.checks import not_negative
from lfpo.base.config import build, load_yaml, merge, parse_overrides, text_keys
from lfpo.rollout.sampler import SamplerConfig
from lfpo.train.config import LFPOConfig

Layout = Literal["family", "transformers"]


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
    index: int = 0
    model: str = "embedded"
    dtype: Literal["float32", "bfloat16"] = "float32"
    chat: bool = False
    sampler: SamplerConfig = field(default_factory=SamplerConfig)
    seed: int = 0
    show_steps: bool = False

    def __post_init__(self) -> None:
        if (self.prompt is None) == (self.task is None):
            raise ValueError("give either 'prompt' or 'task'")
        not_negative(self, "index")


@dataclass
class ExportConfig:
    """Configuration of `lfpo export`.

    run: a run's folder (its trained model, or its newest checkpoint while it has none), one of its checkpoints
        (RUN/checkpoints/step-N), or any model that lfpo loads: a folder, a hub id, or "embedded".
    layout: "family": the model family's own names, as lfpo saves them. "transformers": the family's class in
        transformers, which AutoModelForCausalLM loads without lfpo and without remote code.
    adapter: write a LoRA run's adapter in peft's format, for a base of the same layout. Otherwise it is merged.
    output: folder to write, new or empty (None: model-family, model-transformers or adapter in the run's folder).
    """

    run: str
    layout: Layout = "family"
    adapter: bool = False
    output: str | None = None


@dataclass
class PushConfig:
    """Configuration of `lfpo push RUN USER/NAME`.

    run: as in lfpo export; for a run the upload also has recipe.yaml, metrics.jsonl and report.html.
    repo: the repository on the hub, USER/NAME or ORGANISATION/NAME; it is made if it does not exist.
    layout, adapter: as in lfpo export.
    private: whether a new repository is private. An existing one keeps its setting.
    report: upload report.html, which holds prompts and completions.
    dry_run: list the files and sizes and upload nothing.

    The login is that of `hf auth login`, or the environment variable HF_TOKEN.
    """

    run: str
    repo: str
    layout: Layout = "transformers"
    adapter: bool = False
    private: bool = True
    report: bool = True
    dry_run: bool = False

    def __post_init__(self) -> None:
        if self.repo.count("/") != 1 or not all(self.repo.split("/")):
            raise ValueError(f"'repo' {self.repo!r} must have the form USER/NAME")


def demo_config(arguments: list[str]) -> LFPOConfig:
    """The recipe `demo` with the keys of the command line, into a new folder under runs/."""
    number = 1
    while Path(f"runs/demo-{number}").exists():
        number += 1
    values = merge(load_yaml("demo"), {"output_dir": f"runs/demo-{number}"})
    return build(LFPOConfig, merge(values, parse_overrides(arguments, text_keys(LFPOConfig))), "lfpo demo")
