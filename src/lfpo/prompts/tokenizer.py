"""A small byte-level BPE tokenizer for models trained from scratch, with LLaDA's special tokens; and the text of each
token, of any tokenizer."""

import functools
from collections.abc import Iterable, Sequence
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

BOS, EOS, MASK = "<|startoftext|>", "<|endoftext|>", "<|mdm_mask|>"
CHAT_TEMPLATE = "{% for message in messages %}{{ message['content'] }}\n{% endfor %}"


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> Any:
    """Train on texts. Returns a transformers PreTrainedTokenizerFast with BOS, EOS (also for padding) and mask tokens.

    Digits, punctuation and capitals that do not start a word are single tokens, so that Sudoku cells, operands and
    signs align. Words and runs of `#` are merged. The alphabet is bytes: any text can be encoded, and decoding gives
    it back exactly.
    """
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"\d| ?#+| ?[A-Z]?[a-z]+|[^a-z\d]"), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[BOS, EOS, MASK],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=BOS,
        eos_token=EOS,
        pad_token=EOS,
        mask_token=MASK,
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


def token_texts(tokenizer: Any, ids: Sequence[int]) -> list[str]:
    """Text of each token, with special tokens by name. The concatenation is the text that `ids` decode to, but for
    characters that never end: each of their tokens is a replacement character.

    A character that is split over several tokens is the text of the last one; the others have an empty text.
    """
    decode = functools.partial(tokenizer.decode, clean_up_tokenization_spaces=False)
    texts = [decode([token]) for token in ids]
    if (text := "".join(texts)) == decode(ids) and "\ufffd" not in text:  # mostly, and in a third of the time
        return texts
    texts = []
    before: list[int] = []  # decoded with the next tokens: some decoders drop the space that a text begins with
    while (first := len(texts)) < len(ids):
        known = len(decode(before))
        for end in range(first + 1, min(first + 4, len(ids)) + 1):  # a character has at most four bytes
            text = decode([*before, *ids[first:end]])[known:]
            if "\ufffd" not in text:
                before = [*([] if text else before), *ids[first:end]]
                break
        else:
            end, text = first + 1, decode([ids[first]])
        texts += [""] * (end - first - 1) + [text]
    return texts
