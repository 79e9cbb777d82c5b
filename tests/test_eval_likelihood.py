"""Likelihood bounds against brute force over all masks, and multiple choice by them."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path

import pytest
import torch

import tiny
from lfpo.base.errors import UserError
from lfpo.cli.command_line import main
from lfpo.eval.choices import FORMATS, Options, chosen, encode_pair, options_of, text_pair
from lfpo.eval.likelihood import Pair, likelihood_bounds, maskings
from lfpo.eval.settings import LikelihoodConfig
from lfpo.models import MaskedDiffusionLM, load_model, load_tokenizer
from lfpo.models.structure import Structure
from lfpo.prompts.tasks import get_task

PROMPT = [40, 41, 42]


def expected_bound(folder: Path, prompt: list[int], answer: list[int], cfg_scale: float = 0.0) -> float:
    """The expectation by its definition: l uniform on 1..L, masks of l tokens alike, weight L/l. Float64 sums over
    logits of the plain forward pass, one mask at a time."""
    model = load_model(folder)
    length, total = len(answer), 0.0
    for count in range(1, length + 1):
        masks = list(itertools.combinations(range(length), count))
        for mask in masks:
            noised = [model.mask_id if i in mask else token for i, token in enumerate(answer)]
            logits = tiny.reference_logits(folder, torch.tensor([prompt + noised]))[0].double()
            if cfg_scale:
                blind = tiny.reference_logits(folder, torch.tensor([[model.mask_id] * len(prompt) + noised]))[
                    0
                ].double()
                logits = (1 + cfg_scale) * logits - cfg_scale * blind
            shift = int(model.family.shift)
            logp = sum(logits[len(prompt) + i - shift].log_softmax(-1)[answer[i]] for i in mask)
            total += float(logp) * length / count / len(masks) / length
    return total


@pytest.mark.parametrize("cfg_scale", [0.0, 0.5])
def test_short_answers_are_exact(checkpoint: Path, cfg_scale: float):
    model, config = load_model(checkpoint), LikelihoodConfig(mc_num=7, cfg_scale=cfg_scale)
    answers = [[65], [66, 67], [68, 69, 70]]
    bounds = likelihood_bounds(model, [Pair(PROMPT, a, 0) for a in answers], config)
    for answer, bound in zip(answers, bounds, strict=True):
        assert bound.exact
        assert bound.logp == pytest.approx(expected_bound(checkpoint, PROMPT, answer, cfg_scale), abs=1e-4)
    assert [b.nfe for b in bounds] == [n * (2 if cfg_scale else 1) for n in (1, 3, 7)]


@pytest.mark.parametrize(("length", "mc_num"), [(3, 1), (3, 4), (4, 8)])
def test_the_estimate_is_unbiased(length: int, mc_num: int, llada: Path):
    """The mean over many seeds comes within four of its own standard errors of the full enumeration."""
    answer, seeds = [65, 66, 67, 68][:length], 300
    pairs = [Pair(PROMPT, answer, seed * 7919) for seed in range(seeds)]
    bounds = likelihood_bounds(load_model(llada), pairs, LikelihoodConfig(mc_num=mc_num), tokens=4096)
    values = torch.tensor([b.logp for b in bounds])
    assert not bounds[0].exact
    assert bounds[0].nfe == mc_num
    error = float(values.std()) / math.sqrt(seeds)
    assert error > 0
    assert abs(float(values.mean()) - expected_bound(llada, PROMPT, answer)) < 4 * error


def block_bound(model: MaskedDiffusionLM, prompt: list[int], answer: list[int], cfg_scale: float) -> float:
    """The bound of a model that attends block by block, by its definition: the sum over the blocks that hold the answer
    of `expected_bound`'s expectation, each with the clean tokens before it and masks after the answer. One forward a
    mask, without the doubled layout."""
    size, text, total = model.block_length or 0, prompt + answer, 0.0
    structure = Structure(size)

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
def test_the_bound_of_a_block_model(cfg_scale: float, tmp_path: Path):
    """Answers within a block, over two and over three, in one batch; every way of masking is computed."""
    model = load_model(tiny.write_llada(tmp_path / "m", block_length=4), dtype=torch.float64)
    pairs = [Pair(PROMPT[:p], [65, 66, 67, 68, 69, 70, 71][:a], 0) for p, a in ((3, 1), (2, 2), (3, 3), (1, 7), (3, 7))]
    bounds = likelihood_bounds(model, pairs, LikelihoodConfig(mc_num=15, cfg_scale=cfg_scale))
    for pair, bound in zip(pairs, bounds, strict=True):
        assert bound.exact
        assert bound.logp == pytest.approx(block_bound(model, pair.prompt, pair.answer, cfg_scale), abs=1e-9)
    # As many forwards as the block with the most ways has: 1, 2 and 1 answer tokens, then 3 and 4, then 1, 4 and 2.
    assert [b.nfe for b in bounds] == [n * (2 if cfg_scale else 1) for n in (1, 3, 3, 15, 15)]


@torch.no_grad()
def test_the_estimate_of_a_block_model_is_unbiased(tmp_path: Path):
    model = load_model(tiny.write_llada(tmp_path / "m", block_length=4))
    answer = [65, 66, 67, 68, 69, 70]
    bounds = likelihood_bounds(model, [Pair(PROMPT, answer, s * 7919) for s in range(200)], LikelihoodConfig(mc_num=3))
    values = torch.tensor([b.logp for b in bounds])
    assert not bounds[0].exact and bounds[0].nfe == 3
    error = float(values.std()) / math.sqrt(len(values))
    assert 0 < abs(float(values.mean()) - block_bound(model, PROMPT, answer, 0.0)) < 4 * error


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
    model, config = load_model(llada, dtype=torch.float64), LikelihoodConfig(mc_num=3)
    pairs = [Pair(PROMPT * (i + 1), [65 + i, 70, 71, 72][: 2 + i % 3], i) for i in range(5)]
    every = [b.logp for b in likelihood_bounds(model, pairs, config)]
    alone = [likelihood_bounds(model, [p], config, tokens=1)[0].logp for p in pairs]
    backwards = [b.logp for b in likelihood_bounds(model, pairs[::-1], config, tokens=40)][::-1]
    assert every == pytest.approx(alone, abs=1e-12)
    assert every == pytest.approx(backwards, abs=1e-12)


def test_options_as_text():
    rows = {
        "hellaswag": {"question": "Which?\n[header] A man [title] runs", "options": ["fast.", "home."], "answer": "B"},
        "winogrande": {"question": "What?\nAnn met Eva as _ was late.", "options": ["Ann", "Eva"], "answer": "A"},
        "piqa": {"question": "Which?\nboil water", "options": ["heat it", "cool it"], "answer": "A"},
        "gpqa": {"question": "Why?", "options": ["a", "b", "c", "d"], "answer": "D"},
    }
    built = {name: FORMATS[name](row) for name, row in rows.items()}
    assert built["hellaswag"] == Options(["A man. runs"] * 2, [" fast.", " home."], 1)
    assert built["winogrande"] == Options(["Ann met Eva as Ann", "Ann met Eva as Eva"], [" was late."] * 2, 0)
    assert built["piqa"] == Options(["Question: boil water\nAnswer:"] * 2, [" heat it", " cool it"], 0)
    assert built["gpqa"].right == 3


def test_spaces_before_an_answer_belong_to_it():
    tokenizer = load_tokenizer("embedded")
    for context, continuation in (("3 + 4 = ", "7"), ("3 + 4 =", " 7"), ("3 + 4 = \n", "7")):
        start, answer = encode_pair(tokenizer, context, continuation)
        assert tokenizer.decode(start) == "3 + 4 ="
        assert tokenizer.decode(start + answer) == context + continuation


def test_the_longer_option_is_not_worse_per_character():
    options = Options(["c"] * 2, [" a", " bbbb"], 1)
    assert chosen(options, [-1.0, -2.0]) == (0, 1)
    assert chosen(options, [-1.0, -1.0]) == (0, 1)


def test_what_does_not_fit_is_one_error(llada: Path):
    model, tokenizer = load_model(llada), load_tokenizer(llada)
    with pytest.raises(UserError, match="has no tokens"):
        text_pair("abc", "", tokenizer, model, 0)
    with pytest.raises(UserError, match=r"context of 512"):
        text_pair("a" * 600, "b", tokenizer, model, 0)
    with pytest.raises(UserError, match="mask token"):
        text_pair("a<|mdm_mask|>", "b", tokenizer, model, 0)
    assert text_pair("", "b", tokenizer, model, 0).prompt == [256]  # a text without context starts after BOS
    with pytest.raises(UserError, match="needs multiple choice"):
        options_of(get_task("sudoku"), [], [])


def test_the_command_names_likelihood_apart(tmp_path: Path):
    arguments = ["eval", "--task", "choice", "--n", "8", "--output", str(tmp_path)]
    assert main([*arguments, "--scoring", "likelihood"]) == 0
    result = json.loads((tmp_path / "choice-likelihood.json").read_text())
    assert result["scoring"] == "likelihood"
    assert result["likelihood"] == {"mc_num": 128, "cfg_scale": 0.0}
    assert {"accuracy", "interval", "accuracy_norm", "interval_norm", "mean_nfe"} <= result.keys()
    assert "sampler" not in result
    kept = [json.loads(x) for x in (tmp_path / "choice-likelihood.completions.jsonl").read_text().splitlines()]
    assert result["accuracy"] == sum(k["chosen"] == k["right"] for k in kept) / 8
    assert all(len(k["logp"]) == 2 for k in kept)
