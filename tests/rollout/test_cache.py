"""The cached samplers: equal to no cache where that is exact, else to a reference that computes what a cache holds."""

from pathlib import Path
from typing import Any

import pytest
import torch

import tiny
from benchmarks.spent import recorded
from block_rollout_cases import count_graphs, count_tokens
from lfpo.config.sampler import SamplerConfig
from lfpo.core.compiled import compiled_body
from lfpo.models import MaskedDiffusionLM, init_model, load_model
from lfpo.models.kv_cache import KeyValueCache
from lfpo.plan.flops import rollout_flops
from lfpo.rollout.cached import cache_capacity
from lfpo.rollout.sampling import rollout
from reference_sampler import cached_generate

PROMPTS = [[5, 6, 7, 8], [9, 10], [40, 41, 42, 43, 44, 45, 46], [100]]
SEEDS = [1, 2, 3, 4]


@pytest.fixture
def model(checkpoint: Path) -> MaskedDiffusionLM:
    """Each family in float64."""
    return load_model(checkpoint, dtype=torch.float64)


def shallow(family: str) -> MaskedDiffusionLM:
    """A model of one layer, where a key depends only on its own token and position."""
    config = {"llada": {**tiny.LLADA_CONFIG, "n_layers": 1}, "dream": {**tiny.DREAM_CONFIG, "num_hidden_layers": 1}}
    return init_model({**config[family], "init_std": 0.5}, seed=3, dtype=torch.float64)


@pytest.mark.parametrize(
    ("cache", "block", "refresh"),
    [("prefix", 4, None), ("prefix", 4, 1), ("dual", 4, None), ("dual", 4, 1), ("dual", 8, 3)],
)
def test_cached_rows_equal_two_copies_of_the_row_side_by_side(
    model: MaskedDiffusionLM, cache: Any, block: int, refresh: int | None
):
    sampler = SamplerConfig(gen_length=8, block_length=block, cache=cache, cache_refresh=refresh)
    batch = rollout(model, PROMPTS, sampler, SEEDS)
    exact = rollout(model, PROMPTS, SamplerConfig(gen_length=8, block_length=block), SEEDS)
    for row, prompt in enumerate(PROMPTS):
        tokens, reveal, sure = cached_generate(
            model, prompt, gen_length=8, block_length=block, dual=cache == "dual", refresh=refresh
        )
        assert batch.tokens[row].tolist() == tokens
        assert batch.reveal_step[row].tolist() == reveal
        assert batch.confidence[row].tolist() == pytest.approx(sure, rel=1e-5)
    # With two layers it is an approximation: the prompt's keys in the second are out of date after a reveal. Renewed at
    # every forward it is exact.
    assert torch.allclose(batch.confidence, exact.confidence, rtol=1e-5) == (refresh == 1)


@pytest.mark.parametrize(
    ("settings", "llada", "dream"),
    [
        # A prompt of 3 and 8 tokens in two blocks: 8 forwards of all 11.
        ({}, 8 * 11, 8 * 11),
        # Each block runs the whole row once and itself three times; with the shift the token before it, too.
        ({"cache": "dual"}, 2 * (11 + 3 * 4), 2 * (11 + 3 * 5)),
        # The first block's windows hold all 8 tokens, the second's 4.
        ({"cache": "prefix"}, 11 + 3 * 8 + 11 + 3 * 4, 11 + 3 * 9 + 11 + 3 * 5),
        ({"cache": "dual", "cache_refresh": 2}, 4 * (11 + 4), 4 * (11 + 5)),
        ({"cache": "prefix", "cache_refresh": 3}, 2 * 11 + 2 * 8 + 2 * 11 + 2 * 4, 2 * 11 + 2 * 9 + 2 * 11 + 2 * 5),
        ({"cfg_scale": 1.0}, 2 * 8 * 11, 2 * 8 * 11),
    ],
)
def test_queries_by_hand_and_as_the_model_saw_them(
    model: MaskedDiffusionLM, monkeypatch: pytest.MonkeyPatch, settings: dict, llada: int, dream: int
):
    expected = dream if model.family.shift else llada
    sampler = SamplerConfig(gen_length=8, block_length=4, **settings)
    # Padding and batch mates at other places are not counted.
    together = rollout(model, [[5, 6, 7], [8] * 9, [5]], sampler, [0] * 3)
    assert int(together.queries[0]) == expected
    shapes = count_tokens(model, monkeypatch)
    with recorded(model) as forwards:
        alone = rollout(model, [[5, 6, 7]], sampler, [0])
    assert alone.queries.tolist() == [expected] == [sum(rows * width for rows, width in shapes)]
    assert rollout_flops(model, alone) == pytest.approx(forwards.flops(model))


def test_a_memory_is_divided_anew_in_place():
    """Room for 2 rows of 100 tokens (128 columns) is room for 4 rows of 50."""
    cache = KeyValueCache(capacity=2 * 128)
    x = torch.randn(2, 2, 100, 3, generator=torch.Generator().manual_seed(0))
    cache.fit(2, 100)
    cache.fill(torch.tensor([0, 1]), torch.tensor([0, 1]))
    cache.update(x, 10 * x, 0)
    at = cache.layers[0][0].untyped_storage().data_ptr()
    cache.fit(4, 50)
    key, value = cache.layers[0]
    assert key.shape == (4, 2, 51, 3)
    assert torch.equal(key[:2, :, :50], x[:, :, 50:])
    assert torch.equal(value[:2, :, :50], 10 * x[:, :, 50:])
    assert key.untyped_storage().data_ptr() == at
    # 200 tokens are held: two rows of 100 (128 columns), later three of 50 (64 columns), for there are no more.
    sampler = SamplerConfig(gen_length=8, block_length=4, cache="dual")
    assert cache_capacity([40, 100, 50], sampler, 50) == 2 * 128
    assert cache_capacity([50] * 9, sampler, 50) == 4 * 64


LENGTHS = [70, 3, 30, 75, 12, 50, 9, 71]


@pytest.mark.long
@pytest.mark.parametrize(
    ("family", "settings"),
    [
        ("llada", {"cache": "dual", "cache_refresh": 3}),
        ("dream", {"cache": "dual", "cache_refresh": 3}),
        ("dream", {"cache": "prefix", "threshold": 0.02}),
    ],
)
def test_compiled_windows_are_the_same_and_few(family: str, settings: dict, monkeypatch: pytest.MonkeyPatch):
    """Ragged prompts that enter and leave. A graph for each shape of windows and of whole forwards, and no more in
    another rollout; nothing is compiled anew when prompts, rows in flight or the place of the memory change."""
    model, graphs = shallow(family), count_graphs(monkeypatch)
    prompts = [[5 + i + j for j in range(n)] for i, n in enumerate(LENGTHS)]
    sampler = SamplerConfig(gen_length=8, block_length=4, temperature=1.0, **settings)
    plain = rollout(model, prompts, sampler, range(len(prompts)), rollout_tokens=80)
    seen: set[Any] = set()
    body = compiled_body(model)

    def watched(**inputs: Any) -> Any:
        rows, width = inputs["input_ids"].shape
        cache = inputs["past_key_values"]
        seen.add((rows, width, None if cache.columns is None else cache.layers[0][0].shape[2]))
        return body(**inputs)

    model._compiled = [watched]
    found = rollout(model, prompts, sampler, range(len(prompts)), rollout_tokens=80, compiled=True)
    for name in ("tokens", "reveal_step", "nfe", "queries"):
        assert torch.equal(getattr(found, name), getattr(plain, name)), name
    torch.testing.assert_close(found.confidence, plain.confidence)
    assert len(graphs) == len(seen)
    windows = [shape for shape in seen if shape[2] is not None]
    assert 2 <= len(windows) <= 8 * (1 if sampler.cache == "dual" else 2)  # 1, 2, 3, 4 rows, of 64 or 128 columns
    rollout(model, prompts[::-1], sampler, range(len(prompts)), rollout_tokens=80, compiled=True)
    assert len(graphs) == len(seen)
