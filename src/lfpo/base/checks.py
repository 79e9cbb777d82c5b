"""Checks of configuration values; each error is one sentence. NaN fails all of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lfpo.base.errors import UserError


def at_least_one(knobs: Any, *names: str) -> None:
    """Raise ValueError for a knob below 1; None passes."""
    for name in names:
        value = getattr(knobs, name)
        if value is not None and not value >= 1:
            raise ValueError(f"{name} {value} must be at least 1")


def not_negative(knobs: Any, *names: str) -> None:
    """Raise ValueError for a negative knob; None passes."""
    for name in names:
        value = getattr(knobs, name)
        if value is not None and not value >= 0:
            raise ValueError(f"{name} {value} must not be negative")


def positive(knobs: Any, *names: str) -> None:
    """Raise ValueError for a knob that is not above 0."""
    for name in names:
        if not getattr(knobs, name) > 0:
            raise ValueError(f"{name} {getattr(knobs, name)} must be positive")


def in_unit_interval(knobs: Any, *names: str) -> None:
    """Raise ValueError for a knob outside [0, 1]; None passes."""
    for name in names:
        value = getattr(knobs, name)
        if value is not None and not 0 <= value <= 1:
            raise ValueError(f"{name} {value} must be between 0 and 1")


def decays(knobs: Any, *names: str) -> None:
    """Raise ValueError for the decay of a moving average that is not in [0, 1)."""
    for name in names:
        if not 0 <= getattr(knobs, name) < 1:
            raise ValueError(f"'{name}' {getattr(knobs, name)} must be at least 0 and below 1")


def time_limits(knobs: Any, *names: str) -> None:
    """Raise ValueError for a time limit that is negative; 0 means no limit."""
    for name in names:
        if not getattr(knobs, name) >= 0:
            raise ValueError(f"{name!r} {getattr(knobs, name)} must be seconds, or 0 for no limit")


def check_shares(tasks: Mapping[str, float]) -> None:
    """Raise ValueError for a task's share of the examples that is not above 0."""
    for task, share in tasks.items():
        if not share > 0:
            raise ValueError(
                f"'tasks': the share {share} of {task!r} must be positive; leave out a task without examples"
            )


SHIPPED_MODELS = ("embedded", "embedded-block")  # that come with the package


def check_model_name(name: str | Path) -> None:
    """Raise UserError for a model that is not one of SHIPPED_MODELS, nor a folder, nor written like a hub id."""
    text, path = str(name), Path(name).expanduser()
    if text in SHIPPED_MODELS or path.is_dir():
        return
    if text.count("/") != 1 or text.startswith((".", "/", "~")) or path.suffix in {".safetensors", ".json"}:
        raise UserError(
            f"model {text!r}: no such folder; give a checkpoint folder, a hub id like org/name, 'embedded' or "
            "'embedded-block'"
        )
