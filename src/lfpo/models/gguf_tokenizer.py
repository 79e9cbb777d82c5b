"""The tokenizer of a .gguf file: as transformers reads it, with the file's own tokens, their roles and their split."""

import json
from pathlib import Path
from typing import Any

from tokenizers import Regex, pre_tokenizers

from lfpo.config.errors import UserError
from lfpo.config.json import Json
from lfpo.models.mask_token import with_backend

# Names, in tokenizer.ggml.pre, of how text is split before byte-level BPE. GPT2_SPLIT: as GPT-2 does, which
# transformers also takes for names that it does not know. DIGITS_SPLIT: first into single digits, then as GPT-2 does.
# "default" is in neither, since old files of any model have it.
GPT2_SPLIT = ("gpt-2", "phi-2", "mpt", "olmo", "jais")
DIGITS_SPLIT = ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b")
SPECIAL, PLAIN = (2, 3), 4  # types of tokens that are never cut: unknown and control; user-defined
ADVICE = "convert the model's folder of safetensors, if there is one"
ROLES = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}


def known_splits() -> tuple[str, ...]:
    """The names of splits that this version of transformers reads as they are meant."""
    try:
        from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS
    except ImportError:  # an older version, which splits by the kind of model
        return ()
    return tuple(GGUF_PRE_TOKENIZER_SPLITS)


def own_tokenizer(tokenizer: Any, fields: Json, path: Path) -> Any:
    """The tokenizer that transformers has made of a file, without what the file does not hold. fields: all of the file.
    Raises UserError for a split into words that is not known."""
    own = {name.removeprefix("tokenizer.ggml."): value for name, value in fields.items()}
    tokens, kinds = own["tokens"], own.get("token_type", [])
    roles = {role: own[f"{name}_token_id"] for role, name in ROLES.items() if f"{name}_token_id" in own}
    state = json.loads(tokenizer.backend_tokenizer.to_str())
    # transformers adds tokens of other models and respells some of the file's.
    whole = {number for number, kind in enumerate(kinds) if kind in (*SPECIAL, PLAIN)} | set(roles.values())
    whole |= {token["id"] for token in state["added_tokens"] if token["id"] < len(tokens)}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    state["added_tokens"] = [
        {"id": number, "content": tokens[number], **flags, "special": number >= len(kinds) or kinds[number] != PLAIN}
        for number in sorted(whole)
    ]
    words = {word: number for word, number in state["model"]["vocab"].items() if number not in whole}
    state["model"]["vocab"] = words | {tokens[number]: number for number in whole}
    split = own.get("pre")
    made = with_backend(tokenizer, state, **{f"{role}_token": tokens[number] for role, number in roles.items()})
    if own["model"] != "gpt2" or split in GPT2_SPLIT or split in known_splits():
        return made
    if split not in DIGITS_SPLIT:
        raise UserError(
            f"{path}: tokenizer.ggml.pre {split!r} is a split of text that lfpo does not know with this version of "
            f"transformers, so the ids would be others; {ADVICE}"
        )
    made.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(r"\p{N}"), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    return made
