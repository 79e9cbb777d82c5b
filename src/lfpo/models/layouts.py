"""Shapes of published models, from layouts.yaml."""

from pathlib import Path

from lfpo.config.build import load_yaml
from lfpo.config.json import Json

_FILE = load_yaml(Path(__file__).with_name("layouts.yaml"))
# Name -> config.json.
LAYOUTS: dict[str, Json] = {name: layout["config"] for name, layout in _FILE.items() if name[0] != "_"}
# Published checkpoint -> the name of its layout.
PUBLISHED = {checkpoint: name for name in LAYOUTS for checkpoint in _FILE[name]["checkpoints"]}


def with_layers(config: Json, layers: int | None) -> Json:
    """A family's config.json with another number of layers (None: its own)."""
    if layers is None:
        return config
    text = config.get("text_config")
    if text is not None:
        return {**config, "text_config": with_layers(text, layers)}
    made = {**config, "n_layers" if "n_layers" in config else "num_hidden_layers": layers}
    # Layers of several kinds follow each other in turn, and go on in the same way.
    if kinds := config.get("layer_types"):
        made["layer_types"] = (kinds * layers)[:layers]
        if of_layer := {int(i): own for i, own in (config.get("per_layer_config") or {}).items()}:
            turn = {i: of_layer[i % len(kinds)] for i in range(layers) if i % len(kinds) in of_layer}
            made["per_layer_config"] = {str(i): own for i, own in turn.items()}
    return made
