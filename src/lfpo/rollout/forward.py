"""The forwards of a rollout: hidden states of each row's active block, from whole rows."""

from collections.abc import Hashable, Sequence

import torch

from lfpo.config.sampler import SamplerConfig
from lfpo.models import MaskedDiffusionLM
from lfpo.models.kv_cache import KeyValueCache
from lfpo.models.structure import FULL, Structure
from lfpo.rollout.packing import LENGTH_BUCKET, PIECE_TOKENS, bucket, device_index, padded, pieces
from lfpo.rollout.rows import ActiveRows


class Forward:
    """Runs the model for the rows in flight.

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
        compiled: bool,
        rollout_tokens: int,
        whole: bool = False,
    ):
        assert sampler.block_length and sampler.gen_length
        self.model, self.sampler = model, sampler
        self.prompts = [tuple(p) for p in prompts]
        self.compiled, self.whole = compiled, whole
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

        row_ids: active.row as a list, so that the device need not be asked. Updates active.queries.
        """
        ids, mask, fresh = self._inputs(active, row_ids)
        inputs = [ids]
        if self.sampler.cfg_scale:
            blank = torch.full_like(ids[:, : self.width], self.model.mask_id)
            inputs.append(torch.cat([blank, active.tokens], dim=1))
        active.queries += torch.where(active.done, 0, mask.sum(-1)) * len(inputs)
        start, places = self._block_start(active), range(len(row_ids))
        return [self._whole_rows(places, start, row_ids, fresh, x, mask) for x in inputs]

    def _inputs(self, active: ActiveRows, row_ids: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor, list[bool]]:
        """Tokens and mask of whole rows, [A, width + C], and which rows have had no forward yet."""
        self.width = max(len(self.prompts[r]) for r in row_ids)
        skip = self.longest - self.width
        ids = torch.cat([active.prompt_ids[:, skip:], active.tokens], dim=1)
        mask = torch.cat([active.prompt_mask[:, skip:], torch.ones_like(active.tokens)], dim=1)
        fresh = [r not in self.started for r in row_ids]
        self.started.update(row_ids)
        return ids, mask, fresh

    def _block_start(self, active: ActiveRows) -> torch.Tensor:
        """Column at which the block that each row's forward runs begins, [A]; that of its last block if it is done."""
        block = torch.minimum(active.block, active.blocks - 1) - active.storing.long()
        return self.width - active.offset + block * (0 if self.whole else self.block_length)

    def _whole_rows(
        self,
        places: Sequence[int],
        start: torch.Tensor,
        row_ids: Sequence[int],
        fresh: Sequence[bool],
        ids: torch.Tensor,
        mask: torch.Tensor,
        cache: KeyValueCache | None = None,
    ) -> torch.Tensor:
        """Hidden states of the rows at these places, at block_length columns from `start` [A] on, from forwards over
        whole rows. Their keys and values go into the cache.

        Runs pieces of rows of similar length, so that short rows are not padded to the longest. Rows with the same
        prompt that have revealed nothing yet have the same input, so one of them is run.
        """
        run: list[int] = []  # places
        first: dict[Hashable, int] = {}
        source = []  # for each of `places` the index in `run`
        for place in places:
            same: Hashable = self.prompts[row_ids[place]] if fresh[place] else place
            if same not in first:
                first[same] = len(run)
                run.append(place)
            source.append(first[same])

        states, order, device = [], [], self.model.device
        lengths = [ids.shape[1] - self.width + len(self.prompts[row_ids[i]]) for i in run]
        columns = start[:, None] + torch.arange(self.block_length, device=device)
        for piece in pieces(tuple(lengths), self.piece_tokens, LENGTH_BUCKET if self.compiled else 1):
            index, left = device_index(run[piece], device), ids.shape[1] - max(lengths[piece])
            served = [i for i, s in enumerate(source) if piece.start <= s < piece.stop]
            rows = device_index([places[i] for i in served], device)
            origin = device_index([source[i] - piece.start for i in served], device)
            if cache is not None:
                cache.fill(rows, origin, later=self.compiled)
            real = mask[index, left:] if self.compiled or min(lengths[piece]) < max(lengths[piece]) else None
            hidden = self._padded_forward(ids[index, left:], real, cache)
            states.append(hidden[origin[:, None], columns[rows] - left])
            order += served
        return torch.cat(states)[device_index(order, device).argsort()]

    def _padded_forward(
        self, ids: torch.Tensor, mask: torch.Tensor | None, cache: KeyValueCache | None
    ) -> torch.Tensor:
        """Hidden states; a compiled forward is padded to one of few shapes, and the padding is cut off again."""
        if not self.compiled or mask is None:
            return self.model.hidden(ids, mask, cache, structure=self.structure)
        size, left = len(ids), -ids.shape[1] % LENGTH_BUCKET
        ids, mask = padded(ids, mask, bucket(size), left, self.model.pad_id)
        hidden = self.model.hidden(ids, mask, cache, structure=self.structure, compiled=True)[:size, left:]
        if cache is not None:
            cache.store()
        return hidden
