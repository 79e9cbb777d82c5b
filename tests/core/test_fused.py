"""Losses straight from hidden states, a chunk at a time: against the plain form, whatever the size of a chunk."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakIdKeyDictionary

from fused_cases import chunks_of, fused, plain, random_case
from lfpo.config.sampler import SamplerConfig
from lfpo.contrib.canvases.cap import Cap
from lfpo.core.fused import in_chunks, rectified_sum
from lfpo.core.model import CURRENT, OLD
from lfpo.core.predictions import Predictions
from lfpo.core.rectified import rectified_loss
from lfpo.objectives.agrpo import logp_as_drawn
from small_runs import step_of


def double(values: object) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def assert_same(found: tuple[torch.Tensor, ...], expected: tuple[torch.Tensor, ...], rtol: float = 1e-10) -> None:
    """Loss and gradients agree; the same tolerance serves for entries near zero."""
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=rtol, atol=rtol)


class Held(TorchDispatchMode):
    """The most numbers that were held at once in what operations returned."""

    def __init__(self) -> None:
        super().__init__()
        self.peak = 0
        self._sizes = WeakIdKeyDictionary()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for x in out if isinstance(out, list | tuple) else [out]:
            if isinstance(x, torch.Tensor):
                self._sizes[x.untyped_storage()] = x.untyped_storage().nbytes() // x.element_size()
        self.peak = max(self.peak, sum(self._sizes.values()))
        return out


# The rectified loss


def test_the_rectified_sum_by_hand_on_two_tokens():
    """States that are their own logits: pi = (3/4, 1/4), pi_ref = (1/2, 1/2), so pi+ = pi and pi- = (1/4, 3/4)."""
    hidden, head = double([[math.log(3), 0.0]]).requires_grad_(), double([[1.0, 0.0], [0.0, 1.0]]).requires_grad_()
    reference = double([[0.0, 0.0]])
    y, r, weight = torch.tensor([0]), double([0.5]), double([3.0])
    loss = rectified_sum(hidden, reference, head, head, y, r, beta=1.0, token_weight_T=weight)
    loss.backward()
    assert loss.item() == pytest.approx(-3 * (0.5 * math.log(0.75) + 0.5 * math.log(0.25)), rel=1e-14)
    # r pi+ - (1 - r) pi- = (1/4, -1/4), three times; nothing is added for y as 2r - 1 is zero.
    torch.testing.assert_close(hidden.grad, double([[0.75, -0.75]]))
    torch.testing.assert_close(head.grad, double([[0.75 * math.log(3), 0.0], [-0.75 * math.log(3), 0.0]]))


@given(
    seed=st.integers(0, 10**6),
    sizes=st.tuples(st.integers(0, 9), st.integers(2, 12), st.integers(1, 4)),
    heads=st.sampled_from(["own", "shared"]),
    rewards=st.sampled_from(["anywhere", "mixed", "binary", "ones", "zeros"]),
    beta=st.floats(0.05, 3.0),
    weights=st.tuples(st.floats(0, 2), st.floats(0, 2)),
    elements=st.integers(1, 60),
    upstream=st.sampled_from([1.0, -3.0]),
    cap=st.sampled_from([None, Cap(2.0)]),
)
@settings(max_examples=100)
def test_any_shape_in_any_chunks_gives_the_plain_sum(
    seed: int,
    sizes: tuple[int, int, int],
    heads: str,
    rewards: str,
    beta: float,
    weights: tuple[float, float],
    elements: int,
    upstream: float,
    cap: Cap | None,
):
    t, v, d = sizes
    case = random_case(heads, rewards, seed=seed, t=t, v=v, d=d)
    knobs = {"beta": beta, "positive_weight": weights[0], "negative_weight": weights[1], "logit_map": cap}
    with chunks_of(elements):
        found = fused(case, upstream=upstream, **knobs)
    loss, *gradients = plain(case, **knobs)
    assert_same(found, (loss, *(upstream * g for g in gradients)), rtol=1e-9)


def test_huge_logits_neither_overflow_nor_vanish():
    """In float32: token 1 has probability e^-1000, and is pulled up by all that there is to pull."""
    hidden = torch.tensor([[1000.0, 0.0]], requires_grad=True)
    loss = rectified_sum(
        hidden, torch.zeros(1, 2), torch.eye(2), torch.eye(2), torch.tensor([1]), torch.ones(1), beta=1.0
    )
    assert loss == 1000
    assert torch.autograd.grad(loss, hidden)[0].tolist() == [[1.0, -1.0]]


@pytest.mark.parametrize(
    ("dtype", "in_loss", "in_gradient"), [(torch.float32, 1e-6, 3e-6), (torch.bfloat16, 1e-3, 1e-2)]
)
@pytest.mark.parametrize("heads", ["own", "shared"])
@pytest.mark.parametrize("rewards", ["anywhere", "binary"])
def test_narrow_types_lose_only_what_rounding_takes(
    heads: str, rewards: str, dtype: torch.dtype, in_loss: float, in_gradient: float
):
    case = random_case(heads, rewards, t=64, v=512, d=64)
    case.head = 0.2 * case.head
    case.head_ref = case.head if heads == "shared" else 0.2 * case.head_ref
    case = case.to(dtype)
    with chunks_of(20 * 512):
        found = fused(case, beta=0.3)
    expected = plain(case.to(torch.float64), beta=0.3)
    assert [x.dtype for x in found] == [torch.float32, dtype, dtype]
    for a, b, tolerance in zip(found, expected, (in_loss, in_gradient, in_gradient), strict=True):
        assert (a.double() - b).norm() < tolerance * b.norm()


# Cross-entropy: r = 1, beta = 1


def test_small_gradients_of_many_chunks_add_up_in_a_narrow_head():
    """400 tokens of p = (1/2, 1/2), one at a time, each a quarter: bfloat16 could not count past 64 in quarters."""
    head = torch.zeros(2, 1, dtype=torch.bfloat16, requires_grad=True)
    hidden = torch.ones(400, 1, dtype=torch.bfloat16)
    with chunks_of(2):
        y, ones = torch.zeros(400, dtype=torch.long), torch.ones(400)
        loss = rectified_sum(hidden, hidden, head, head, y, ones, 0.5 * ones, beta=1.0)
    assert torch.autograd.grad(loss, head)[0].tolist() == [[-100.0], [100.0]]


# Training


@pytest.mark.parametrize("shared", [False, True])
def test_lfpos_knobs_reach_its_loss(shared: bool):
    """shared: the two policies have one head, as where it is not trained."""
    weights = {"positive_weight": 0.5, "negative_weight": 2.0}
    knobs = {"reward_transform": "raw", "beta": 0.7, "target_weight": "equal", **weights}
    objective, models, views, signal = step_of("llada", "lfpo", **knobs)
    if shared:
        models[OLD] = copy.deepcopy(models[OLD])
        models[OLD].backbone.lm_head = models[CURRENT].backbone.lm_head
    predictions = Predictions(views, models)
    z, z_ref, r = predictions.logits(), predictions.logits(OLD), predictions.at_targets(signal)
    expected = rectified_loss(z, z_ref, predictions.labels_T, r, beta=0.7, **weights)
    with chunks_of(5 * z.shape[1]):
        loss, _ = objective.loss(Predictions(views, models), signal)
    torch.testing.assert_close(loss, expected.sum(), rtol=1e-10, atol=0)
    parameters = list(models[CURRENT].parameters())
    found, wanted = torch.autograd.grad(loss, parameters), torch.autograd.grad(expected.sum(), parameters)
    assert_same(found, wanted)


def test_log_probabilities_are_those_of_the_logits():
    """The model's own, and as the sampler drew: by its temperature, among the old policy's best 100 tokens."""
    _, models, views, _ = step_of("llada", "agrpo")
    predictions = Predictions(views, models)
    z, z_old, labels = predictions.logits(), predictions.logits(OLD), predictions.labels_T[:, None]
    z_old[:, views.mask_id] = -torch.inf
    kept = z_old >= z_old.topk(100).values[:, -1:]
    with chunks_of(5 * z.shape[1]):
        own = predictions.logp()
        sampler = SamplerConfig(gen_length=8, temperature=0.8, top_k=100, steps=4)
        drawn = logp_as_drawn(Predictions(replace(views, sampler=sampler), models))
    torch.testing.assert_close(own, z.log_softmax(-1).gather(1, labels)[:, 0])
    expected = (z / 0.8).masked_fill(~kept, -torch.inf).log_softmax(-1).gather(1, labels)[:, 0]
    torch.testing.assert_close(drawn, expected)
    assert bool(drawn.isfinite().all())
    assert len(drawn) > 5  # several chunks


# Memory


def chosen_logp(head: torch.Tensor) -> Callable[..., torch.Tensor]:
    """The function of weighted log-probabilities of tokens."""
    return lambda hidden, y, weight: -weight * F.cross_entropy(hidden @ head.T, y, reduction="none")


@pytest.mark.parametrize("form", ["own", "shared", "logp"])
def test_no_more_than_a_few_chunks_are_held_at_once(form: str):
    """120 tokens of 400 logits, three at a time. Whole, the states' gradient takes two such tensors at the least."""
    case = random_case("shared" if form == "shared" else "own", t=120, v=400, d=1)
    peaks = []
    for elements in (3 * 400, 120 * 400):
        hidden = case.hidden.detach().requires_grad_()
        with chunks_of(elements), Held() as held:
            if form == "logp":
                loss = in_chunks(chosen_logp(case.head), [hidden, case.y, case.weight], 400).sum()
            else:
                loss = rectified_sum(hidden, case.hidden_ref, case.head, case.head_ref, case.y, case.r, beta=0.3)
            loss.backward()
        peaks.append(held.peak)
    few, whole = peaks
    assert few < 120 * 400 / 4
    assert whole > 2 * 120 * 400


def test_a_trained_head_has_one_gradient_of_its_size():
    case = random_case("own", t=4, v=400, d=64)
    head = case.head.detach().requires_grad_()
    with Held() as held:
        (3 * rectified_sum(case.hidden, case.hidden_ref, head, case.head_ref, case.y, case.r, beta=0.3)).backward()
    assert held.peak < 3.5 * head.numel()  # two of the heads, whose views are counted
