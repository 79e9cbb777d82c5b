"""Multiple-choice problems as contexts and continuations, and the option whose likelihood bound is highest.

A task has a method `choices(row) -> Options` or an entry in FORMATS. The entries are worded as in
lm-evaluation-harness; docs/evaluation.md lists the differences.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from lfpo.base.errors import UserError
from lfpo.base.rng import key
from lfpo.eval.likelihood import Bound, Pair, likelihood_bounds
from lfpo.eval.settings import LikelihoodConfig
from lfpo.models import MaskedDiffusionLM
from lfpo.prompts.tasks import Row


@dataclass(frozen=True)
class Options:
    """contexts, continuations: one text each per option. right: index of the right option."""

    contexts: list[str]
    continuations: list[str]
    right: int


def same_context(context: str, continuations: Sequence[str], right: int) -> Options:
    return Options([context] * len(continuations), list(continuations), right)


def _right(row: Row) -> int:
    return ord(row["answer"]) - ord("A")


def _asked(row: Row) -> str:
    """The question without its first line, which is the instruction."""
    return row["question"].split("\n", 1)[1]


def _hellaswag(row: Row) -> Options:
    clean = [_without_markup(text) for text in (_asked(row), *row["options"])]
    return same_context(clean[0], [f" {ending}" for ending in clean[1:]], _right(row))


def _without_markup(text: str) -> str:
    """The text without WikiHow's marks, such as `[title]` and `[step]`."""
    return re.sub(r"\[.*?\]", "", text.replace(" [title]", ". ")).replace("  ", " ").strip()


def _winogrande(row: Row) -> Options:
    """The options end the context; the continuation is the rest of the sentence."""
    before, after = _asked(row).split("_", 1)
    return Options([before + option for option in row["options"]], [f" {after.strip()}"] * 2, _right(row))


def _piqa(row: Row) -> Options:
    options = [f" {option.strip()}" for option in row["options"]]
    return same_context(f"Question: {_asked(row)}\nAnswer:", options, _right(row))


def _gpqa(row: Row) -> Options:
    return same_context(f"Question: {row['question']}\nAnswer:", [f" {o}" for o in row["options"]], _right(row))


def _choice(row: Row) -> Options:
    return same_context(row["prompt"], ["A", "B"], _right(row))


FORMATS: dict[str, Callable[[Row], Options]] = {
    "hellaswag": _hellaswag,
    "winogrande": _winogrande,
    "piqa": _piqa,
    "gpqa": _gpqa,
    "choice": _choice,
}


def options_of(task: Any, rows: Sequence[Row], examples: Sequence[Row]) -> list[Options]:
    """The options of each row, with the solved examples before each context, separated by empty lines.

    Raises UserError for a task that is not multiple choice.
    """
    build = getattr(task, "choices", None) or FORMATS.get(task.name)
    if build is None:
        raise UserError(
            f"task {task.name!r}: scoring 'likelihood' needs multiple choice ({', '.join(FORMATS)}, or a task with a "
            "method choices(row)); use scoring 'generation'"
        )
    solved = [build(row) for row in examples]
    before = "".join(f"{o.contexts[o.right]}{o.continuations[o.right]}\n\n" for o in solved)
    built = [build(row) for row in rows]
    return [Options([before + c for c in o.contexts], o.continuations, o.right) for o in built]


def encode_pair(tokenizer: Any, context: str, continuation: str) -> tuple[list[int], list[int]]:
    """Token ids of a context and of its continuation; spaces at the context's end belong to the continuation.

    Both are encoded as one text, which is split at the length of the context alone, as in lm-evaluation-harness.
    """
    kept = context.rstrip()
    whole = tokenizer.encode(context + continuation, add_special_tokens=False)
    start = tokenizer.encode(kept, add_special_tokens=False)
    return start, whole[len(start) :]


def pairs_of(options: Options, tokenizer: Any, model: MaskedDiffusionLM, seed: int) -> list[Pair]:
    """One pair per option. Raises UserError for a pair that does not fit the model's context."""
    return [
        text_pair(context, continuation, tokenizer, model, seed)
        for context, continuation in zip(options.contexts, options.continuations, strict=True)
    ]


def text_pair(context: str, continuation: str, tokenizer: Any, model: MaskedDiffusionLM, seed: int) -> Pair:
    """A context and a continuation as tokens. The noise is keyed by (seed, context), so the options of a problem share
    it. Raises UserError for an empty continuation, a text longer than the model's context, and a mask token."""
    prompt, answer = encode_pair(tokenizer, context, continuation)
    prompt = prompt or [_prefix_token(tokenizer, model)]
    quoted = f"context {context[:60]!r}"
    if not answer:
        raise UserError(f"{quoted}: the continuation {continuation[:60]!r} has no tokens")
    if len(prompt) + len(answer) > model.max_length:
        raise UserError(
            f"{quoted}: {len(prompt)} tokens and {len(answer)} of its continuation exceed the model's context of "
            f"{model.max_length}; use fewer examples"
        )
    if model.mask_id in prompt + answer:
        raise UserError(f"{quoted}: the text or its continuation contains the mask token")
    return Pair(prompt, answer, key(seed, "likelihood", context))


def _prefix_token(tokenizer: Any, model: MaskedDiffusionLM) -> int:
    """The prompt of an empty context: BOS, or EOS where the tokenizer has no BOS."""
    return model.eos_id if tokenizer.bos_token_id is None else int(tokenizer.bos_token_id)


def bounds_of(
    model: MaskedDiffusionLM,
    tokenizer: Any,
    options: Sequence[Options],
    config: LikelihoodConfig,
    *,
    seed: int,
    tokens: int,
) -> list[list[Bound]]:
    """The likelihood bound of each option of each problem. tokens: as in likelihood_bounds."""
    pairs = [pairs_of(o, tokenizer, model, seed) for o in options]
    bounds = iter(likelihood_bounds(model, [p for problem in pairs for p in problem], config, tokens=tokens))
    return [[next(bounds) for _ in problem] for problem in pairs]


def chosen(options: Options, logp: Sequence[float]) -> tuple[int, int]:
    """Index of the option with the highest logp, and with the highest logp per character; the first if equal."""
    lengths = [len(c.strip()) for c in options.continuations]
    per_character = [x / max(1, n) for x, n in zip(logp, lengths, strict=True)]
    return max(range(len(logp)), key=lambda i: logp[i]), max(range(len(logp)), key=lambda i: per_character[i])
