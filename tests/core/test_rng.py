"""The counter-based random numbers against plain integers, and against numbers published for SplitMix64."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from lfpo.core.rng import uniform

ALL = 2**64 - 1


def mix(x: int) -> int:
    """SplitMix64's finaliser in unsigned 64-bit arithmetic."""
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & ALL
    x = (x ^ x >> 27) * 0x94D049BB133111EB & ALL
    return x ^ x >> 31


def expected(seed: int, *counters: int) -> float:
    x = mix(seed & ALL)
    for counter in counters:
        x = mix(x + 0x9E3779B97F4A7C15 * (counter + 1) & ALL)
    return (x >> 11) / 2**53


int64 = st.integers(-(2**63), 2**63 - 1)


@given(int64, st.lists(st.integers(0, 2**40), max_size=3))
def test_uniform_equals_unsigned_integer_arithmetic(seed: int, counters: list[int]):
    found = uniform(torch.tensor(seed), *counters)
    assert found.dtype == torch.float64
    assert found.item() == expected(seed, *counters)
    assert 0 <= found.item() < 1


def test_seed_zero_gives_the_published_sequence():
    # The finaliser maps 0 to 0, so that one counter is SplitMix64 itself.
    published = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F, 0xF88BB8A8724C81EC, 0x1B39896A51A8749B]
    found = uniform(torch.tensor(0), torch.arange(5))
    assert found.tolist() == [(x >> 11) / 2**53 for x in published]
