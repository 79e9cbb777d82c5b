"""Shapes of published models, from layouts.yaml."""

from pathlib import Path
from typing import Any

from lfpo.config.build import load_yaml

_FILE = load_yaml(Path(__file__).with_name("layouts.yaml"))
# Name -> config.json.
LAYOUTS: dict[str, dict[str, Any]] = {name: layout["config"] for name, layout in _FILE.items() if name[0] != "_"}
# Published checkpoint -> the name of its layout.
PUBLISHED = {checkpoint: name for name in LAYOUTS for checkpoint in _FILE[name]["checkpoints"]}


def with_layers(config: dict[str, Any], layers: int | None) -> dict[str, Any]:
    """A family's config.json with another number of layers (None: its own)."""
    if layers is None:
        return config
    kinds = config.get("layer_types")
    listed = {"layer_types": (kinds * layers)[:layers]} if kinds else {}
    return {**config, **listed, "n_layers" if "n_layers" in config else "num_hidden_layers": layers}
