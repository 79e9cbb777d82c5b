import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import lfpo.models.tensor_files
from lfpo.models.tensor_files import read_like, tensor_paths, write_shards


def test_shards_have_an_index_and_are_read_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    tensors = {"x": torch.arange(6.0).view(3, 2), "y": torch.arange(4), "step": torch.tensor(3.0)}
    monkeypatch.setattr(lfpo.models.tensor_files, "FILE_BYTES", 40)
    write_shards(tensors, tmp_path, "t")
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "t-00001-of-00002.safetensors",
        "t-00002-of-00002.safetensors",
        "t.safetensors.index.json",
    ]
    index = json.loads((tmp_path / "t.safetensors.index.json").read_text())
    assert index["metadata"] == {"total_size": 24 + 32 + 4}
    found = tensor_paths(tmp_path)
    assert {name: path.name for name, path in found.items()} == index["weight_map"]
    plain = torch.nn.Parameter(torch.zeros(3, 2))
    for name, tensor in tensors.items():
        assert torch.equal(read_like(found[name], name, plain), tensor)
        assert torch.equal(load_file(found[name])[name], tensor)
