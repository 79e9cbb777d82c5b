"""Tokens, confidences and scores drawn from logits that were written by hand, and the memory that drawing takes."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from lfpo.config.sampler import SamplerConfig
from lfpo.core.draw import Drawn, draw_from_logits, inverse_cdf
from lfpo.core.reveal import CHUNK_ELEMENTS, LOGIT_ELEMENTS, draw
from lfpo.rollout.local_engine import find_rule

JUST_BELOW_ONE = 1 - 2.0**-53
MASK = 4
# Probabilities of five tokens, the last of them the mask token.
HALF_MASKED = torch.tensor([[0.25, 0.15, 0.1, 0.0, 0.5]], dtype=torch.float64).log().clamp(min=-700)


def evenly(n: int) -> torch.Tensor:
    """n evenly spaced numbers in [0, 1), so that shares of draws are exact up to 1 / n."""
    return (torch.arange(n, dtype=torch.float64) + 0.5) / n


def repeated(settings: dict[str, Any], n: int = 20_000) -> Drawn:
    sampler = SamplerConfig(**settings)
    score = find_rule(sampler.rule_name).score
    return draw_from_logits(HALF_MASKED.repeat(n, 1), sampler, MASK, evenly(n), score)


def test_inverse_cdf_never_draws_what_has_no_probability():
    never = -torch.inf
    scores = torch.tensor(
        [[never, 0.0, never, 1.0, never], [0.0, never, never, never, never], [never, never, never, never, 0.0]],
        dtype=torch.float64,
    )
    for uniform, expected in ((0.0, [1, 0, 4]), (JUST_BELOW_ONE, [3, 0, 4]), (0.5, [3, 0, 4])):
        found = inverse_cdf(scores, torch.full((3,), uniform, dtype=torch.float64))
        assert found.tolist() == expected


def test_inverse_cdf_stays_in_range_whatever_the_rounded_total():
    # Sums of equal shares end at, below or above 1.
    totals = set()
    for size in range(1, 120):
        scores = torch.zeros(1, size, dtype=torch.float64)
        totals.add(float(scores.softmax(-1).cumsum(-1)[0, -1]))
        assert inverse_cdf(scores, torch.tensor([JUST_BELOW_ONE], dtype=torch.float64)).tolist() == [size - 1]
        assert inverse_cdf(scores, torch.tensor([0.0], dtype=torch.float64)).tolist() == [0]
    assert min(totals) < 1 < max(totals)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"temperature": 1.0}, [0.5, 0.3, 0.2, 0.0, 0.0]),
        ({"temperature": 0.5}, [25 / 38, 9 / 38, 4 / 38, 0.0, 0.0]),
        ({"temperature": 1.0, "top_k": 2}, [5 / 8, 3 / 8, 0.0, 0.0, 0.0]),
        ({"temperature": 1.0, "top_p": 0.6}, [5 / 8, 3 / 8, 0.0, 0.0, 0.0]),
        # Cut after the temperature: at 1/2 the first token alone has 25/38.
        ({"temperature": 0.5, "top_p": 0.6}, [1.0, 0.0, 0.0, 0.0, 0.0]),
        ({"temperature": 0.0}, [1.0, 0.0, 0.0, 0.0, 0.0]),
    ],
)
def test_the_mask_token_is_left_out_and_the_rest_follows_the_settings(settings: dict, expected: list[float]):
    drawn = repeated(settings)
    shares = drawn.token.bincount(minlength=5) / len(drawn.token)
    assert shares.tolist() == pytest.approx(expected, abs=1e-4)
    # Confidence and entropy are those of the model's own distribution, the mask token's share included.
    assert drawn.confidence.tolist() == pytest.approx([[0.25, 0.15, 0.1][i] for i in drawn.token.tolist()])
    entropy = -float(torch.special.xlogy(HALF_MASKED.exp(), HALF_MASKED.exp()).sum())
    assert drawn.entropy.tolist() == pytest.approx([entropy] * len(drawn.token))


@pytest.mark.parametrize(
    ("settings", "p"),
    [
        ({}, [0.5, 0.3, 0.2]),
        ({"top_k": 2}, [5 / 8, 3 / 8, 0.0]),
        ({"top_p": 0.4}, [1.0, 0.0, 0.0]),
        ({"temperature": 0.5}, [25 / 38, 9 / 38, 4 / 38]),
        ({"temperature": 0.5, "top_k": 2}, [25 / 34, 9 / 34, 0.0]),
        ({"temperature": 0.5, "top_p": 0.7}, [25 / 34, 9 / 34, 0.0]),
    ],
)
def test_dreams_scores_by_hand(settings: dict, p: list[float]):
    """p: the probabilities that tokens are drawn from, after temperature, top_k and top_p."""
    n = 64
    drawn = repeated({**settings, "alg": "maskgit_plus"}, n)
    assert drawn.score.tolist() == pytest.approx([p[i] for i in drawn.token.tolist()])
    drawn = repeated({**settings, "alg": "topk_margin"}, n)
    assert drawn.score.tolist() == pytest.approx([p[0] - p[1]] * n)
    drawn = repeated({**settings, "alg": "entropy"}, n)
    probability = torch.tensor(p, dtype=torch.float64)
    expected = float((probability * (probability + 1e-10).log()).sum())
    assert drawn.score.tolist() == pytest.approx([expected] * n, abs=1e-15)
    for other in ({**settings, "alg": "origin"}, settings):
        drawn = repeated(other, n)
        assert torch.equal(drawn.score, drawn.confidence)


@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": 1.0, "cfg_scale": 0.5},
        {"temperature": 0.7, "top_k": 5, "top_p": 0.9, "alg": "maskgit_plus"},
        {"alg": "entropy"},
    ],
)
@pytest.mark.parametrize("elements", [1, 4 * 11])
def test_drawing_in_pieces_changes_nothing(monkeypatch: pytest.MonkeyPatch, settings: dict, elements: int):
    generator = torch.Generator().manual_seed(2)
    states = [torch.randn(10, 11, generator=generator) for _ in range(2)]
    sizes: list[int] = []

    def head(hidden: torch.Tensor) -> torch.Tensor:
        """The states are the logits."""
        sizes.append(len(hidden))
        return hidden

    model: Any = SimpleNamespace(vocab_size=11, mask_id=MASK, head=head, products="float32")
    whole = draw(model, states, SamplerConfig(**settings), evenly(10))
    sizes.clear()
    monkeypatch.setitem(LOGIT_ELEMENTS, "cpu", elements)
    monkeypatch.setitem(CHUNK_ELEMENTS, "cpu", elements // 2)
    pieces = draw(model, states, SamplerConfig(**settings), evenly(10))
    assert max(sizes) == max(1, elements // 11)
    assert torch.equal(pieces.token, whole.token)
    for name in ("confidence", "entropy", "score"):
        torch.testing.assert_close(getattr(pieces, name), getattr(whole, name))
