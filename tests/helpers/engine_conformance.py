"""Checks that an engine returns what it says: for whoever has a server and writes an adapter for it.

    PYTHONPATH=src:tests/helpers:. python -m engine_conformance my_module:make --model FOLDER

my_module:make takes an LFPOConfig (its `model` is FOLDER) and returns the engine. Prints one line a check and exits
with 1 if one fails.
"""

import argparse
from collections.abc import Callable
from typing import Any

import torch

from lfpo import LFPOConfig, SamplerConfig, load_model, load_tokenizer
from lfpo.config.plugins import resolve
from lfpo.core.encoding import encode_prompt
from lfpo.core.engine import Request
from lfpo.core.model import CURRENT
from lfpo.core.predictions import Predictions
from lfpo.core.trajectory import GIVES, Trajectory
from lfpo.core.visited import replay
from lfpo.models import MaskedDiffusionLM

GENERATIONS = 8
THRESHOLD = 0.6
TOLERANCE = 0.02  # of a probability: a server's kernels and bfloat16 round otherwise than the trainer
TEXTS = ("1+2=", "What is three times four?", "Say a word.")


class Sampled:
    """Trajectories of one engine with one model: the request, and what came back."""

    def __init__(self, engine: Any, model: MaskedDiffusionLM, prompts: list[list[int]], gen_length: int):
        sampler = SamplerConfig(temperature=1.0, threshold=THRESHOLD).for_length(gen_length, model.block_length)
        rows = [prompt for prompt in prompts for _ in range(GENERATIONS)]
        self.engine, self.model = engine, model
        self.request = Request(rows, list(range(len(rows))), sampler, GENERATIONS)
        engine.update(0, model)
        self.version = engine.version
        self.finished: list[int] = []
        self.found: Trajectory = engine.sample(self.request, lambda index, part: self.finished.extend(index))
        self.gives = set(engine.gives)

    def replayed(self) -> torch.Tensor:
        """The model's probability of each token at the state before its own step, [B, C]; 0 where none was revealed."""
        found, probability = self.found, torch.zeros(self.found.tokens.shape)
        at_BC = found.reveal_step
        for step in sorted(set(at_BC[at_BC >= 0].tolist())):
            rows = (at_BC == step).any(-1).nonzero()[:, 0]
            views = replay(found, rows, torch.full((len(rows),), step, device=rows.device))
            with torch.no_grad():
                predicted = Predictions(views, {CURRENT: self.model})
                logp = predicted.logp(CURRENT).cpu()
            column = predicted.column_T - found.prompt_ids.shape[1]
            row = rows[views.row.new_tensor(range(len(rows)))[predicted.view_T]]
            now = at_BC[row, column] == step
            probability[row[now].cpu(), column[now].cpu()] = logp[now.cpu()].exp()
        return probability


def returns_the_request(s: Sampled) -> None:
    """One row for each of the request, in its order, with its prompt and a completion of gen_length tokens."""
    found, asked = s.found, s.request
    assert len(found) == len(asked.prompts), f"{len(found)} rows for {len(asked.prompts)}"
    for b, prompt in enumerate(asked.prompts):
        assert found.prompt_ids[b][found.prompt_mask[b].bool()].tolist() == list(prompt), f"row {b} has another prompt"
    width = (asked.sampler.gen_length or 0) + (s.model.block_length or 1) - 1
    assert found.tokens.shape[1] == width, f"{found.tokens.shape[1]} columns, expected {width}"
    assert found.tokens.device == s.model.device, f"on {found.tokens.device}, the model is on {s.model.device}"


def tells_finished_rows(s: Sampled) -> None:
    """`finished` was called with every row once, or never."""
    assert not s.finished or sorted(s.finished) == list(range(len(s.found))), f"told rows {sorted(s.finished)}"


def reveals_all_tokens(s: Sampled) -> None:
    """No token up to the first EOS is the mask."""
    assert not (s.found.tokens[s.found.until_eos] == s.found.mask_id).any(), "a mask token was left"


def samples(s: Sampled) -> None:
    """At temperature 1 rollouts of a prompt differ: an engine that decodes greedily teaches nothing."""
    ids = s.found.completion_ids()
    groups = [ids[first : first + GENERATIONS] for first in range(0, len(ids), GENERATIONS)]
    assert any(a != group[0] for group in groups for a in group), f"all {GENERATIONS} rollouts of each prompt agree"


def follows_the_weights(s: Sampled) -> None:
    """After `update` it has the new version, and samples from the new weights."""
    assert s.version == 0, f"version {s.version!r} after update(0, policy)"
    other = s.model.frozen_copy()
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()  # all predictions alike, which no trained model has
    s.engine.update(1, other)
    assert s.engine.version == 1, f"version {s.engine.version!r} after update(1, policy)"
    after = s.engine.sample(s.request, None)
    s.engine.update(0, s.model)
    changed = (after.tokens != s.found.tokens)[:, : int(s.request.sampler.gen_length or 0)].float().mean()
    assert changed > 0.5, f"only {changed:.0%} of the tokens changed with weights that predict all tokens alike"


def reveals_in_order(s: Sampled) -> None:
    """reveal_step counts from 0 in each row, is below scheduled_steps, and never goes back to an earlier block."""
    step, counted = s.found.reveal_step, s.found.until_eos
    assert (step[counted] >= 0).all(), "a token has no step"
    assert (step.masked_fill(step < 0, 10**9).amin(-1) == 0).all(), "a row's steps do not begin with 0"
    assert (step.amax(-1) < s.found.scheduled_steps).all(), "a step is not below scheduled_steps"
    block = s.found.block_BC
    for b in range(len(step)):
        for number in range(1, int(block[b].max()) + 1):
            now, before = step[b][(block[b] == number) & (step[b] >= 0)], step[b][(block[b] == number - 1)]
            assert not len(now) or now.min() > before.max(), (
                f"row {b}: block {number} begins before the one before ends"
            )


def keeps_to_the_threshold(s: Sampled) -> None:
    """Tokens that share a step reach the threshold in the state before it: the steps are those that really happened."""
    probability, step = s.replayed(), s.found.reveal_step.cpu()
    for b in range(len(step)):
        for number in range(int(step[b].max()) + 1):
            together = (step[b] == number) & s.found.until_eos[b].cpu()
            if together.sum() > 1:
                least = probability[b][together].min()
                assert least >= THRESHOLD - TOLERANCE, f"row {b}, step {number}: a token had {least:.3f}"


def knows_its_confidence(s: Sampled) -> None:
    """`confidence` is the probability of the token in the state before its step."""
    counted = s.found.until_eos.cpu()
    off = (s.replayed() - s.found.confidence.cpu())[counted].abs().max()
    assert off <= TOLERANCE, f"off by up to {off:.3f}"


# What is checked, and what the engine must give for it (names of GIVES).
CHECKS: dict[Callable[[Sampled], None], set[str]] = {
    returns_the_request: set(),
    tells_finished_rows: set(),
    reveals_all_tokens: set(),
    samples: set(),
    follows_the_weights: set(),
    reveals_in_order: {"reveal_step"},
    keeps_to_the_threshold: {"reveal_step"},
    knows_its_confidence: {"reveal_step", "confidence"},
}


def conformance(engine: Any, model: MaskedDiffusionLM, prompts: list[list[int]], gen_length: int) -> dict[str, str]:
    """What is wrong by the name of each check: "" where it passes, "not given" where the engine does not give it."""
    assert set(engine.gives) <= GIVES.keys(), f"gives {sorted(set(engine.gives) - GIVES.keys())}, which nobody knows"
    sampled, results = Sampled(engine, model, prompts, gen_length), {}
    for check, needed in CHECKS.items():
        try:
            results[check.__name__] = "not given" if needed - sampled.gives else check(sampled) or ""
        except AssertionError as error:
            results[check.__name__] = f"failed: {error}"
    engine.metrics()
    engine.close()
    return results


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine", help="dotted path of the function that makes it")
    parser.add_argument("--model", default="embedded")
    parser.add_argument("--gen_length", type=int, default=32)
    given = parser.parse_args()
    model, tokenizer = load_model(given.model), load_tokenizer(given.model)
    engine = resolve(given.engine, {}, kind="engine")(LFPOConfig(output_dir="-", model=given.model, task="choice"))
    results = conformance(engine, model, [encode_prompt(tokenizer, text) for text in TEXTS], given.gen_length)
    for name, result in results.items():
        print(f"{name:<24} {result or 'passed'}")
    return int(any(result.startswith("failed") for result in results.values()))


if __name__ == "__main__":
    raise SystemExit(main())
