import torch
from hypothesis import given
from hypothesis import strategies as st

from lfpo.config.sampler import SamplerConfig
from lfpo.core.rng import generator
from lfpo.core.trajectory import Trajectory, of_completions
from lfpo.core.visited import stratified_indices

MASK, EOS = 90, 91


def make(tokens: list[list[int]], reveal: list[list[int]]) -> Trajectory:
    prompt, mask = torch.tensor([[EOS, 1, 2]] * len(tokens)), torch.tensor([[0, 1, 1]] * len(tokens))
    settings = {"sampler": SamplerConfig().for_length(len(tokens[0])), "mask_id": MASK, "eos_id": EOS}
    return of_completions(prompt, mask, torch.tensor(tokens), torch.tensor(reveal), **settings)


def test_state_before_a_step_by_hand():
    t = make([[5, 6, EOS, EOS]], [[2, 0, 3, -1]])
    assert t.state_before(torch.tensor([0])).tolist() == [[MASK] * 4]
    assert t.state_before(torch.tensor([1])).tolist() == [[MASK, 6, MASK, MASK]]
    assert t.state_before(torch.tensor([3])).tolist() == [[5, 6, MASK, MASK]]
    assert t.state_before(torch.tensor([4])).tolist() == [[5, 6, EOS, MASK]]  # a position never revealed stays masked


def test_lengths_and_steps_stop_at_the_first_eos():
    t = make([[5, EOS, 7, 8], [5, 6, 7, 8]], [[1, 3, 0, 2], [7, 7, 2, 9]])
    assert t.lengths.tolist() == [2, 4]
    assert t.distinct_steps()[0].tolist() == [1, 3]
    assert t.distinct_steps()[1].tolist() == [2, 7, 9]


@given(st.integers(1, 200), st.integers(1, 40), st.integers(0, 2**32))
def test_strata_cover_every_segment_once(length: int, k: int, seed: int):
    index = stratified_indices(length, k, generator(seed)).tolist()
    assert index == sorted(set(index))
    assert len(index) == min(k, length)
    for j in range(k):
        low, high = j * length // k, (j + 1) * length // k - 1
        assert sum(low <= i <= high for i in index) == (1 if high >= low else 0)


def test_strata_are_uniform_within_a_segment():
    draws = torch.stack([stratified_indices(10, 2, generator(i)) for i in range(2000)])
    counts = torch.bincount(draws.flatten(), minlength=10) / 2000
    assert bool(((counts - 0.2).abs() < 0.03).all())
