"""Prompts of messages, as a chat template renders them; a last message of the assistant's begins the answer."""

import functools
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from lfpo.config.errors import UserError, last_line
from lfpo.config.files import plain
from lfpo.config.json import Json

# "Today" of every chat template, so that a prompt is the same on every day: the date that Llama's templates write where
# they are told none.
TODAY = datetime(2024, 7, 26)


def rendered(tokenizer: Any, prompt: list[Json], where: str) -> str:
    """The text of a prompt of messages, in which the assistant's turn is open.

    Raises UserError, starting with `where` or else quoting the prompt, for messages without a chat template, and for
    those that it cannot render.
    """
    if tokenizer.chat_template is None:
        raise UserError(
            "the prompts are message lists, but the tokenizer has no chat template; "
            "use an instruct checkpoint, or give plain text prompts"
        )
    from jinja2 import TemplateError

    try:
        return _open_turn(tokenizer, prompt)
    except TemplateError as error:
        place, reason = where or f"prompt {str(prompt)[:60]!r}", " ".join(last_line(error).split())
        raise UserError(
            f"{place}: the chat template cannot render the prompt ({reason}); change the messages, or the template in "
            "the model's folder"
        ) from error


def _open_turn(tokenizer: Any, messages: list[Json]) -> str:
    # An assistant that calls tools may say nothing, which templates join with text all the same.
    messages = [{"content": "", **_present(message)} for message in messages]
    render = functools.partial(tokenizer.apply_chat_template, tokenize=False, chat_template=on_one_day(tokenizer))
    answer_prefix = prefill(messages)
    if answer_prefix.strip():
        return render(messages, continue_final_message=True)
    # A blank beginning adds nothing to the turn that the generation prompt opens, and a template may trim it.
    before_answer = messages[:-1] if messages[-1]["role"] == "assistant" else messages
    return render(before_answer, add_generation_prompt=True) + answer_prefix


def on_one_day(tokenizer: Any) -> str:
    """The chat template with TODAY as the date that it asks for."""
    asked = r"strftime_now\(\s*(['\"])(.*?)\1\s*\)"
    return re.sub(asked, lambda found: repr(TODAY.strftime(found[2])), tokenizer.get_chat_template())


def _present(value: object) -> Any:
    """A message as JSON data without the keys that are None: a Dataset adds them where other messages have the key, and
    templates ask whether a key is there."""
    if isinstance(value, Mapping):
        return {key: _present(part) for key, part in value.items() if part is not None}
    return [_present(part) for part in value] if isinstance(value, list) else plain(value)


def prefill(prompt: str | Sequence[Mapping[str, object]]) -> str:
    """The beginning of the answer that a prompt of messages ends with; "" for any other prompt."""
    if isinstance(prompt, str) or not len(prompt) or prompt[-1]["role"] != "assistant":
        return ""
    return str(prompt[-1].get("content") or "")
