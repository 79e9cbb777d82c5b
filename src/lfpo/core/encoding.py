"""Prompts as token ids."""

from collections.abc import Sequence
from typing import Any

from lfpo.config.errors import UserError, last_line
from lfpo.config.json import Json
from lfpo.core.messages import rendered
from lfpo.core.model import MaskedDiffusionLM
from lfpo.core.scoring import Row


def encode_prompt(tokenizer: Any, prompt: str | list[Json], where: str = "") -> list[int]:
    """Token ids of a prompt. Text is encoded as it is; a list of messages through the tokenizer's chat template. A last
    message of the assistant's is the beginning of the answer: it is left open, so that a completion continues it.

    Raises UserError, starting with `where` or else quoting the prompt, for messages without a chat template, and for
    those that it cannot render.
    """
    if isinstance(prompt, str):
        return tokenizer.encode(prompt, add_special_tokens=False)
    if tokenizer.chat_template is None:
        raise UserError(
            "the prompts are message lists, but the tokenizer has no chat template; "
            "use an instruct checkpoint, or give plain text prompts"
        )
    try:
        text = rendered(tokenizer, prompt)
    except Exception as error:  # a template may raise anything
        place, reason = where or f"prompt {str(prompt)[:60]!r}", " ".join(last_line(error).split())
        raise UserError(
            f"{place}: the chat template cannot render the prompt ({reason}); change the messages, or the template in "
            "the model's folder"
        ) from error
    return tokenizer.encode(text, add_special_tokens=False)


def encode_rows(rows: Sequence[Row], tokenizer: object, model: MaskedDiffusionLM, gen_length: int) -> list[list[int]]:
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
        end += -(model.structure.shared(len(ids)) + gen_length) % model.block_length  # the last block is whole
    if end > model.max_length:
        return (
            f"it has {len(ids)} tokens, and with gen_length {gen_length} that exceeds the model's context of "
            f"{model.max_length}; shorten it or gen_length"
        )
    return ""
