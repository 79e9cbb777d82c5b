"""Encodes prompts as token ids and decodes completions to text."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from lfpo.config.errors import UserError, last_line
from lfpo.config.files import plain
from lfpo.core.model import MaskedDiffusionLM
from lfpo.core.scoring import Row


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


def encode_prompt(tokenizer: Any, prompt: str | list[dict[str, Any]], where: str = "") -> list[int]:
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
        text = _rendered(tokenizer, [_present(message) for message in prompt])
    except Exception as error:  # a template may raise anything
        place, reason = where or f"prompt {str(prompt)[:60]!r}", " ".join(last_line(error).split())
        raise UserError(
            f"{place}: the chat template cannot render the prompt ({reason}); change the messages, or the template in "
            "the model's folder"
        ) from error
    return tokenizer.encode(text, add_special_tokens=False)


def _rendered(tokenizer: Any, messages: list[dict[str, Any]]) -> str:
    answer_prefix = prefill(messages)
    if answer_prefix.strip():
        return tokenizer.apply_chat_template(messages, tokenize=False, continue_final_message=True)
    # A blank beginning adds nothing to the turn that the generation prompt opens, and a template may trim it.
    before_answer = messages[:-1] if messages[-1]["role"] == "assistant" else messages
    return tokenizer.apply_chat_template(before_answer, tokenize=False, add_generation_prompt=True) + answer_prefix


def _present(value: Any) -> Any:
    """A message as JSON data without the keys that are None: a Dataset adds them where other messages have the key, and
    templates ask whether a key is there."""
    if isinstance(value, Mapping):
        return {key: _present(part) for key, part in value.items() if part is not None}
    return [_present(part) for part in value] if isinstance(value, list) else plain(value)


def prefill(prompt: str | Sequence[Mapping[str, Any]]) -> str:
    """The beginning of the answer that a prompt of messages ends with; "" for any other prompt."""
    begun = not isinstance(prompt, str) and len(prompt) > 0 and prompt[-1]["role"] == "assistant"
    return str(prompt[-1]["content"]) if begun and not isinstance(prompt, str) else ""


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
        end += -(model.structure.shared(len(ids)) + gen_length) % model.block_length  # the last block is whole
    if end > model.max_length:
        return (
            f"it has {len(ids)} tokens, and with gen_length {gen_length} that exceeds the model's context of "
            f"{model.max_length}; shorten it or gen_length"
        )
    return ""


def without_prefill(prompt: Any) -> Any:
    """A prompt as reward functions get it: without the beginning of the answer, which is in the completion."""
    return prompt if isinstance(prompt, str) or prompt[-1]["role"] != "assistant" else prompt[:-1]


def as_completions(rows: Sequence[Row], texts: Sequence[str]) -> list[Any]:
    """Texts as reward functions get them. As in TRL, a prompt of messages gets a completion of messages, the whole turn
    of the assistant with the beginning that the prompt has."""
    return [
        text if isinstance(row["prompt"], str) else [{"role": "assistant", "content": prefill(row["prompt"]) + text}]
        for row, text in zip(rows, texts, strict=True)
    ]


def reward_arguments(rows: Sequence[Row], texts: Sequence[str]) -> tuple[list[Any], list[Any], dict[str, list[Any]]]:
    """Prompts, completions and columns of b rows as reward functions get them."""
    return [without_prefill(row["prompt"]) for row in rows], as_completions(rows, texts), columns_of(rows)


def decode_completions(tokenizer: Any, tokens_BC: torch.Tensor, eos_id: int) -> list[str]:
    """Text of each completion (tokens_BC: int64 [B, C]) up to its first EOS, without special tokens."""
    texts = []
    for ids in tokens_BC.tolist():
        end = ids.index(eos_id) if eos_id in ids else len(ids)
        texts.append(tokenizer.decode(ids[:end], skip_special_tokens=True))
    return texts
