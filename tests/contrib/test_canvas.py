"""DiffusionGemma's sampler: canvases beside transformers' `generate` under the same draws, and rows in any batch."""

import functools
from pathlib import Path
from typing import Any

import pytest
import torch

from lfpo.cli.command_line import main
from lfpo.config.errors import UserError
from lfpo.config.sampler import SamplerConfig
from lfpo.contrib.canvases.sampler import DRAW, NOISE, START, accept
from lfpo.contrib.canvases.trajectory import NEVER, CanvasTrajectory
from lfpo.core.draw import inverse_cdf
from lfpo.core.rng import uniform
from lfpo.models import load_model
from lfpo.rollout.sampling import rollout
from tiny_gemma import CANVAS, CHARACTERS, PAD, TURN, VOCABULARY, both, write_gemma

STEPS = 6
SEEDS = [21, 22, 23]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gemma(tmp_path_factory.mktemp("gemma") / "checkpoint")


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of small weights, whose canvases come to rest when all tokens are accepted at a low temperature."""
    return write_gemma(tmp_path_factory.mktemp("gemma") / "calm", std=0.1)


COLD: dict[str, Any] = {"max_denoising_steps": 12, "entropy_bound": 1000.0, "confidence_threshold": 10.0, "t_min": 0.01}


def prompts(*lengths: int) -> list[list[int]]:
    rng = torch.Generator().manual_seed(5)
    return [torch.randint(CHARACTERS, (n,), generator=rng).tolist() for n in lengths]


def settings(**changes: Any) -> SamplerConfig:
    given: dict[str, Any] = {"rule": "canvas", "gen_length": 3 * CANVAS, "max_denoising_steps": STEPS}
    return SamplerConfig(**{**given, "entropy_bound": 1.0, **changes})


# lfpo's and transformers'; tests change them by monkeypatch alone. In float64, since their logits lie so close that
# float32 rounding, which differs between processors, changes draws.
models = functools.partial(both, dtype=torch.float64)


@functools.cache
def rested(calm: Path) -> CanvasTrajectory:
    """Rollouts of the calm model, some canvases of which end early."""
    t = rollout(models(calm)[0], prompts(13, 13, 13), settings(**COLD, t_max=0.2), SEEDS)
    assert isinstance(t, CanvasTrajectory)
    return t


def generated(
    theirs: Any, prompt: list[list[int]], sampler: SamplerConfig, patch: pytest.MonkeyPatch, eos: int = TURN
) -> Any:
    """transformers' `generate` with our draws: its tokens, and the canvas [B, K] before each step of each canvas."""
    from transformers.models.diffusion_gemma import generation_diffusion_gemma as published

    seed_B1 = torch.tensor(SEEDS)[:, None]
    at, seen = {"canvas": -1, "step": 0}, dict[tuple[int, int], torch.Tensor]()

    def columns() -> torch.Tensor:
        return at["canvas"] * CANVAS + torch.arange(CANVAS)

    def prepare(self: Any, *args: Any, **kwargs: Any) -> Any:
        at.update(canvas=at["canvas"] + 1, step=-1)
        return own_prepare(self, *args, **kwargs)

    def random_canvas(self: Any, batch_size: int, device: Any) -> torch.Tensor:
        purpose = START if at["step"] < 0 else NOISE
        u = uniform(seed_B1, purpose, max(at["step"], 0), columns())
        at["step"] += 1
        return (u * VOCABULARY).long()

    def multinomial(probs: torch.Tensor, num_samples: int) -> torch.Tensor:
        u = uniform(seed_B1, DRAW, at["step"], columns())
        return inverse_cdf(probs.log(), u.flatten())[:, None]

    def forward(*args: Any, **kwargs: Any) -> Any:
        seen[at["canvas"], at["step"]] = kwargs["decoder_input_ids"].clone()
        return own_forward(*args, **kwargs)

    mixin, own_forward = type(theirs), theirs.forward
    own_prepare = mixin._prepare_denoiser_inputs
    patch.setattr(mixin, "_prepare_denoiser_inputs", prepare)
    patch.setattr(published.EntropyBoundSampler, "initialize_canvas", random_canvas)
    patch.setattr(torch, "multinomial", multinomial)
    patch.setattr(theirs, "forward", forward)
    canvas = sampler.canvas._asdict()
    config = published.EntropyBoundSamplerConfig(entropy_bound=canvas.pop("entropy_bound"))
    out = theirs.generate(
        input_ids=torch.tensor(prompt),
        max_new_tokens=sampler.gen_length,
        sampler_config=config,
        eos_token_id=eos,
        pad_token_id=PAD,
        **canvas,
    )
    return out.sequences[:, len(prompt[0]) :], seen


@pytest.mark.long
@pytest.mark.parametrize(
    ("which", "changes"),
    [
        ("checkpoint", {}),
        ("checkpoint", {"t_min": 0.1, "t_max": 3.0, "entropy_bound": 4.0}),
        ("calm", {**COLD, "t_max": 0.2}),
        ("calm", {**COLD, "t_max": 0.2, "stability_threshold": 2}),
    ],
)
def test_canvases_are_those_of_generate(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, which: str, changes: dict[str, Any]
):
    """Step for step, over three canvases, the prompt longer than the sliding window."""
    ours, theirs = models(request.getfixturevalue(which))
    prompt, sampler = prompts(13, 13, 13), settings(**changes)
    expected, seen = generated(theirs, prompt, sampler, monkeypatch)
    t = rollout(ours, prompt, sampler, SEEDS)
    assert isinstance(t, CanvasTrajectory)
    assert_equal(t, expected, seen)


def assert_equal(t: CanvasTrajectory, expected: torch.Tensor, seen: dict[tuple[int, int], torch.Tensor]) -> None:
    compared = 0
    for (canvas, step), tokens in seen.items():
        held = t.canvases[:, step, canvas * CANVAS : (canvas + 1) * CANVAS].long()
        ran = (held != NEVER).all(-1)  # transformers goes on with rows that are done, and drops the result
        assert torch.equal(held[ran], tokens[ran])
        compared += int(ran.sum())
    assert compared == t.nfe.sum()
    assert torch.equal(torch.where(t.until_eos, t.tokens, PAD)[:, : expected.shape[1]], expected)


@pytest.mark.long
def test_rows_end_with_their_first_eos_as_in_generate(calm: Path, monkeypatch: pytest.MonkeyPatch):
    """One row in its first canvas, another in its second; the third goes on alone."""
    ours, theirs = models(calm)
    prompt, sampler = prompts(13, 13, 13), settings(**COLD, t_max=0.2)
    before = rested(calm).tokens
    in_first, in_second = set(before[0, :CANVAS].tolist()), set(before[1, CANVAS : 2 * CANVAS].tolist())
    others = set(before[2].tolist()) | set(before[1, :CANVAS].tolist())
    ends = sorted((in_first & in_second) - others) or sorted(in_first - others)
    monkeypatch.setattr(ours, "eos_id", ends[0])
    t = rollout(ours, prompt, sampler, SEEDS)
    assert isinstance(t, CanvasTrajectory)
    assert t.has_eos[0] and not t.has_eos[2] and t.lengths[0] <= CANVAS
    assert (t.reveal_step[0] >= 0).tolist() == [True] * CANVAS + [False] * 2 * CANVAS
    assert t.queries[0] == 13 + t.nfe[0] * CANVAS and t.queries[2] == 13 + (2 + t.nfe[2]) * CANVAS
    eos = ends[0]
    assert_equal(t, *generated(theirs, prompt, sampler, monkeypatch, eos))


def test_canvases_end_early(calm: Path):
    """What the comparison with `generate` needs to mean something."""
    t = rested(calm)
    steps = (t.canvases[:, :, ::CANVAS] != NEVER).sum(1)
    assert steps.min() < 12 == steps.max()
    assert t.nfe.tolist() == steps.sum(-1).tolist() == t.scheduled_steps.tolist()
    assert torch.equal(t.reveal_step[:, ::CANVAS], steps.cumsum(-1) - 1)


@pytest.mark.long
def test_a_row_is_the_same_in_any_batch(checkpoint: Path):
    """In float64: this model's logits lie at the cap, where float32 rounding of other shapes changes argmaxes."""
    model = load_model(checkpoint, dtype=torch.float64)
    given = prompts(13, 4, 9)
    together = rollout(model, given, settings(), SEEDS)
    backwards = rollout(model, given[::-1], settings(), SEEDS[::-1], rollout_tokens=1)
    assert isinstance(together, CanvasTrajectory) and isinstance(backwards, CanvasTrajectory)
    for name in ("tokens", "canvases", "reveal_step", "nfe", "queries"):
        assert torch.equal(getattr(together, name), getattr(backwards, name).flip(0)), name
    torch.testing.assert_close(together.confidence, backwards.confidence.flip(0), rtol=0, atol=1e-5)


def test_finished_rows_are_told_once_each_in_order(checkpoint: Path):
    model, told = models(checkpoint)[0], []
    t = rollout(
        model, prompts(5, 9, 3), settings(), SEEDS, rollout_tokens=60, finished=lambda i, part: told.append((i, part))
    )
    assert sorted(i for index, _ in told for i in index) == [0, 1, 2]
    for index, part in told:
        assert torch.equal(part.tokens, t.tokens[index])


def test_positions_are_accepted_while_the_entropies_before_them_sum_to_the_bound():
    entropy = torch.tensor([[0.5, 0.125, 0.25, 2.0], [1.0, 2.0, 3.0, 4.0]])
    assert accept(entropy, 0.375).tolist() == [[True, True, True, False], [True, False, False, False]]
    assert accept(entropy, 0.374).tolist()[0] == [False, True, True, False]


def test_temperatures_fall_from_t_max_and_end_above_t_min():
    canvas = settings(t_min=0.4, t_max=0.8, max_denoising_steps=4).canvas
    assert [canvas.temperature(step) for step in range(4)] == pytest.approx([0.8, 0.7, 0.6, 0.5])


def test_the_published_defaults():
    assert tuple(SamplerConfig(rule="canvas").canvas) == (48, 0.1, 0.4, 0.8, 1, 0.005)
    assert SamplerConfig(rule="canvas").is_random


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"rule": "canvas", "temperature": 1.0}, "temperature 1.0 has no effect with the rule 'canvas'"),
        ({"rule": "canvas", "steps": 8}, "has no schedule; leave 'steps' out"),
        ({"max_denoising_steps": 8}, "max_denoising_steps 8 has no effect with the reveal rule 'low_confidence'"),
        ({"confidence_threshold": 0.9, "threshold": 0.5}, "confidence_threshold 0.9 has no effect"),
    ],
)
def test_keys_of_another_rule_are_refused(given: dict[str, Any], said: str):
    with pytest.raises((UserError, ValueError), match=said):
        SamplerConfig(**given)


def test_the_rule_and_the_model_must_go_together(checkpoint: Path):
    with pytest.raises(
        UserError, match="diffusion_gemma models are sampled by the rule 'canvas' alone; set it to canvas"
    ):
        rollout(models(checkpoint)[0], prompts(4), SamplerConfig(gen_length=8), [0])
    with pytest.raises(UserError, match="llada models fill in masks, and 'canvas' has none; take another rule"):
        rollout(load_model("embedded"), prompts(4), settings(), [0])


def test_lfpo_sample_prints_a_completion_and_its_canvases(checkpoint: Path, capsys: pytest.CaptureFixture[str]):
    given = ["--model", str(checkpoint), "--prompt", "3+4=", "--sampler.rule", "canvas", "--sampler.gen_length", "16"]
    assert main(["sample", *given, "--sampler.max_denoising_steps", "4", "--show_steps", "true"]) == 0
    printed = capsys.readouterr()
    assert printed.err == "" and "8 steps, 8 forwards" in printed.out
    assert printed.out.count("canvas ") == 8
