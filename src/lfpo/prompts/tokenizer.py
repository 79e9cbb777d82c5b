"""A small byte-level BPE tokenizer for models trained from scratch, with LLaDA's special tokens; and the text of each
token, of any tokenizer."""

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
    """Text of each token, with special tokens by name. The concatenation is the text that `ids` decode to.

    A character that is split over several tokens is the text of the last one; the others have an empty text.
    """
    texts = tokenizer.batch_decode([[i] for i in ids], clean_up_tokenization_spaces=False)
    start = 0
    while start < len(texts):
        if "\ufffd" in texts[start]:
            for end in range(start + 2, min(start + 4, len(ids)) + 1):  # a character has at most four bytes
                character = tokenizer.decode(ids[start:end], clean_up_tokenization_spaces=False)
                if "\ufffd" not in character:
                    texts[start:end] = [""] * (end - start - 1) + [character]
                    break
        start += 1
    return texts
