"""The forwards of rollouts of a model that attends block by block. Keys and values of finished blocks are stored.

In such a model no token sees a later block, so what is stored stays right: the cache is exact. A row's first forward
runs its prompt and its first block; the whole blocks of the prompt are stored. Every later forward runs one block: the
active one, or, when it is full, once more to store it. The last block of a row is not stored.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from lfpo.models.kv_cache import KeyValueCache, Pair
from lfpo.rollout.cached import CacheRunner
from lfpo.rollout.packing import cut, device_index
from lfpo.rollout.rows import ActiveRows, first_offset

Prompt = tuple[int, ...]


@dataclass(frozen=True)
class Start:
    """A prompt's first forward: keys and values of its n whole-block tokens, [1, H_kv, n, D] for each layer, and hidden
    states of the first block [block_length, D]."""

    layers: dict[int, Pair]
    hidden: torch.Tensor

    def copied(self) -> Start:
        """One that does not keep alive the tensors that it is cut from."""
        return Start({i: (k.clone(), v.clone()) for i, (k, v) in self.layers.items()}, self.hidden.clone())


class StoredBlocks(CacheRunner):
    """Runs the model for the rows in flight, and holds the keys and values of their finished blocks.

    share_first: the first forward of a prompt is run once for all its rollouts, whenever they enter.
    compiled: run the forwards of blocks through torch.compile, padded to few shapes; first forwards are not compiled.
    """

    def __init__(self, *what: Any, **how: Any):
        super().__init__(*what, **how)
        self.to_start = Counter(self.prompts)  # rollouts of each prompt that have not entered yet
        self.starts: dict[Prompt, Start] = {}  # of prompts that have such rollouts

    def hidden(self, active: ActiveRows, row_ids: Sequence[int]) -> list[torch.Tensor]:
        """As that of Forward; meaningless for rows that are storing."""
        ids, mask, fresh = self._inputs(active, row_ids)
        entering = [i for i, new in enumerate(fresh) if new]
        self._fit(ids)
        block = torch.minimum(active.block, active.blocks - 1) - active.storing.long()
        start = self.width - active.offset + block * self.block_length
        computed = torch.full_like(start, self.block_length)
        found = self._enter(entering, row_ids, ids, mask) if entering else None
        if entering:
            index = device_index(entering, self.model.device)
            prompt_tokens = mask[index, : self.width].sum(-1) - active.offset[index]
            computed = computed.index_add(0, index, prompt_tokens)
        active.queries += torch.where(active.done, 0, computed)
        end = start + self.block_length
        seen = mask * (torch.arange(ids.shape[1], device=end.device) < end[:, None])
        return [self._windows(ids, seen, start, self.block_length, entering, found)]

    def _enter(
        self, entering: Sequence[int], row_ids: Sequence[int], ids: torch.Tensor, mask: torch.Tensor
    ) -> torch.Tensor:
        """Hidden states of the first blocks of the rows at the places `entering`, whose prompts are stored."""
        rows: dict[Prompt | int, list[int]] = {}  # places of rows that share a first forward
        for place in entering:
            prompt = self.prompts[row_ids[place]]
            self.to_start[prompt] -= 1
            rows.setdefault(prompt if self.share_first else place, []).append(place)
        first = [places[0] for key, places in rows.items() if key not in self.starts]
        computed = dict(zip(first, self._starts(first, row_ids, ids, mask), strict=True))
        states, order = [], []
        for key, places in rows.items():
            prompt = self.prompts[row_ids[places[0]]]
            start = self.starts[prompt] if key in self.starts else computed[places[0]]
            offset = first_offset(len(prompt), self.sampler, self.model)
            self.cache.put(start.layers, device_index(places, self.model.device), ids.shape[1] - self.width + offset)
            states.append(start.hidden.expand(len(places), -1, -1))
            order += places
            if not self.to_start[prompt]:
                self.starts.pop(prompt, None)
            elif self.share_first and prompt not in self.starts:
                self.starts[prompt] = start.copied()
        return torch.cat(states)[device_index(order, self.model.device).argsort()]

    def _starts(
        self, places: Sequence[int], row_ids: Sequence[int], ids: torch.Tensor, mask: torch.Tensor
    ) -> list[Start]:
        """The first forwards of the rows at these places, block by block, in pieces of rows of similar length."""
        size, found = self.block_length, []
        prompts = [self.prompts[row_ids[i]] for i in places]
        offsets = [first_offset(len(p), self.sampler, self.model) for p in prompts]
        for piece in cut([len(p) + size for p in prompts], self.piece_tokens, self.model.device) if places else []:
            longest = max(len(p) for p in prompts[piece])
            begin, end = self.width - longest, self.width + max(size - o for o in offsets[piece])
            index, cache = device_index(places[piece], self.model.device), KeyValueCache()
            hidden = self.model.hidden(ids[index, begin:end], mask[index, begin:end], cache, structure=self.structure)
            for i, (prompt, offset) in enumerate(zip(prompts[piece], offsets[piece], strict=True)):
                stored = slice(longest - len(prompt), longest - offset)
                layers = {n: (k[i : i + 1, :, stored], v[i : i + 1, :, stored]) for n, (k, v) in cache.layers.items()}
                found.append(Start(layers, hidden[i, stored.stop : stored.stop + size]))
        return found
