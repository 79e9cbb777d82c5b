"""Keys and values kept between forwards: what makes the cached samplers fast, and approximate."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch.nn import functional as F

Layers = dict[int, tuple[torch.Tensor, torch.Tensor]]


@dataclass
class KeyValueMemory:
    """Rotated keys and values of all L tokens of some rows, [B, H_kv, L + 1, D] for each layer; column L is scratch.

    A bidirectional model's states all change when one token does, so what is kept here is out of date from the next
    reveal on. It has the one method that transformers' attention layers call on a cache.

    columns [B, W]: where the next forward's W tokens stand in their rows; None: it runs all L tokens, and renews all.
    """

    layers: Layers = field(default_factory=dict)
    columns: torch.Tensor | None = None

    def update(
        self, key: torch.Tensor, value: torch.Tensor, layer_idx: int, *_: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write fresh keys and values [B, H_kv, W, D] and return those of every column."""
        key = key.to(value.dtype)  # rotated in float32; attention would round them anyway
        if self.columns is None:
            self.layers[layer_idx] = (F.pad(key, (0, 0, 0, 1)), F.pad(value, (0, 0, 0, 1)))
            return key, value
        keys, values = self.layers[layer_idx]
        index = self.columns[:, None, :, None].expand_as(key)
        return keys.scatter_(2, index, key), values.scatter_(2, index, value)

    def select(self, rows: torch.Tensor) -> KeyValueMemory:
        """A copy for some rows, in the order of `rows`."""
        return KeyValueMemory({i: (k[rows], v[rows]) for i, (k, v) in self.layers.items()})

    def trim(self, columns: int) -> KeyValueMemory:
        """The same without the first columns, which hold padding in every row."""
        return KeyValueMemory({i: (k[:, :, columns:], v[:, :, columns:]) for i, (k, v) in self.layers.items()})

    def put(self, rows: torch.Tensor, other: KeyValueMemory, size: int) -> None:
        """Take over the rows of `other` as rows `rows` of a memory of `size` rows."""
        for i, (key, value) in other.layers.items():
            mine = self.layers.get(i, (key[:0], value[:0]))
            grown = [F.pad(x, (0, 0, 0, 0, 0, 0, 0, size - len(x))) if len(x) < size else x for x in mine]
            grown[0][rows], grown[1][rows] = key, value
            self.layers[i] = (grown[0], grown[1])
