"""Prompts and completions of rollouts, with the step that revealed each token: what the plain iteration reads."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import torch

from lfpo.config.json import Json
from lfpo.config.sampler import Sampler
from lfpo.core.structure import FULL, Structure


class SpecialTokens(NamedTuple):
    """The ids of the mask token and of the end-of-sequence token."""

    mask_id: int
    eos_id: int


@dataclass
class Completions:
    """B rollouts. Prompts are left-padded to P tokens; completions are C = gen_length tokens.

    With blocks (`structure`) C is gen_length + block_length - 1: a row ends with the whole block that holds its
    gen_length-th token, or the one with its first EOS. Over a causal context blocks count from the completion's first
    token, and C is gen_length.

    prompt_ids, prompt_mask [B, P] int64: prompt tokens; the mask is 0 at padding.
    tokens [B, C] int64: final tokens. A position never revealed (its row ended before it) holds the pad token.
    reveal_step [B, C] int64: the scheduled step that revealed the position, counted from 0 in each row; -1 for never.
    confidence [B, C] float32: probability of the token at temperature 1 when it was revealed; 0 for never.
    entropy [B, C] float32: entropy in nats, at temperature 1, of the prediction that the token was drawn from; 0 for
        never.
    scheduled_steps [B] int64: scheduled steps spent ("inference steps" in the paper), also those that reveal nothing.
    nfe [B] int64: forwards run for the row; guidance counts two a step. Those that only store a block are not counted;
        those that also reveal the first token of the next one are.
    queries [B] int64: tokens that went through the row's forwards: prompt and completion each time, fewer with a cache
        or stored blocks. Tokens of forwards that store a block are counted.
    sampler: the settings, with their lengths filled in. special: the model's token ids.
    structure: how tokens attended to each other. The tokens of a block, after an EOS too, are all that the sampler saw
        there.
    """

    prompt_ids: torch.Tensor
    prompt_mask: torch.Tensor
    tokens: torch.Tensor
    reveal_step: torch.Tensor
    confidence: torch.Tensor
    entropy: torch.Tensor
    scheduled_steps: torch.Tensor
    nfe: torch.Tensor
    queries: torch.Tensor
    sampler: Sampler
    special: SpecialTokens
    structure: Structure = FULL

    def __len__(self) -> int:
        return len(self.tokens)

    def to(self, device: torch.device | str) -> Self:
        return dataclasses.replace(self, **{name: value.to(device) for name, value in tensor_fields(self).items()})

    def rows(self, index: torch.Tensor) -> Self:
        """The rows at index [n] int64, in that order."""
        return dataclasses.replace(self, **{name: value[index] for name, value in tensor_fields(self).items()})

    @property
    def mask_id(self) -> int:
        return self.special.mask_id

    @property
    def eos_id(self) -> int:
        return self.special.eos_id

    @property
    def was_revealed(self) -> torch.Tensor:
        """Positions that were revealed, [B, C] bool: all, but where a row ended before them."""
        return self.reveal_step >= 0

    @property
    def is_eos(self) -> torch.Tensor:
        """Positions where an EOS was revealed, [B, C] bool; padding may be the same token."""
        return (self.tokens == self.eos_id) & self.was_revealed

    @property
    def has_eos(self) -> torch.Tensor:
        """Rows with an EOS, [B] bool."""
        return self.is_eos.any(-1)

    @property
    def lengths(self) -> torch.Tensor:
        """Completion length of each row, [B] int64: up to and including its first EOS, or the last revealed position
        where there is none (C, but for rows whose last block ends before it)."""
        first = self.is_eos.int().argmax(-1)
        after_last = self.was_revealed.flip(-1).int().argmax(-1)
        return torch.where(self.has_eos, first + 1, self.tokens.shape[1] - after_last)

    def completion_ids(self) -> list[list[int]]:
        """Token ids of each completion, up to and including its first EOS."""
        return [row[mask].tolist() for row, mask in zip(self.tokens, self.until_eos, strict=True)]

    def for_rewards(self) -> Json:
        """What reward functions may ask for beside texts: lfpo.core.scoring.ROLLOUT_ARGUMENTS, by name. The steps are
        those of the tokens in `completion_ids`."""
        steps = [row[mask].tolist() for row, mask in zip(self.reveal_step, self.until_eos, strict=True)]
        return {"completion_ids": self.completion_ids(), "forwards": self.nfe.tolist(), "reveal_step": steps}

    @property
    def until_eos(self) -> torch.Tensor:
        """Positions up to and including the first EOS, [B, C] bool."""
        return torch.arange(self.tokens.shape[1], device=self.tokens.device) < self.lengths[:, None]


def decode_completions(tokenizer: Any, tokens_BC: torch.Tensor, eos_id: int) -> list[str]:
    """Text of each completion (tokens_BC: int64 [B, C]) up to its first EOS, without special tokens."""
    texts = []
    for ids in tokens_BC.tolist():
        end = ids.index(eos_id) if eos_id in ids else len(ids)
        texts.append(tokenizer.decode(ids[:end], skip_special_tokens=True))
    return texts


def tensor_fields(value: Any) -> Json:
    """The fields of a dataclass instance that hold tensors, by name."""
    return {name: field for name, field in vars(value).items() if isinstance(field, torch.Tensor)}
