"""Keys and values kept between forwards, for the approximate samplers `cache: prefix` and `cache: dual`."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from lfpo.models.attention import product_dtype

Layers = dict[int, tuple[torch.Tensor, torch.Tensor]]


@dataclass
class KeyValueCache:
    """Rotated keys and values of all L tokens of B rows: [B, H_kv, L + 1, D] for each layer, in the dtype and on the
    device of the forward that computes them. Column L is scratch space.

    In a bidirectional model every state depends on every token, so cached values are out of date after the next reveal.
    transformers' attention layers call `update`, the only method they use of a cache.

    columns [B, W]: the next forward's W tokens, int64 (None: it runs whole rows, see `fill`).
    """

    layers: Layers = field(default_factory=dict)
    columns: torch.Tensor | None = None
    _filling: tuple[torch.Tensor, torch.Tensor, int, int] | None = None

    def fill(self, rows: torch.Tensor, source: torch.Tensor, size: int, length: int) -> None:
        """Make the next forward, over whole rows, fill rows `rows` of B = size: row rows[i] with what it computes for
        its input row source[i]. length: L. A forward over fewer columns fills the last ones; the rest must be padding.
        """
        self.columns, self._filling = None, (rows, source, size, length)

    def update(
        self, key: torch.Tensor, value: torch.Tensor, layer_idx: int, *_: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store new keys and values [B, H_kv, W, D] in place and return those of every column."""
        dtype = product_dtype(value)  # attention would cast them anyway
        key, value = key.to(dtype), value.to(dtype)
        if self.columns is None:
            self._store(layer_idx, key, value)
            return key, value
        keys, values = self.layers[layer_idx]
        index = self.columns[:, None, :, None].expand_as(key)
        return keys.scatter_(2, index, key), values.scatter_(2, index, value)

    def _store(self, layer_idx: int, key: torch.Tensor, value: torch.Tensor) -> None:
        size, heads, width, dim = key.shape
        everything = torch.arange(size, device=key.device)
        rows, source, size, length = self._filling or (everything, everything, size, width)
        held = self.layers.get(layer_idx)
        if held is None or len(held[0]) < size:
            grown = tuple(key.new_zeros(size, heads, length + 1, dim) for _ in range(2))
            for new, old in zip(grown, held or (), strict=False):
                new[: len(old)] = old
            held = self.layers[layer_idx] = (grown[0], grown[1])
        for mine, new in zip(held, (key, value), strict=True):
            mine[:, :, length - width : length].index_copy_(0, rows, new[source])

    def keep(self, rows: torch.Tensor) -> None:
        """Hold only these rows from now on, in this order."""
        for i, (key, value) in self.layers.items():  # one layer at a time, so that one is held twice
            self.layers[i] = (key[rows], value[rows])

    def trim(self, count: int) -> None:
        """Forget the first `count` columns, which must hold padding in every row."""
        for i, (key, value) in self.layers.items():
            self.layers[i] = (key[:, :, count:], value[:, :, count:])
