"""What is refused in the config.json of every family, whatever fields the family reads: a field that would make another
network must not be left out without a word."""

from lfpo.config.errors import UserError
from lfpo.config.json import Json


def expect(config: Json, **known: tuple[object, ...]) -> None:
    """Raise UserError for a field of config.json that is not one of the values that are known to work. A field that is
    missing is None."""
    for name, values in known.items():
        if config.get(name) not in values:
            raise UserError(f"config.json: {name} {config.get(name)!r} is not supported, expected {values[0]!r}")


def check_config(config: Json, *, windows: bool) -> None:
    """Raise UserError for quantised weights and, unless the family has them (`windows`), windows of attention.

    config: config.json, or its section of the text model.
    """
    expect(config, quantization_config=(None,))
    if not windows and (config.get("use_sliding_window") or set(config.get("layer_types") or ()) - {"full_attention"}):
        raise UserError("config.json: use_sliding_window and layer_types other than 'full_attention' are not supported")
