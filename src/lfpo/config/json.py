"""The type of what JSON and YAML hold."""

from typing import Any

# An object of a JSON or YAML file, or one that becomes such: what its fields hold is known once they are checked.
Json = dict[str, Any]
