"""Likelihood bounds against brute force over all masks."""

import itertools
import math
from pathlib import Path
from typing import Any

import pytest
import torch

import tiny
from lfpo.config.errors import UserError
from lfpo.core.structure import FULL, Structure
from lfpo.eval.likelihood import Pair, block_maskings, likelihood_bounds, maskings, text_pair
from lfpo.models import MaskedDiffusionLM, load_model, load_tokenizer

PROMPT = [40, 41, 42]


def expected_bound(model: MaskedDiffusionLM, prompt: list[int], answer: list[int], cfg_scale: float = 0.0) -> float:
    """The bound by its definition, one forward a mask: the sum over the blocks that hold the answer (one of the whole
    text with full attention), each with the clean tokens before it and masks after the answer, of the expectation over
    l uniform on 1..L and masks of l of the block's L answer tokens, weight L/l."""
    size, text, total = model.block_length or len(prompt + answer), prompt + answer, 0.0
    structure = Structure(model.block_length)

    def logits(row: list[int]) -> torch.Tensor:
        return model.head(model.hidden(torch.tensor([row]), structure=structure))[0].double()

    for first in range(len(prompt) // size * size, len(text), size):
        places = [i for i in range(first, first + size) if len(prompt) <= i < len(text)]
        for count in range(1, len(places) + 1):
            masks = list(itertools.combinations(places, count))
            for mask in masks:
                row = [model.mask_id if i in mask else token for i, token in enumerate(text[: first + size])]
                row += [model.mask_id] * (first + size - len(row))
                found = logits(row)
                if cfg_scale:
                    blind = logits([model.mask_id] * len(prompt) + row[len(prompt) :])
                    found = (1 + cfg_scale) * found - cfg_scale * blind
                logp = sum(float(found[i].log_softmax(-1)[text[i]]) for i in mask)
                total += logp / count / len(masks)
    return total


@torch.no_grad()
@pytest.mark.parametrize("cfg_scale", [0.0, 0.5])
def test_short_answers_are_exact(checkpoint: Path, cfg_scale: float):
    model, answers = load_model(checkpoint, dtype=torch.float64), [[65], [66, 67], [68, 69, 70]]
    pairs = [Pair(PROMPT, a, 0) for a in answers]
    bounds = likelihood_bounds(model, pairs, mc_num=7, cfg_scale=cfg_scale)
    for answer, bound in zip(answers, bounds, strict=True):
        assert bound == pytest.approx(expected_bound(model, PROMPT, answer, cfg_scale), abs=1e-9)
    assert [len(block_maskings(pair, 7, FULL)[0]) for pair in pairs] == [1, 3, 7]


@torch.no_grad()
@pytest.mark.parametrize("cfg_scale", [0.0, 0.5])
def test_the_bound_of_a_block_model(cfg_scale: float, tmp_path: Path):
    """Answers within a block, over two and over three, in one batch; every way of masking is computed."""
    model = load_model(tiny.write_llada(tmp_path / "m", block_length=4), dtype=torch.float64)
    pairs = [Pair(PROMPT[:p], [65, 66, 67, 68, 69, 70, 71][:a], 0) for p, a in ((3, 1), (2, 2), (3, 3), (1, 7), (3, 7))]
    bounds = likelihood_bounds(model, pairs, mc_num=15, cfg_scale=cfg_scale)
    for pair, bound in zip(pairs, bounds, strict=True):
        assert bound == pytest.approx(expected_bound(model, pair.prompt, pair.answer, cfg_scale), abs=1e-9)
    # As many copies as the block with the most ways has: 1, 2 and 1 answer tokens, then 3 and 4, then 1, 4 and 2.
    assert [len(block_maskings(pair, 15, Structure(4))[0]) for pair in pairs] == [1, 3, 3, 15, 15]


@torch.no_grad()
def test_bounds_that_are_not_numbers_are_an_error(checkpoint: Path):
    model = load_model(checkpoint)
    model.backbone.model.norm.weight.fill_(math.nan)
    with pytest.raises(UserError, match=r"its predictions are not numbers \(model.norm.weight holds values"):
        likelihood_bounds(model, [Pair(PROMPT, [65], 0)], mc_num=1)


@torch.no_grad()
@pytest.mark.parametrize(("block", "length", "mc_num"), [(None, 3, 1), (None, 3, 4), (None, 4, 8), (4, 6, 3)])
def test_the_estimate_is_unbiased(block: int | None, length: int, mc_num: int, tmp_path: Path):
    """The mean over many seeds comes within four of its own standard errors of the full enumeration."""
    changes: dict[str, Any] = {"block_length": block} if block else {}
    model = load_model(tiny.write_llada(tmp_path / "m", **changes))
    answer, seeds = [65, 66, 67, 68, 69, 70][:length], 300
    pairs = [Pair(PROMPT, answer, seed * 7919) for seed in range(seeds)]
    values = torch.tensor(likelihood_bounds(model, pairs, mc_num=mc_num, tokens=4096))
    error = float(values.std()) / math.sqrt(seeds)
    assert 0 < abs(float(values.mean()) - expected_bound(model, PROMPT, answer)) < 4 * error


def test_counts_are_spread_over_their_range():
    for seed in range(20):
        masked, weight = maskings(10, seed, 40)
        counts = masked.sum(-1)
        assert counts.bincount(minlength=11).tolist() == [0] + [4] * 10  # four of each, not a sample of them
        assert torch.equal(weight, 10 / counts.double() / 40)
        fewer = maskings(10, seed, 5)[0].sum(-1).sort().values
        assert torch.equal(fewer.diff(), torch.full((4,), 2))
    positions = torch.stack([maskings(10, seed, 40)[0] for seed in range(50)]).float().mean((0, 1))
    assert torch.allclose(positions, torch.full((10,), 0.55), atol=0.05)  # no position is masked more than another


def test_bounds_depend_on_their_pair_only(llada: Path):
    model = load_model(llada, dtype=torch.float64)
    pairs = [Pair(PROMPT * (i + 1), [65 + i, 70, 71, 72][: 2 + i % 3], i) for i in range(5)]
    every = likelihood_bounds(model, pairs, mc_num=3)
    alone = [likelihood_bounds(model, [p], mc_num=3, tokens=1)[0] for p in pairs]
    backwards = likelihood_bounds(model, pairs[::-1], mc_num=3, tokens=40)[::-1]
    assert every == pytest.approx(alone, abs=1e-12)
    assert every == pytest.approx(backwards, abs=1e-12)


def test_spaces_before_an_answer_belong_to_it():
    model, tokenizer = load_model("embedded"), load_tokenizer("embedded")
    for context, continuation in (("3 + 4 = ", "7"), ("3 + 4 =", " 7"), ("3 + 4 = \n", "7")):
        pair = text_pair(context, continuation, tokenizer, model, 0)
        assert tokenizer.decode(pair.prompt) == "3 + 4 ="
        assert tokenizer.decode(pair.prompt + pair.answer) == context + continuation


def test_what_does_not_fit_is_one_error(llada: Path):
    model, tokenizer = load_model(llada), load_tokenizer(llada)
    with pytest.raises(UserError, match="has no tokens"):
        text_pair("abc", "", tokenizer, model, 0)
    with pytest.raises(UserError, match=r"context of 512"):
        text_pair("a" * 600, "b", tokenizer, model, 0)
    with pytest.raises(UserError, match="mask token"):
        text_pair("a<|mdm_mask|>", "b", tokenizer, model, 0)
    assert text_pair("", "b", tokenizer, model, 0).prompt == [256]  # a text without context starts after BOS
