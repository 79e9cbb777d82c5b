"""Attention structures: masks against a rule written out by hand, states against passes over one block alone."""

from pathlib import Path

import pytest
import torch
from torch.nn.attention.flex_attention import create_mask

from golden_families import golden, golden_io
from lfpo.models import MaskedDiffusionLM, load_model
from lfpo.models.attention import bidirectional_attention
from lfpo.models.kv_cache import KeyValueCache
from lfpo.models.structure import FULL, Structure
from tiny import random_ids

BLOCK = 3
# Real tokens of four rows: whole, padded on the left, on the right, and on both sides.
REAL = torch.tensor(
    [[1, 1, 1, 1, 1, 1, 1, 1], [0, 0, 1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 0, 0, 0], [0, 1, 1, 1, 1, 1, 1, 0]]
)


@pytest.fixture
def model(llada: Path) -> MaskedDiffusionLM:
    return load_model(llada, dtype=torch.float64)


def by_hand(real: list[int], doubled: bool) -> list[list[bool]]:
    """The mask of a row, from block numbers of its real tokens: sees[query][key]."""
    length, first = len(real), real.index(1)
    blocks = [(i - first) // BLOCK for i in range(length)]
    tokens = [(half, blocks[i], bool(real[i])) for half in ("noised", "clean") for i in range(length)]
    tokens = tokens if doubled else tokens[length:]

    def sees(half: str, block: int, key: str, key_block: int) -> bool:
        if key == "clean":
            return key_block < block or (half == "clean" and key_block == block)
        return half == "noised" and key_block == block

    return [[there and sees(half, block, key, at) for key, at, there in tokens] for half, block, _ in tokens]


@pytest.mark.parametrize("doubled", [False, True])
def test_masks_are_those_written_out_by_hand(doubled: bool):
    structure = Structure(BLOCK, doubled)
    real = REAL.bool().repeat(1, 2) if doubled else REAL.bool()
    found = structure.dense(real)
    queries = real.nonzero()  # what a padded query sees is of no use to anybody
    expected = torch.tensor([by_hand(row, doubled) for row in REAL.tolist()])
    assert found.shape == expected.shape
    for row, query in queries.tolist():
        assert found[row, query].tolist() == expected[row, query].tolist(), (row, query)
    assert found.any(-1).all()  # no softmax is empty
    assert not (found & ~real[:, None]).any()


def test_positions_count_from_the_first_real_token_in_each_half():
    assert Structure(BLOCK).positions(REAL)[1].tolist() == [0, 0, 0, 1, 2, 3, 4, 5]
    doubled = Structure(BLOCK, doubled=True).positions(REAL.repeat(1, 2))
    assert torch.equal(doubled, FULL.positions(REAL).repeat(1, 2))


@pytest.mark.parametrize("structure", [FULL, Structure(BLOCK), Structure(BLOCK, doubled=True)], ids=str)
def test_the_rule_gives_flex_attention_the_same_mask(structure: Structure):
    real = REAL.bool().repeat(1, 2)
    length = real.shape[1]
    found = create_mask(structure.sees(real), len(real), None, length, length, device="cpu")
    assert torch.equal(found[:, 0].bool(), structure.dense(real))


@pytest.mark.parametrize("kv_heads", [4, 2])
def test_flex_attention_equals_the_dense_mask(kv_heads: int):
    structure, real = Structure(BLOCK, doubled=True), REAL.bool().repeat(1, 2)
    rng = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(len(real), h, real.shape[1], 16, generator=rng) for h in (4, kv_heads, kv_heads))
    module = torch.nn.Identity()
    dense = bidirectional_attention(module, query, key, value, structure.mask(real, torch.float32), scaling=0.3)[0]
    flex = bidirectional_attention(module, query, key, value, structure.flex(real), scaling=0.3)[0]
    torch.testing.assert_close(flex, dense, rtol=1e-5, atol=1e-5)


# The golden models that attend block by block -> the block length of their runs.
GOLDEN_BLOCKS = {"sdar": 4, "sdar_moe": 4, "llada2_0": 8, "llada2_1": 8}


@torch.no_grad()
@pytest.mark.parametrize(("family", "block"), GOLDEN_BLOCKS.items())
@pytest.mark.parametrize("layout", ["block", "double"])
def test_masks_and_logits_are_those_of_the_published_code(family: str, block: int, layout: str, tmp_path: Path):
    io, model = golden_io(family), load_model(golden(family, tmp_path / family))
    structure, ids = Structure(block, doubled=layout == "double"), io[f"{layout}.ids"]
    real = torch.ones_like(ids, dtype=torch.bool)
    assert torch.equal(structure.dense(real)[0], io[f"{layout}.mask"])
    if layout == "double":
        assert torch.equal(structure.positions(real), io["double.position_ids"])
    logits = model.head(model.hidden(ids, structure=structure))
    torch.testing.assert_close(logits, io[f"{layout}.logits"], rtol=0, atol=1e-4)


def alone(model: MaskedDiffusionLM, noised: torch.Tensor, clean: torch.Tensor, block: int) -> torch.Tensor:
    """States of one noised block of a row, [length, D], after its clean prefix in a cache, without a structure."""
    start, end = block * BLOCK, min((block + 1) * BLOCK, len(clean))
    if start == 0:
        return model.hidden(noised[None, :end])[0]
    # A row of one block more than the prefix. Full attention would show the prefix the block, so the prefix is run
    # first, block by block, each by itself after those before it.
    cache = KeyValueCache()
    model.hidden(clean[None, :BLOCK], cache=cache)
    for i, held in cache.layers.items():
        room = (0, 0, 0, len(clean) + 1 - BLOCK)
        cache.layers[i] = tuple(torch.nn.functional.pad(x[:, :, :BLOCK], room) for x in held)  # type: ignore[assignment]
    found = None
    for at in range(1, block + 1):
        ids, seen = noised if at == block else clean, (torch.arange(len(clean)) < (at + 1) * BLOCK)[None].long()
        found = model.window_hidden(ids[None], seen, torch.tensor([at * BLOCK]), BLOCK, cache)
    assert found is not None
    return found[0][: end - start]


def test_a_noised_block_has_the_states_that_it_has_alone_after_a_clean_prefix(model: MaskedDiffusionLM):
    clean = random_ids(4, REAL.shape[1], seed=1)
    noised = clean.masked_fill(torch.rand(clean.shape, generator=torch.Generator().manual_seed(2)) < 0.5, model.mask_id)
    structure = Structure(BLOCK, doubled=True)
    states = model.hidden(torch.cat([noised, clean], 1), REAL.repeat(1, 2), structure=structure)
    causal = model.hidden(clean, REAL, structure=Structure(BLOCK))
    length = REAL.shape[1]
    for row, real in enumerate(REAL.bool()):
        torch.testing.assert_close(states[row, length:][real], causal[row][real], rtol=1e-9, atol=1e-9)
        own_noised, own_clean, found = noised[row][real], clean[row][real], states[row, :length][real]
        for block in range(-(-len(own_clean) // BLOCK)):
            piece = slice(block * BLOCK, (block + 1) * BLOCK)
            expected = alone(model, own_noised, own_clean, block)
            torch.testing.assert_close(found[piece], expected, rtol=1e-9, atol=1e-9)


def test_a_structure_changes_what_full_attention_gives(model: MaskedDiffusionLM):
    ids = random_ids(1, 8, seed=1)
    assert not torch.allclose(model.hidden(ids), model.hidden(ids, structure=Structure(BLOCK)))
    torch.testing.assert_close(model.hidden(ids), model.hidden(ids, structure=Structure(8)))  # one block sees all
