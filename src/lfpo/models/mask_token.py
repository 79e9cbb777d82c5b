"""The mask token of a model that had none: a token of the tokenizer that nothing uses, or a new one."""

import json
import re
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from lfpo.config.errors import UserError
from lfpo.config.json import Json
from lfpo.core.model import MaskedDiffusionLM

MASK = "<|mask|>"  # the text that dllm's loader gives the mask token of a2d models
# What authors call tokens that they keep for later, such as <|reserved_special_token_0|> and <empty_output>.
UNUSED = re.compile(r"reserved|unused|extra_id|placeholder|empty|dummy", re.IGNORECASE)
ROLES = ("bos_token", "eos_token", "pad_token", "unk_token", "cls_token", "sep_token")


@dataclass(frozen=True)
class MaskToken:
    """id; text: the mask token's in the tokenizer. about: where it is from, for the user. own: it was the mask token
    of the source already, whose embedding is kept."""

    id: int
    text: str
    about: str
    own: bool = False


def set_mask_token(tokenizer: Any, rows: int, wanted: str | None) -> tuple[Any, MaskToken]:
    """A tokenizer with a mask token, and that token. rows: of the embeddings, of which the tokenizer may use fewer.

    wanted: the text of the mask token, of the vocabulary or new; None chooses: the tokenizer's own mask token, a row
    behind the vocabulary, a special token by its name (UNUSED), or a new row. All but the first are called MASK.
    Raises UserError where the wanted token has a role already.
    """
    vocabulary = tokenizer.get_vocab()
    roles = {getattr(tokenizer, role) for role in ROLES}
    if wanted is None and tokenizer.mask_token is not None and tokenizer.mask_token not in roles:
        return tokenizer, MaskToken(tokenizer.mask_token_id, tokenizer.mask_token, "the tokenizer's own", own=True)
    if wanted is not None and wanted in roles:
        raise UserError(f"mask_token {wanted!r} is a token that the model uses already; give another text")
    text = wanted or MASK
    if text in vocabulary:
        tokenizer.mask_token = text
        return tokenizer, MaskToken(vocabulary[text], text, "a token of the vocabulary")
    free = max(vocabulary.values()) + 1 < rows
    if not free and wanted is None and (unused := _unused(tokenizer, roles)) is not None:
        number, old = unused
        return renamed(tokenizer, old), MaskToken(number, MASK, f"the unused special token {old!r}, renamed")
    tokenizer.add_special_tokens({"mask_token": text})
    if (number := tokenizer.mask_token_id) in vocabulary.values():  # it is the size of the vocabulary
        raise UserError(
            f"the tokenizer's ids have gaps, so that a new token would get the id {number} of another one; give a "
            "token of its vocabulary that nothing uses as mask_token"
        )
    about = "an unused row of the embeddings" if free else "a new row of the embeddings"
    return tokenizer, MaskToken(tokenizer.mask_token_id, text, about)


def _unused(tokenizer: Any, roles: set[str | None]) -> tuple[int, str] | None:
    """Id and text of the first special token whose name says that nothing uses it; None where there is none."""
    template = str(tokenizer.chat_template)
    for number, token in sorted(tokenizer.added_tokens_decoder.items()):
        text = token.content
        if token.special and UNUSED.search(text) and text not in roles and text not in template:
            return number, text
    return None


def renamed(tokenizer: Any, old: str) -> PreTrainedTokenizerFast:
    """The tokenizer with the text of a special token changed, as its mask token; all ids stay."""
    state = json.loads(tokenizer.backend_tokenizer.to_str())
    for token in state["added_tokens"]:
        if token["content"] == old:
            token["content"] = MASK
    words = state["model"]["vocab"]  # of BPE, which the models that are converted have
    state["model"]["vocab"] = {MASK if word == old else word: number for word, number in words.items()}
    roles = {role: getattr(tokenizer, role) for role in ROLES if getattr(tokenizer, role) is not None}
    return with_backend(tokenizer, state, mask_token=MASK, **roles)


def with_backend(tokenizer: Any, state: Json, **roles: str) -> PreTrainedTokenizerFast:
    """The tokenizer with another state of its backend. roles: its special tokens that have one."""
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(state)),
        chat_template=tokenizer.chat_template,
        model_max_length=tokenizer.model_max_length,
        clean_up_tokenization_spaces=tokenizer.clean_up_tokenization_spaces,
        **roles,
    )


def check_masks(model: MaskedDiffusionLM, what: str) -> None:
    """Raise UserError, beginning with `what`, for a model that was not trained to fill in masks."""
    if model.asks_about_all:
        raise UserError(
            f"{what} needs a model that fills in masks, and {model.family.name} models have none: their noise is "
            "uniform over the vocabulary"
        )
