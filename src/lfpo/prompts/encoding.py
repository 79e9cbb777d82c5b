"""Encodes prompts as token ids and decodes completions to text."""

from collections.abc import Sequence
from typing import Any

import torch

from lfpo.config.errors import UserError
from lfpo.models import MaskedDiffusionLM
from lfpo.prompts.tasks import Row


def columns_of(rows: Sequence[Row]) -> dict[str, list[Any]]:
    """Every column but the prompt, as name -> list of values, as reward functions get them.

    Raises UserError if the rows have different columns.
    """
    names = [n for n in rows[0] if n != "prompt"]
    for row in rows:
        if row.keys() != rows[0].keys():
            raise UserError(
                f"rows differ in their columns: {sorted(rows[0])} and {sorted(row)}; give every row the same"
            )
    return {n: [row[n] for row in rows] for n in names}


def encode_prompt(tokenizer: Any, prompt: str | list[dict[str, str]]) -> list[int]:
    """Token ids of a prompt. Text is encoded as it is; a list of messages through the tokenizer's chat template.

    Raises UserError for messages if the tokenizer has no chat template.
    """
    if isinstance(prompt, str):
        return tokenizer.encode(prompt, add_special_tokens=False)
    if tokenizer.chat_template is None:
        raise UserError(
            "the prompts are message lists, but the tokenizer has no chat template; "
            "use an instruct checkpoint, or give plain text prompts"
        )
    text = tokenizer.apply_chat_template(prompt, tokenize=False, add_generation_prompt=True)
    return tokenizer.encode(text, add_special_tokens=False)


def encode_rows(rows: Sequence[Row], tokenizer: Any, model: MaskedDiffusionLM, gen_length: int) -> list[list[int]]:
    """Token ids of the rows' prompts, without padding.

    Raises UserError quoting a prompt that the model cannot take (see `misfit`).
    """
    encoded = []
    for row in rows:
        ids = encode_prompt(tokenizer, row["prompt"])
        if reason := misfit(ids, model, gen_length):
            raise UserError(f"prompt {str(row['prompt'])[:60]!r}: {reason}")
        encoded.append(ids)
    return encoded


def misfit(ids: Sequence[int], model: MaskedDiffusionLM, gen_length: int) -> str:
    """Why the model cannot take a prompt of these tokens with gen_length tokens of completion; empty if it can."""
    if not ids:
        return "it has no tokens"
    if model.mask_id in ids:
        return f"it contains the mask token (id {model.mask_id}), which stands for a blank"
    end = len(ids) + gen_length
    if model.block_length:
        end += -end % model.block_length  # the last block is whole
    if end > model.max_length:
        return (
            f"it has {len(ids)} tokens, and with gen_length {gen_length} that exceeds the model's context of "
            f"{model.max_length}; shorten it or gen_length"
        )
    return ""


def as_completions(rows: Sequence[Row], texts: Sequence[str]) -> list[Any]:
    """Texts as reward functions get them. As in TRL, a prompt of messages gets a completion of messages."""
    return [
        text if isinstance(row["prompt"], str) else [{"role": "assistant", "content": text}]
        for row, text in zip(rows, texts, strict=True)
    ]


def decode_completions(tokenizer: Any, tokens_BC: torch.Tensor, eos_id: int) -> list[str]:
    """Text of each completion (tokens_BC: int64 [B, C]) up to its first EOS, without special tokens."""
    texts = []
    for ids in tokens_BC.tolist():
        end = ids.index(eos_id) if eos_id in ids else len(ids)
        texts.append(tokenizer.decode(ids[:end], skip_special_tokens=True))
    return texts
