"""Rollouts over a vocabulary of three letters, written as text, and a model whose predictions are a table."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from lfpo.config.sampler import Sampler
from lfpo.core.forward import left_pad
from lfpo.core.trajectory import Trajectory, of_completions

LETTERS = "abe_"  # e: end of sequence and padding; _: the mask token
EOS, MASK = 2, 3


def spell(ids: torch.Tensor) -> str:
    return "".join(LETTERS[i] for i in ids.tolist())


def rollouts(
    completions: Sequence[str],
    reveal: Sequence[str] | None = None,
    *,
    prompts: Sequence[str] | None = None,
    entropy: Sequence[Sequence[float]] | None = None,
    **sampler: Any,
) -> Trajectory:
    """One rollout for each completion. prompts: all "ab" by default.

    reveal: for each position the step that revealed it, as a digit, or - for never; left to right by default.
    """
    size, length = len(completions), len(completions[0])
    ids, mask = left_pad([[LETTERS.index(x) for x in p] for p in prompts or ["ab"] * size], EOS)
    steps = torch.arange(length).repeat(size, 1)
    if reveal is not None:
        steps = torch.tensor([[-1 if x == "-" else int(x) for x in row] for row in reveal])
    tokens = torch.tensor([[LETTERS.index(x) for x in c] for c in completions])
    more = {} if entropy is None else {"entropy": torch.tensor(entropy)}
    settings = Sampler(**{"gen_length": length, "block_length": length} | sampler)
    return of_completions(ids, mask, tokens, steps, sampler=settings, mask_id=MASK, eos_id=EOS, **more)


class LogitsAsStates(nn.Module):
    """A model in float64 whose hidden states are its logits."""

    dtype, device, products, logit_map = torch.float64, torch.device("cpu"), "float32", None
    vocab_size: int

    def head(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden

    @property
    def head_weight(self) -> torch.Tensor:
        return torch.eye(self.vocab_size, dtype=torch.float64)


class Table(LogitsAsStates):
    """Predictions for each state of the completion: `{"a_": "111 121"}` has p(b) = 1/2 at the second position."""

    vocab_size = len(LETTERS) - 1

    def __init__(self, odds: dict[str, str]):
        super().__init__()
        self.odds = odds
        self.scale = nn.Parameter(torch.ones((), dtype=torch.float64))

    def hidden(self, ids: torch.Tensor, attention: torch.Tensor | None = None) -> torch.Tensor:
        length = len(next(iter(self.odds)))
        odds = [[[float(x) for x in p] for p in self.odds[spell(row[-length:])].split()] for row in ids]
        completion = torch.tensor(odds, dtype=torch.float64).log()
        return self.scale * torch.nn.functional.pad(completion, (0, 0, ids.shape[1] - length, 0))
