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
    text = config.get("text_config")
    if text is None:
        return {**config, "n_layers" if "n_layers" in config else "num_hidden_layers": layers}
    # Layers of several kinds follow each other in turn, and go on in the same way.
    kinds, of_layer = text.get("layer_types"), {int(i): own for i, own in (text.get("per_layer_config") or {}).items()}
    made = {**text, "num_hidden_layers": layers}
    if kinds:
        made["layer_types"] = (kinds * layers)[:layers]
        if of_layer:
            count = len(kinds)
            made["per_layer_config"] = {str(i): of_layer[i % count] for i in range(layers) if i % count in of_layer}
    return {**config, "text_config": made}
