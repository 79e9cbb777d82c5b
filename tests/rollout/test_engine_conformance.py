"""The checks of an engine's adapter pass for the local engine and fail for engines that do not say the truth."""

import dataclasses

import pytest
import torch

import engine_conformance
from engine_conformance import CHECKS, Sampled, conformance
from lfpo import load_model
from lfpo.core.trajectory import Trajectory
from lfpo.rollout.local_engine import LocalEngine
from lfpo.rollout.sampling import as_it_is

PROMPTS = [[5, 6, 7], [8]]


@pytest.mark.parametrize("name", ["embedded", "embedded-block"])
def test_the_local_engine_conforms(name):
    model = load_model(name)
    found = conformance(as_it_is(model), model, PROMPTS, 8)
    assert found == dict.fromkeys((check.__name__ for check in CHECKS), "")


def test_what_is_not_given_is_not_checked():
    model = load_model("embedded")
    engine = as_it_is(model)
    engine.gives = frozenset[str]()
    found = conformance(engine, model, PROMPTS, 8)
    assert [name for name, said in found.items() if said == "not given"] == [
        "reveals_in_order",
        "keeps_to_the_threshold",
        "knows_its_confidence",
    ]


def fails(check: str, told: str) -> None:
    model = load_model("embedded")
    with pytest.raises(AssertionError, match=told):
        getattr(engine_conformance, check)(Sampled(as_it_is(model), model, PROMPTS, 8))


@pytest.mark.parametrize(
    ("change", "check", "told"),
    [
        (lambda t: {"prompt_ids": t.prompt_ids.flip(0)}, "returns_the_request", "row 0 has another prompt"),
        (lambda t: {"tokens": torch.full_like(t.tokens, t.mask_id)}, "reveals_all_tokens", "a mask token was left"),
        (lambda t: {"tokens": t.tokens[:1].expand_as(t.tokens)}, "samples", "all 8 rollouts of each prompt agree"),
        (lambda t: {"reveal_step": t.reveal_step.clamp(max=0)}, "keeps_to_the_threshold", "a token had"),
        (lambda t: {"reveal_step": t.reveal_step + (t.reveal_step >= 0)}, "reveals_in_order", "do not begin with 0"),
        (lambda t: {"confidence": torch.ones_like(t.confidence)}, "knows_its_confidence", "off by up to"),
    ],
)
def test_an_engine_that_is_wrong_fails(change, check, told, monkeypatch):
    def changed(t: Trajectory) -> Trajectory:
        return dataclasses.replace(t, **change(t))

    sample = LocalEngine.sample
    monkeypatch.setattr(LocalEngine, "sample", lambda *request: changed(sample(*request)))
    fails(check, told)


def test_an_engine_that_keeps_old_weights_fails(monkeypatch):
    def update(self, version, policy):
        self.version, self.policy = version, self.policy or policy

    monkeypatch.setattr(LocalEngine, "update", update)
    fails("follows_the_weights", "of the tokens changed")
