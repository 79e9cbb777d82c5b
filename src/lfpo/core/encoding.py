"""Prompts as token ids."""

from collections.abc import Sequence
from typing import Any

from lfpo.config.errors import UserError
from lfpo.config.json import Json
from lfpo.core.messages import rendered
from lfpo.core.model import MaskedDiffusionLM
from lfpo.core.scoring import Row


def encode_prompt(tokenizer: Any, prompt: str | list[Json], where: str = "") -> list[int]:
    """Token ids of a prompt: text as it is, messages through the chat template. A last message of the assistant's is
    the beginning of the answer, which a completion continues: it is left open. Raises UserError as `rendered`."""
    text = prompt if isinstance(prompt, str) else rendered(tokenizer, prompt, where)
    return tokenizer.encode(text, add_special_tokens=False)


def encode_rows(
    rows: Sequence[Row], tokenizer: object, model: MaskedDiffusionLM, gen_length: int, places: Sequence[str] = ()
) -> list[list[int]]:
    """Token ids of prompts, unpadded. places: where rows are from. Raises UserError, quoting it, for a `misfit`."""
    encoded = []
    for row, where in zip(rows, places or [""] * len(rows), strict=True):
        ids = encode_prompt(tokenizer, row["prompt"], where)
        if reason := misfit(ids, model, gen_length):
            raise UserError(f"{where and where + ': '}prompt {str(row['prompt'])[:60]!r}: {reason}")
        encoded.append(ids)
    return encoded


def misfit(ids: Sequence[int], model: MaskedDiffusionLM, gen_length: int) -> str:
    """Why the model cannot take a prompt of these tokens with gen_length tokens of completion; empty if it can."""
    if reason := unusable(ids, model) if ids else "it has no tokens":
        return reason
    end = len(ids) + gen_length
    if model.block_length:
        end += -(model.structure.shared(len(ids)) + gen_length) % model.block_length  # the last block is whole
    if end > model.max_length:
        return (
            f"it has {len(ids)} tokens, and with gen_length {gen_length} that exceeds the model's context of "
            f"{model.max_length}; shorten it or gen_length"
        )
    return ""


def unusable(ids: Sequence[int], model: MaskedDiffusionLM) -> str:
    """Why the model cannot read a text of these tokens; empty if it can."""
    if model.mask_id in ids:
        return f"it contains the mask token (id {model.mask_id}), which stands for a blank"
    last, rows = max(ids, default=0), model.vocab_size
    return "" if last < rows else f"it has token {last} of the tokenizer, and the model has {rows} embeddings"
