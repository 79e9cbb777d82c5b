"""Keys and values kept between forwards: for the approximate samplers `cache: prefix` and `cache: dual`, and for models
that attend block by block, where they are exact."""

from dataclasses import dataclass, field

import torch

from lfpo.core.attention import product_dtype
from lfpo.core.compiled import compiled_body
from lfpo.core.model import MaskedDiffusionLM
from lfpo.core.structure import FULL, mask_bias

Pair = tuple[torch.Tensor, torch.Tensor]
COLUMN_STEP = 64  # columns are allocated in multiples of this


def columns_for(length: int) -> int:
    """Columns of rows of `length` tokens: one more for scratch space, rounded up to a multiple of COLUMN_STEP."""
    return length + 1 + -(length + 1) % COLUMN_STEP


@dataclass
class KeyValueCache:
    """Rotated keys and values of all L tokens of B rows: `layers`, [B, H_kv, L + 1, D] for each layer, as forwards
    without gradients compute them. Column L is scratch space. transformers' attention layers call `update` only.

    In a bidirectional model every state depends on every token, so cached values are out of date after the next reveal.
    In a model that attends block by block those of finished blocks stay right.

    The memory of a layer is allocated once, for `capacity` tokens (rows x `columns_for`), and `layers` are views of it:
    a compiled forward finds it at the same address with the same strides. Only more rows than fit make it grow.

    columns [B, W]: the next forward's W tokens, int64 (None: it runs whole rows, see `fill`).
    """

    capacity: int = 0
    layers: dict[int, Pair] = field(default_factory=dict)
    columns: torch.Tensor | None = None
    _memory: dict[int, Pair] = field(default_factory=dict)  # flat
    _room: tuple[int, int] = (0, 0)  # rows and columns that the memory is divided into
    _size: tuple[int, int] = (0, 0)  # B and L + 1
    _filling: Pair | None = None
    _fresh: dict[int, Pair] | None = None

    def fit(self, rows: int, length: int) -> None:
        """Hold B rows of L tokens from now on. Rows are added or dropped at the end, columns at the left; added ones
        hold arbitrary finite numbers."""
        if (rows, length + 1) == self._size:
            return
        room, wide = self._room, columns_for(length)
        self._size = rows, length + 1
        if wide != room[1] or rows > room[0]:
            self._room = max(rows, self.capacity // wide), wide
        for i, (key, value) in self.layers.items():  # one layer at a time, so that one is held twice
            if self._room == room:
                self.layers[i] = self._views(i, key)
                continue
            old = key.clone(), value.clone()
            needed = self._room[0] * wide * key.shape[1] * key.shape[3]
            if needed > self._memory[i][0].numel():
                self._memory[i] = key.new_zeros(needed), key.new_zeros(needed)
            self.layers[i] = self._views(i, key)
            for new, held in zip(self.layers[i], old, strict=True):
                size, width = min(len(held), rows), min(held.shape[2], length + 1)
                new[:size, :, length + 1 - width :] = held[:size, :, held.shape[2] - width :]

    def _views(self, layer: int, like: torch.Tensor) -> Pair:
        """This layer's memory as [B, H_kv, L + 1, D]. like: [_, H_kv, _, D]."""
        (rows, wide), heads, width = self._room, like.shape[1], like.shape[3]
        views = [m[: rows * heads * wide * width].view(rows, heads, wide, width) for m in self._memory[layer]]
        key, value = (v[: self._size[0], :, wide - self._size[1] :] for v in views)
        return key, value

    def fill(self, rows: torch.Tensor, source: torch.Tensor, *, later: bool = False) -> None:
        """Make the next forward, over whole rows, fill row rows[i] with what it computes for its input row source[i]. A
        forward over fewer columns than L fills the last ones; the rest must be padding. later: keep what it computes
        until `store`, because a compiled forward is to have few shapes."""
        self.columns, self._filling, self._fresh = None, (rows, source), {} if later else None

    def put(self, layers: dict[int, Pair], rows: torch.Tensor, after: int) -> None:
        """Write the same keys and values [1, H_kv, n, D] in rows `rows`, at the n columns that `after` columns follow.
        `fit` must have been called."""
        for i, pair in layers.items():
            self._allocate(i, pair[0])
            for stored, new in zip(self.layers[i], pair, strict=True):
                end = stored.shape[2] - 1 - after
                place = stored[:, :, end - new.shape[2] : end]
                place.index_copy_(0, rows, new.expand(len(rows), -1, -1, -1))

    def store(self) -> None:
        """Write what a forward after `fill(..., later=True)` has computed."""
        fresh, self._fresh = self._fresh or {}, None
        for layer in list(fresh):
            self._store(layer, *fresh.pop(layer))

    def update(self, key: torch.Tensor, value: torch.Tensor, layer_idx: int, *_: object) -> Pair:
        """Store new keys and values [B, H_kv, W, D] in place and return those of every column."""
        dtype = product_dtype(value)  # attention would cast them anyway
        key, value = key.to(dtype), value.to(dtype)
        if self.columns is None:
            if self._fresh is None:
                self._store(layer_idx, key, value)
            else:
                self._fresh[layer_idx] = key, value
            return key, value
        keys, values = self.layers[layer_idx]
        # Not scatter_: a compiled forward would copy all keys to scatter into the copy, and copy them back.
        place = torch.arange(len(key), device=key.device)[:, None]
        keys[place, :, self.columns] = key.transpose(1, 2)
        values[place, :, self.columns] = value.transpose(1, 2)
        return keys, values

    def _store(self, layer_idx: int, key: torch.Tensor, value: torch.Tensor) -> None:
        size, width = key.shape[0], key.shape[2]
        if self._filling is None:
            self.fit(size, width)
        self._allocate(layer_idx, key)
        width = min(width, self._size[1] - 1)  # a padded forward may have more columns, of padding
        for stored, new in zip(self.layers[layer_idx], (key, value), strict=True):
            new, place = new[:, :, key.shape[2] - width :], stored[:, :, -1 - width : -1]
            if self._filling is None:
                place.copy_(new)
            else:
                rows, source = self._filling
                place.index_copy_(0, rows, new[source])

    def _allocate(self, layer: int, like: torch.Tensor) -> None:
        """Make this layer's memory if there is none. like: [_, H_kv, _, D]."""
        if layer not in self.layers:
            numbers = self._room[0] * self._room[1] * like.shape[1] * like.shape[3]
            self._memory[layer] = like.new_zeros(numbers), like.new_zeros(numbers)
            self.layers[layer] = self._views(layer, like)

    def keep_rows(self, rows: torch.Tensor) -> None:
        """Hold only these rows from now on, in this order."""
        for key, value in self.layers.values():  # one tensor at a time, so that one is held twice
            key[: len(rows)] = key[rows]
            value[: len(rows)] = value[rows]
        self._size = len(rows), self._size[1]
        for i, (key, _) in self.layers.items():
            self.layers[i] = self._views(i, key)

    def mark_static(self) -> None:
        """Tell torch.compile that keys and values stay where they are: a CUDA graph then writes them in place."""
        for pair in self.layers.values():
            for held in pair:
                torch._dynamo.mark_static_address(held)


def window_hidden(
    model: MaskedDiffusionLM,
    input_ids_BL: torch.Tensor,
    attention_mask_BL: torch.Tensor,
    start_B: torch.Tensor,
    width: int,
    cache: KeyValueCache,
    *,
    causal_B: torch.Tensor | None = None,
    compiled: bool = False,
) -> torch.Tensor:
    """Final hidden states [B, width, D] that predict columns start_B .. start_B + width - 1.

    Keys and values of all other tokens are read from `cache`; those of the window are written to it. Columns outside
    the row give meaningless states and change only the cache's scratch column. start_B: int64. With the logit shift the
    token before the window is run too, because it holds the first prediction. With blocks the window is one, which that
    token does not see.

    causal_B: rows, bool, in which no token of the window attends to later ones (None: none).
    """
    shift = int(model.family.shift)
    columns = (start_B - shift)[:, None] + torch.arange(width + shift, device=start_B.device)
    scratch = input_ids_BL.shape[1]
    # A row's first block has no token before it: column -1, where no row has a longer prompt.
    cache.columns = columns = columns.where(columns >= 0, scratch).clamp(max=scratch)
    seen = torch.nn.functional.pad(attention_mask_BL.bool(), (0, 1))
    seen_by = seen[:, None]  # [B, 1 or queries, L + 1]
    if shift and model.block_length:
        before = seen & (torch.arange(seen.shape[1], device=seen.device) < start_B[:, None])
        seen_by = seen_by.repeat(1, columns.shape[1], 1)
        seen_by[:, 0] = torch.where(before.any(-1, keepdim=True), before, seen)  # so that no softmax is empty
    if causal_B is not None:
        later = torch.arange(seen.shape[1], device=seen.device) > columns[:, :, None]
        seen_by = seen_by & ~(later & causal_B[:, None, None])
    if compiled and model.device.type == "cuda":
        cache.mark_static()
    hidden = model.body(
        compiled_body(model) if compiled else None,
        input_ids=torch.nn.functional.pad(input_ids_BL, (0, 1)).gather(1, columns),
        attention_mask=mask_bias(seen_by[:, None], model.body_dtype),
        position_ids=FULL.positions(seen).gather(1, columns),
        past_key_values=cache,
    )
    return hidden[:, :width].to(model.dtype)
