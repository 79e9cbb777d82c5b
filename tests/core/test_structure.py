"""Attention structures: masks against a rule written out by hand, and against those of the published codes."""

import json
from pathlib import Path

import pytest
import torch
from torch.nn.attention.flex_attention import create_mask

from golden_families import FOLDER, golden, golden_io
from lfpo.core.doubled import noised_hidden, training_structure
from lfpo.core.structure import CAUSAL, FULL, Doubled, Structure
from lfpo.models import load_model

BLOCK = 3
# Real tokens of four rows: whole, padded on the left, on the right, and on both sides; and those of their prompts.
REAL = torch.tensor(
    [[1, 1, 1, 1, 1, 1, 1, 1], [0, 0, 1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 0, 0, 0], [0, 1, 1, 1, 1, 1, 1, 0]]
).bool()
PROMPT = torch.tensor([4, 3, 2, 4])


def by_hand(real: list[bool], prompt: int, structure: Structure, noised: int) -> list[list[bool]]:
    """The mask of a row, from places and block numbers of its real tokens: sees[query][key]. noised: how many of its
    last columns stand there as noised tokens, before the clean ones."""
    length, first = len(real), real.index(True)
    columns = [*((True, i) for i in range(length - noised, length)), *((False, i) for i in range(length))]

    def block(column: int) -> int:
        return (column - first - prompt * structure.causal) // BLOCK

    def sees(query: tuple[bool, int], key: tuple[bool, int]) -> bool:
        (query_noised, i), (key_noised, j) = query, key
        if query_noised:
            return block(i) == block(j) if key_noised else block(j) < block(i)
        return not key_noised and (j <= i if structure.causal else block(j) <= block(i))

    return [[sees(query, key) and real[key[1]] for key in columns] for query in columns]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("noised", [0, 5, 8])
def test_masks_are_those_written_out_by_hand(causal: bool, noised: int):
    structure = Structure(BLOCK, causal=causal, doubled=noised > 0)
    found = structure.dense(REAL, Doubled(PROMPT, noised) if noised else None)
    expected = torch.tensor(
        [by_hand(row, p, structure, noised) for row, p in zip(REAL.tolist(), PROMPT.tolist(), strict=True)]
    )
    assert found.shape == expected.shape
    real = torch.cat([REAL[:, REAL.shape[1] - noised :], REAL], dim=1)
    for row, query in real.nonzero().tolist():  # what a padded query sees is of no use to anybody
        assert found[row, query].tolist() == expected[row, query].tolist(), (row, query)
    assert found.any(-1).all()  # no softmax is empty
    assert not (found & ~real[:, None]).any()


def test_full_attention_and_the_causal_context_alone():
    assert torch.equal(FULL.dense(REAL), REAL[:, None].expand(-1, 8, -1))
    assert torch.equal(CAUSAL.dense(REAL[:1])[0], torch.ones(8, 8).tril().bool())
    assert FULL.positions(REAL)[1].tolist() == [0, 0, 0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("structure", [Structure(BLOCK, doubled=True), Structure(BLOCK, causal=True, doubled=True)])
def test_tokens_and_pairs_are_those_of_the_mask(structure: Structure):
    """A row alone, whose noised tokens begin where its own first block does."""
    for length, prompt in ((8, 1), (8, 3), (8, 4), (9, 6), (12, 5), (4, 3)):
        start = int(structure.first_noised(torch.tensor([prompt])))
        assert start == (prompt if structure.causal else prompt // BLOCK * BLOCK)
        row, sizes = torch.ones(1, length).bool(), (torch.tensor([length]), torch.tensor([prompt]))
        seen = structure.dense(row, Doubled(sizes[1], length - start))
        assert int(structure.tokens(*sizes)) == seen.shape[1] == 2 * length - start
        assert int(structure.pairs(*sizes)) == int(seen.sum())


@pytest.mark.parametrize("structure", [FULL, CAUSAL, Structure(BLOCK)], ids=str)
def test_the_rule_gives_flex_attention_the_same_mask(structure: Structure):
    found = create_mask(structure.sees(REAL), 4, None, 8, 8, device="cpu")
    assert torch.equal(found[:, 0].bool(), structure.dense(REAL))


@pytest.mark.parametrize("causal", [False, True])
def test_the_rule_gives_flex_attention_the_same_doubled_mask(causal: bool):
    structure, doubled = Structure(BLOCK, causal=causal, doubled=True), Doubled(PROMPT, 6)
    found = create_mask(structure.sees(REAL, doubled), 4, None, 14, 14, device="cpu")
    assert torch.equal(found[:, 0].bool(), structure.dense(REAL, doubled))


# The golden models that attend block by block -> the block length of their runs.
GOLDEN_BLOCKS = {"sdar": 4, "sdar_moe": 4, "llada2_0": 8, "llada2_1": 8}


@torch.no_grad()
@pytest.mark.parametrize(("family", "block"), GOLDEN_BLOCKS.items())
def test_masks_and_logits_are_those_of_the_published_code(family: str, block: int, tmp_path: Path):
    io, model = golden_io(family), load_model(golden(family, tmp_path / family))
    real = torch.ones_like(io["block.ids"], dtype=torch.bool)
    assert torch.equal(Structure(block).dense(real)[0], io["block.mask"])
    logits = model.head(model.hidden(io["block.ids"], structure=Structure(block)))
    torch.testing.assert_close(logits, io["block.logits"], rtol=0, atol=1e-4)
    # The published layout repeats the prompt: with a prompt of one token all columns are noised here.
    noised, clean = io["double.ids"].chunk(2, dim=1)
    structure, real, prompt = Structure(block, doubled=True), torch.ones_like(clean).bool(), torch.tensor([1])
    assert torch.equal(structure.dense(real, Doubled(prompt, clean.shape[1]))[0], io["double.mask"])
    found = noised_hidden(model, noised, clean, real, prompt, structure=structure)
    torch.testing.assert_close(model.head(torch.cat(found, dim=1)), io["double.logits"], rtol=0, atol=1e-4)


@torch.no_grad()
def test_blocks_over_a_causal_context_have_the_golden_logits():
    """Of the noised completion, and of the causal pass from the prompt's last token on, in one doubled forward; rows of
    different prompts and lengths in one batch."""
    model = load_model(FOLDER / "nemotron_labs_diffusion")
    cases = json.loads((FOLDER / "nemotron_labs_diffusion" / "expected.json").read_text())["doubled"]
    width = max(len(case["prompt"] + case["clean"]) for case in cases)

    def padded(completion: str) -> torch.Tensor:
        rows = [case["prompt"] + case[completion] for case in cases]
        return torch.tensor([[0] * (width - len(row)) + row for row in rows])

    prompt = torch.tensor([len(case["prompt"]) for case in cases])
    noised, clean = padded("noised"), padded("clean")
    real = torch.arange(width) >= width - torch.tensor([[len(c["prompt"] + c["clean"])] for c in cases])
    found, context = noised_hidden(model, noised, clean, real, prompt, structure=training_structure(model))
    assert found.shape[1] == max(len(case["clean"]) for case in cases)
    for row, case in enumerate(cases):
        size = len(case["clean"])
        logits, ar_logits = model.head(found[row, -size:]), model.head(context[row, -size - 1 :])
        torch.testing.assert_close(logits, torch.tensor(case["logits"]), rtol=0, atol=1e-4)
        torch.testing.assert_close(ar_logits, torch.tensor(case["ar_logits_last"]), rtol=0, atol=1e-4)
    alone = model.hidden(clean, real, structure=CAUSAL)
    torch.testing.assert_close(alone[real], context[real], rtol=0, atol=1e-4)
