"""The forwards of a rollout: hidden states of each row's active block, from whole rows."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import torch

from lfpo.models import MaskedDiffusionLM
from lfpo.models.kv_cache import KeyValueCache
from lfpo.models.structure import FULL, Structure
from lfpo.rollout.packing import LENGTH_BUCKET, PIECE_TOKENS, bucket, cut, device_index, padded
from lfpo.rollout.rows import ActiveRows
from lfpo.rollout.sampler import SamplerConfig


class Forward:
    """Runs the model for the rows in flight.

    share_first: rows with the same prompt share their first forward.
    compiled: run forwards through torch.compile, padded to few shapes.
    whole: give hidden states of the whole completion, as if it were the active block.
    Rows must enter in an order in which no new row is longer than the longest row in flight.
    """

    def __init__(
        self,
        model: MaskedDiffusionLM,
        sampler: SamplerConfig,
        prompts: Sequence[Sequence[int]],
        *,
        share_first: bool,
        compiled: bool,
        rollout_tokens: int,
        whole: bool = False,
    ):
        assert sampler.block_length and sampler.gen_length
        self.model, self.sampler = model, sampler
        self.prompts = [tuple(p) for p in prompts]
        self.share_first, self.compiled, self.whole = share_first, compiled, whole
        self.block_length = sampler.gen_length if whole else sampler.block_length
        self.structure = Structure(sampler.block_length) if model.block_length else FULL
        self.started: set[int] = set()  # rows that have had their first forward
        self.longest = self.width = max(len(p) for p in prompts)  # width: that of the longest prompt in flight
        # More than rollout_tokens run at once only with a cache, whose renewals are cut to it.
        self.piece_tokens = min(rollout_tokens, PIECE_TOKENS.get(model.device.type, PIECE_TOKENS["cpu"]))

    def keep(self, index: list[int]) -> None:
        """Drop what is held of all rows in flight but those at these places."""

    def hidden(self, active: ActiveRows, row_ids: Sequence[int]) -> list[torch.Tensor]:
        """Hidden states [A, block_length, D] of the active blocks; with guidance, also those without the prompt.

        row_ids: active.row as a list, so that the device need not be asked. Updates active.queries and active.age.
        """
        ids, mask, fresh = self._inputs(active, row_ids)
        run, origin = self._shared(range(len(row_ids)), row_ids, fresh)
        source = device_index(origin, self.model.device)
        states = [self._whole(active, row_ids, ids, mask, run)[source]]
        if self.sampler.cfg_scale:
            blank = torch.cat([torch.full_like(ids[:, : self.width], self.model.mask_id), active.tokens], dim=1)
            states.append(self._whole(active, row_ids, blank, mask, run)[source])
        active.queries += torch.where(active.done, 0, mask.sum(-1)) * len(states)
        return states

    def _inputs(self, active: ActiveRows, row_ids: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor, list[bool]]:
        """Tokens and mask of whole rows, [A, width + C], and which rows have had no forward yet."""
        self.width = max(len(self.prompts[r]) for r in row_ids)
        skip = self.longest - self.width
        ids = torch.cat([active.prompt_ids[:, skip:], active.tokens], dim=1)
        mask = torch.cat([active.prompt_mask[:, skip:], torch.ones_like(active.tokens)], dim=1)
        fresh = [r not in self.started for r in row_ids]
        self.started.update(row_ids)
        return ids, mask, fresh

    def _whole(
        self, active: ActiveRows, row_ids: Sequence[int], ids: torch.Tensor, mask: torch.Tensor, run: list[int]
    ) -> torch.Tensor:
        """Hidden states of the active blocks of the rows at the places `run`.

        Runs pieces of rows of similar length, so that short rows are not padded to the longest.
        """
        columns, size = self._block_columns(active), ids.shape[1]
        lengths = [size - self.width + len(self.prompts[row_ids[i]]) for i in run]
        states = []
        for piece in self._cut(lengths):
            index = device_index(run[piece], self.model.device)
            start = size - max(lengths[piece])
            padded = min(lengths[piece]) < max(lengths[piece])
            if self.compiled:
                hidden = self._bucketed(ids[index, start:], mask[index, start:])
            else:
                real = mask[index, start:] if padded else None
                hidden = self.model.hidden(ids[index, start:], real, structure=self.structure)
            states.append(hidden.gather(1, (columns[index] - start)[..., None].expand(-1, -1, hidden.shape[-1])))
        return torch.cat(states)

    def _cut(self, lengths: Sequence[int]) -> list[slice]:
        """Rows of these lengths in pieces."""
        return cut(lengths, self.piece_tokens, self.model.device, self.compiled)

    def _bucketed(self, ids: torch.Tensor, mask: torch.Tensor, cache: KeyValueCache | None = None) -> torch.Tensor:
        """Hidden states of a compiled forward, which is padded to one of few shapes; the padding is cut off again."""
        size, length = ids.shape
        left = -length % LENGTH_BUCKET
        ids, mask = padded(ids, mask, bucket(size), left, self.model.pad_id)
        return self.model.hidden(ids, mask, cache, structure=self.structure, compiled=True)[:size, left:]

    def _shared(
        self, places: Sequence[int], row_ids: Sequence[int], fresh: Sequence[bool]
    ) -> tuple[list[int], list[int]]:
        """The places to run, and for each of `places` the index of its result among them.

        Rows with the same prompt that have revealed nothing yet have the same input, so one of them is run.
        """
        run: list[int] = []
        first: dict[Hashable, int] = {}
        source = []
        for place in places:
            same: Hashable = self.prompts[row_ids[place]] if self.share_first and fresh[place] else place
            if same not in first:
                first[same] = len(run)
                run.append(place)
            source.append(first[same])
        return run, source

    def _block_columns(self, active: ActiveRows) -> torch.Tensor:
        """Columns of each row's active block, [A, block_length]; of its last block if the row is done."""
        block = torch.minimum(active.block, active.blocks - 1) * (not self.whole)
        start = self.width - active.offset + block * self.block_length
        return start[:, None] + torch.arange(self.block_length, device=start.device)
