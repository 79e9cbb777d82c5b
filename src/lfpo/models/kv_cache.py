"""Keys and values kept between forwards, for the approximate samplers `cache: prefix` and `cache: dual`."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch.nn import functional as F

from lfpo.models.attention import product_dtype

Layers = dict[int, tuple[torch.Tensor, torch.Tensor]]


@dataclass
class KeyValueCache:
    """Rotated keys and values of all L tokens of B rows: [B, H_kv, L + 1, D] for each layer, in the dtype and on the
    device of the forward that computes them. Column L is scratch space.

    In a bidirectional model every state depends on every token, so cached values are out of date after the next reveal.
    transformers' attention layers call `update`, the only method they use of a cache.

    columns [B, W]: the next forward's W tokens, int64 (None: it runs all L tokens and fills the cache).
    """

    layers: Layers = field(default_factory=dict)
    columns: torch.Tensor | None = None

    def update(
        self, key: torch.Tensor, value: torch.Tensor, layer_idx: int, *_: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store new keys and values [B, H_kv, W, D] and return those of every column."""
        dtype = product_dtype(value)  # attention would cast them anyway
        key, value = key.to(dtype), value.to(dtype)
        if self.columns is None:
            self.layers[layer_idx] = (F.pad(key, (0, 0, 0, 1)), F.pad(value, (0, 0, 0, 1)))
            return key, value
        keys, values = self.layers[layer_idx]
        index = self.columns[:, None, :, None].expand_as(key)
        return keys.scatter_(2, index, key), values.scatter_(2, index, value)

    def select(self, rows: torch.Tensor) -> KeyValueCache:
        """A copy of some rows, in the order of `rows`."""
        return KeyValueCache({i: (k[rows], v[rows]) for i, (k, v) in self.layers.items()})

    def trim(self, count: int) -> KeyValueCache:
        """A view without the first `count` columns, which must hold padding in every row."""
        return KeyValueCache({i: (k[:, :, count:], v[:, :, count:]) for i, (k, v) in self.layers.items()})

    def put(self, rows: torch.Tensor, other: KeyValueCache, size: int) -> None:
        """Copy the rows of `other` into rows `rows` of this cache, which first grows to `size` rows."""
        for i, (key, value) in other.layers.items():
            mine = self.layers.get(i, (key[:0], value[:0]))
            grown = [F.pad(x, (0, 0, 0, 0, 0, 0, 0, size - len(x))) if len(x) < size else x for x in mine]
            grown[0][rows], grown[1][rows] = key, value
            self.layers[i] = (grown[0], grown[1])
