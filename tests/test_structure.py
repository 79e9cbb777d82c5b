"""Attention structures: masks against a rule written out by hand, and against those of the published codes."""

from pathlib import Path

import pytest
import torch
from torch.nn.attention.flex_attention import create_mask

from golden_families import golden, golden_io
from lfpo.core.attention import FULL, Structure
from lfpo.models import load_model

BLOCK = 3
# Real tokens of four rows: whole, padded on the left, on the right, and on both sides.
REAL = torch.tensor(
    [[1, 1, 1, 1, 1, 1, 1, 1], [0, 0, 1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 0, 0, 0], [0, 1, 1, 1, 1, 1, 1, 0]]
)


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
