"""The checks of an engine's adapter pass for the local engine and fail for engines that do not say the truth."""

import dataclasses
from typing import Any

import pytest
import torch

from engine_conformance import CHECKS, conformance
from lfpo import load_model
from lfpo.rollout.engine import LocalEngine, as_it_is
from lfpo.rollout.trajectory import Trajectory

PROMPTS = [[5, 6, 7], [8]]


def result(model: str, change: Any = None, **attributes: Any) -> dict[str, str]:
    loaded = load_model(model)

    class Changed(LocalEngine):
        def sample(self, request, finished=None):
            return (change or (lambda t: t))(super().sample(request, finished))

    engine = as_it_is(loaded)
    engine.__class__ = Changed
    for name, value in attributes.items():
        setattr(engine, name, value)
    return conformance(engine, loaded, PROMPTS, 8)


@pytest.mark.parametrize("model", ["embedded", "embedded-block"])
def test_the_local_engine_conforms(model):
    assert result(model) == dict.fromkeys((check.__name__ for check in CHECKS), "")


def test_what_is_not_given_is_not_checked():
    found = result("embedded", gives=frozenset[str]())
    assert [name for name, said in found.items() if said == "not given"] == [
        "reveals_in_order",
        "keeps_to_the_threshold",
        "knows_its_confidence",
    ]


def reversed_rows(t: Trajectory) -> Trajectory:
    return t.rows(torch.arange(len(t)).flip(0))


def all_alike(t: Trajectory) -> Trajectory:
    return dataclasses.replace(t, tokens=t.tokens[:1].expand_as(t.tokens).clone())


def one_left_masked(t: Trajectory) -> Trajectory:
    return dataclasses.replace(t, tokens=t.tokens.index_fill(1, torch.tensor([0]), t.mask_id))


def all_at_once(t: Trajectory) -> Trajectory:
    return dataclasses.replace(t, reveal_step=t.reveal_step.clamp(max=0))


def from_one(t: Trajectory) -> Trajectory:
    return dataclasses.replace(t, reveal_step=t.reveal_step + (t.reveal_step >= 0))


def sure(t: Trajectory) -> Trajectory:
    return dataclasses.replace(t, confidence=torch.ones_like(t.confidence))


@pytest.mark.parametrize(
    ("change", "check", "told"),
    [
        (reversed_rows, "returns_the_request", "row 0 has another prompt"),
        (one_left_masked, "reveals_all_tokens", "a mask token was left"),
        (all_alike, "samples", "all 8 rollouts of each prompt agree"),
        (all_at_once, "keeps_to_the_threshold", "a token had"),
        (from_one, "reveals_in_order", "a row's steps do not begin with 0"),
        (sure, "knows_its_confidence", "off by up to"),
    ],
)
def test_an_engine_that_is_wrong_fails(change, check, told):
    assert told in result("embedded", change)[check]


def test_an_engine_that_keeps_old_weights_fails(monkeypatch):
    def update(self, version, policy):
        self.version, self.policy = version, self.policy or policy

    monkeypatch.setattr(LocalEngine, "update", update)
    assert "of the tokens changed" in result("embedded")["follows_the_weights"]
