"""The configuration of `lfpo demo`: that of `lfpo train` with the recipe `demo`."""

from __future__ import annotations

from pathlib import Path

from lfpo.base.config import build, load_yaml, merge, parse_overrides, text_keys
from lfpo.train.config import LFPOConfig


def demo_config(arguments: list[str]) -> LFPOConfig:
    """The recipe `demo` with the keys of the command line, into a new folder under runs/."""
    number = 1
    while Path(f"runs/demo-{number}").exists():
        number += 1
    values = merge(load_yaml("demo"), {"output_dir": f"runs/demo-{number}"})
    return build(LFPOConfig, merge(values, parse_overrides(arguments, text_keys(LFPOConfig))), "lfpo demo")
