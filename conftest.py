"""Fixtures: tiny random checkpoints in each family's real layout, one torch thread, no network."""

import gc
import os

os.environ["HF_HUB_OFFLINE"] = "1"  # before huggingface_hub is imported: no test may reach the hub
# bitsandbytes, which peft imports, decorates functions with torch.compile: one CPU second at each import.
os.environ["TORCHDYNAMO_DISABLE"] = "1"
os.environ |= {"RAY_worker_niceness": "0"}  # else Ray's workers wait for the cores that other tests use
os.environ["TRITON_INTERPRET"] = "1"  # before triton is imported: tests run its kernels on CPUs

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("untimed", deadline=None)  # a busy machine may take seconds for an example
settings.load_profile("untimed")

# torch and tiny, which needs torch, are imported below: the process that starts the workers runs no test.


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests marked `first` come first; all others keep their order."""
    items.sort(key=lambda item: item.get_closest_marker("first") is None)


def pytest_collection_finish() -> None:
    """Keep the modules imported by now out of later garbage collections, which would look through them each time."""
    import torch

    from lfpo.base import environment

    torch.set_num_threads(1)
    environment.SMALL_MODEL = 0  # tests that train share this process with tests that measure its memory
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    """Otherwise Triton reports at exit what was kept from being collected."""
    gc.unfreeze()


@pytest.fixture
def llada(tmp_path: Path) -> Path:
    """A LLaDA checkpoint in one file."""
    import tiny

    return tiny.write_llada(tmp_path / "llada")


@pytest.fixture
def llada_sharded(tmp_path: Path) -> Path:
    """The same checkpoint in three shards with an index."""
    import tiny

    return tiny.write_llada(tmp_path / "llada-sharded", shards=3)


@pytest.fixture
def dream(tmp_path: Path) -> Path:
    """A Dream checkpoint with its remote tokenizer file."""
    import tiny

    return tiny.write_dream(tmp_path / "dream")


@pytest.fixture(params=["llada", "dream"])
def checkpoint(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A checkpoint of each family."""
    import tiny

    return tiny.WRITERS[request.param](tmp_path / request.param)


@pytest.fixture
def group() -> Iterator[None]:
    """A process group of this process alone."""
    import torch
    from torch._C._distributed_c10d import HashStore

    torch.distributed.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()
