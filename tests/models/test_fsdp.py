"""Weights split over ranks: losses, gradients, steps and rollouts are those of one process."""

from pathlib import Path
from typing import Any

import pytest
import torch

import tiny
from fsdp_training import PROMPTS, SAMPLER, SEEDS, STEPS, Training, trains_as_one
from lfpo.base import distributed
from lfpo.config.errors import UserError
from lfpo.config.models import LoraSettings
from lfpo.config.train import LFPOConfig
from lfpo.core import collectives
from lfpo.core.model import BASE
from lfpo.models import load_model
from lfpo.models.fsdp import gathered
from lfpo.models.lora import attach, inject, with_adapter
from lfpo.models.placement import sampling
from lfpo.rollout.sampling import rollout
from lfpo.train.setup import check_ranks
from processes import run_ranks
from split_memory import FORWARDS, gathered_bytes, measured, one_backward, rollouts, save, start, write_model

LORA = LoraSettings(r=2, lora_alpha=4)


Case = tuple[int, int, LoraSettings | None, bool, bool]
CASES: list[Case] = [(2, 0, LORA, True, False), (1, 0, None, False, False), (4, 2, None, False, True)]
CASES += [(3, 0, None, True, False), (4, 2, LORA, False, False)]


@pytest.mark.long
@pytest.mark.parametrize(("ranks", "shards", "lora", "checkpointing", "tied"), CASES)
def test_split_weights_train_as_whole_ones(
    ranks: int, shards: int, lora: LoraSettings | None, checkpointing: bool, tied: bool, llada: Path, tmp_path: Path
):
    """tied: a Dream whose head is tied to its embeddings."""
    folder = tiny.write_dream(tmp_path / "dream", tie_word_embeddings=True) if tied else llada
    trajectory = rollout(load_model(folder, dtype=torch.float64), PROMPTS, SAMPLER, SEEDS)
    for rank in run_ranks(ranks, trains_as_one, folder, shards, lora, checkpointing, trajectory):
        assert rank.returncode == 0, rank.stderr


def gathers_in_bfloat16(folder: Path, trajectory: Any) -> None:
    """Under autocast, layers gathered in bfloat16 and in float32 give the same bits."""
    distributed.start()
    found, sent = [], []
    for cast in (False, True):
        training = Training(folder, distributed.mesh(), lora=None, checkpointing=True, cast=cast)
        with gathered_bytes() as bytes_:
            found.append([training.step(trajectory, collectives.own_indices(4)) for _ in range(STEPS)])
        sent.append(bytes_[0])
    for wide, narrow in zip(*found, strict=True):
        assert all(torch.equal(wide[name], narrow[name]) for name in wide)
    assert found[0][0]["norm"] > 1e-3
    assert 0.4 < sent[1] / sent[0] < 0.9  # the head is gathered in float32


@pytest.mark.long
def test_layers_gathered_in_bfloat16_give_what_autocast_gives(checkpoint: Path):
    trajectory = rollout(load_model(checkpoint), PROMPTS, SAMPLER, SEEDS)
    for rank in run_ranks(2, gathers_in_bfloat16, checkpoint, trajectory):
        assert rank.returncode == 0, rank.stderr


@pytest.mark.parametrize("cast", [False, True])
def test_copies_with_an_adapter_apart_or_merged_are_those_of_one_process(group: None, cast: bool, checkpoint: Path):
    ids, mask = torch.tensor([[5, 6, 7, 8], [9, 10, 11, 12]]), torch.ones(2, 4, dtype=torch.long)
    plain, split = load_model(checkpoint), load_model(checkpoint, mesh=distributed.mesh())
    plain.autocast = split.autocast = cast
    for policy in (plain, split):
        attach(policy, LORA)
        for _, factor in policy.factors():
            factor.data.copy_(torch.randn(factor.shape, generator=torch.Generator().manual_seed(len(factor))))
    inject(split.unsplit[0], LORA)
    with torch.no_grad():
        with sampling(plain, cast=cast, move_to_device=False, merge=True):
            expected = plain.hidden(ids, mask)
            kinds = {name: p.dtype for name, p in plain.backbone.named_parameters()}
        assert not torch.allclose(expected, with_adapter(plain, BASE).hidden(ids, mask))
        for _ in range(2):  # what is freed is merged again
            with gathered(split, cast=cast, merge=True) as whole:
                assert torch.equal(whole.hidden(ids, mask), expected)
                assert {name: p.dtype for name, p in whole.backbone.named_parameters()} == kinds
            assert all(p.is_meta for p in whole.parameters())
        with gathered(split, cast=cast) as whole:
            assert torch.equal(whole.hidden(ids, mask), plain.hidden(ids, mask))
            assert torch.equal(whole.head_weight, plain.head_weight)
            narrow = {p.dtype for p in whole.backbone.model.layers.parameters() if p.ndim == 2}
            assert (torch.bfloat16 in narrow) == cast


@pytest.mark.long
def test_a_rollout_gathers_the_model_once_or_its_layers_at_every_forward(tmp_path: Path):
    sizes = write_model(tmp_path, "float32", layers=4, width=64, mlp=128, vocabulary=32)
    found = measured(rollouts, 2, tmp_path)
    head = 4 * 32 * 64
    assert found["model: bytes gathered"] == found["split weights"] == 2 * head + 4 * sizes
    tokens = 2 * 8 * 8  # of both ranks, which look up their own rows of the embeddings for all of them
    assert found["layer: bytes gathered"] == head + FORWARDS * (tokens + 4 * sizes)


def test_a_group_size_that_does_not_divide_the_ranks(group: None, tmp_path: Path):
    with pytest.raises(UserError, match="fsdp_size 2 does not divide the number of ranks, 1"):
        check_ranks(LFPOConfig(output_dir=str(tmp_path), fsdp=True, fsdp_size=2), "train")


@pytest.mark.long
def test_gradients_leave_during_the_backward_pass(tmp_path: Path):
    """The peak of a pass is a few layers' gradients (4 to 7 were seen), not those of all 16."""
    write_model(tmp_path, "float32", layers=16, width=512, mlp=1536, vocabulary=512)
    found = measured(one_backward, 2, tmp_path)
    assert found["peak"] < 10 * found["layer"]


@pytest.mark.long
def test_the_start_takes_a_ranks_share(tmp_path: Path):
    write_model(tmp_path, "bfloat16", layers=2, width=512, mlp=1536, vocabulary=32768)
    weights = 4 * 2 * sum(p.numel() for p in load_model(tmp_path).parameters())  # model and reference, float32
    for ranks in (1, 4):
        assert measured(start, ranks, tmp_path)["peak"] < 1.1 * weights / ranks + 2**24


@pytest.mark.long
def test_a_tensor_is_gathered_on_the_rank_that_writes_it(tmp_path: Path):
    write_model(tmp_path, "float32", layers=1, width=512, mlp=512, vocabulary=65536)
    found = measured(save, 2, tmp_path)
    assert found["peak"] < 1.4 * found["largest"]
