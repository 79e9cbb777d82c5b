"""What is refused in the config.json of every family, whatever fields the family reads: a field that would make another
network must not be left out without a word."""

import math
from collections.abc import Iterator
from typing import Any

from lfpo.config.errors import UserError
from lfpo.config.json import Json

ROPE = ("rope_scaling", "rope_parameters")


def expect(config: Json, **known: tuple[object, ...]) -> None:
    """Raise UserError for a field of config.json that is not one of the values that are known to work. A field that is
    missing is None."""
    for name, values in known.items():
        if config.get(name) not in values:
            raise UserError(f"config.json: {name} {config.get(name)!r} is not supported, expected {values[0]!r}")


def check_config(config: Json, *, windows: bool) -> None:
    """Raise UserError for quantised weights, contradictory or meaningless rotary embeddings, numbers that are
    not finite and, unless the family has them (`windows`), windows of attention.

    config: config.json, or its `text_config`.
    """
    if not isinstance(config, dict):
        raise UserError(f"config.json: text_config {config!r} must be an object")
    expect(config, quantization_config=(None,))
    for name, value in config.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise UserError(f"config.json: {name} {value} must be a finite number")
    if not windows and (config.get("use_sliding_window") or set(config.get("layer_types") or ()) - {"full_attention"}):
        raise UserError("config.json: use_sliding_window and layer_types other than 'full_attention' are not supported")
    for name in ROPE:
        if not isinstance(config.get(name), dict | None):
            raise UserError(f"config.json: {name} {config[name]!r} must be an object or null")
    rope = config.get("rope_parameters") or {}
    for name in ("rope_theta", "partial_rotary_factor"):
        top, inner = config.get(name), rope.get(name)
        if None not in (top, inner) and top != inner:
            raise UserError(f"config.json: {name} is {top!r}, and in rope_parameters {inner!r}; keep the right one")
    for name, theta in _thetas({name: value for name, value in config.items() if "rope" in name}):
        if theta is not None and not (is_number(theta) and 0 < theta < math.inf):
            raise UserError(f"config.json: {name} {theta!r} must be a number above 0")


def _thetas(fields: Json) -> Iterator[tuple[str, Any]]:
    """Names and values of all bases of rotary embeddings; some models have one for each kind of layer."""
    for name, value in fields.items():
        if isinstance(value, dict):
            yield from _thetas(value)
        elif name.endswith("rope_theta"):
            yield name, value


def is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def check_experts(hf_config: Any) -> None:
    """Raise UserError for a router that cannot choose its experts: it would fail in the first forward.

    hf_config: a configuration of transformers, with experts or without."""
    experts = getattr(hf_config, "n_routed_experts", None) or getattr(hf_config, "num_experts", None)
    if not experts:
        return

    def at_most(name: str, most: int) -> int:
        value = getattr(hf_config, name, 1)
        if type(value) is not int or not 1 <= value <= most:
            raise UserError(f"config.json: {name} {value!r} must be a whole number from 1 to {most}")
        return value

    groups = at_most("n_group", experts)
    if experts % groups:
        raise UserError(f"config.json: n_group {groups} must divide the number of experts, {experts}")
    chosen = at_most("topk_group", groups)
    per_token = "top_k_experts" if hasattr(hf_config, "top_k_experts") else "num_experts_per_tok"
    at_most(per_token, chosen * experts // groups)
