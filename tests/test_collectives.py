"""Collectives of tensors over two and three ranks."""

import pytest
import torch

from lfpo.base import distributed
from lfpo.base.errors import UserError
from processes import run_ranks


def gathers_and_sums() -> None:
    distributed.start()
    rank, ranks = distributed.rank(), distributed.world()
    for dtype in (torch.float64, torch.int64, torch.bool, torch.float32):
        for lengths in ([2, 0, 3], [0, 0, 0], [1, 1, 1]):
            whole = (torch.arange(sum(lengths[:ranks]) * 4) % 3).to(dtype).view(-1, 2, 2)
            gathered = distributed.all_gather_tensor(whole.split(lengths[:ranks])[rank])
            assert gathered.dtype == dtype and torch.equal(gathered, whole)
    rows = distributed.all_gather_tensor(torch.arange(6).view(2, 3).T[:rank])  # not contiguous
    assert rows.tolist() == [[0, 3], [0, 3], [1, 4]][: ranks * (ranks - 1) // 2]
    assert distributed.sum_number(rank + 0.5) == sum(range(ranks)) + ranks / 2


@pytest.mark.parametrize("ranks", [2, 3])
def test_tensors_of_all_ranks(ranks: int):
    ended = run_ranks(ranks, gathers_and_sums)
    assert [rank.returncode for rank in ended] == [0] * ranks, ended


def test_more_ranks_than_gpus_are_an_error(monkeypatch: pytest.MonkeyPatch):
    ranks = {"RANK": "2", "WORLD_SIZE": "4", "LOCAL_RANK": "2", "LOCAL_WORLD_SIZE": "4", "MASTER_ADDR": "here"}
    for name, value in ranks.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(UserError, match="4 ranks on a machine with 2 GPUs: give torchrun --nproc_per_node 2"):
        distributed.start()


def test_without_a_process_group_a_tensor_is_returned_as_it_is():
    x = torch.ones(2, 3)
    assert distributed.all_gather_tensor(x) is x and distributed.sum_number(0.1) == 0.1
