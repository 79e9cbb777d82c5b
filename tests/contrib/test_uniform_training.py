"""Training where noise is uniform over the vocabulary (DiffusionGemma): supervised, and by rewards."""

import functools
import json
import math
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from letter_runs import metrics, without_times
from lfpo.cli.command_line import main
from lfpo.config.build import build, load_yaml
from lfpo.config.sft import SFTConfig
from lfpo.contrib.canvases.noise import expected_embeddings
from lfpo.core.doubled import noised_hidden, training_structure
from lfpo.core.rng import generator
from lfpo.models import load_model, load_tokenizer
from lfpo.train.rl import LFPOTrainer
from lfpo.train.sft import MIN_T, Example, accumulate_sft_gradients, noise_of, train_sft
from processes import run_lfpo
from rank_runs import assert_same_run
from small_runs import choice_config
from tiny import read_weights
from tiny_gemma import CANVAS, CHARACTERS, write_gemma


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gemma(tmp_path_factory.mktemp("gemma") / "checkpoint", std=0.1)


def gradient_of(model: Any) -> torch.Tensor:
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def examples(*sizes: tuple[int, int]) -> list[Example]:
    """Of so many prompt tokens and canvases."""
    rng = torch.Generator().manual_seed(0)
    draw = lambda n: torch.randint(CHARACTERS, (n,), generator=rng).tolist()  # noqa: E731
    return [(draw(prompt), draw(canvases * CANVAS)) for prompt, canvases in sizes]


# Supervised training


@pytest.mark.parametrize("loss_weight", ["1/t", "equal"])
def test_a_supervised_step_is_the_one_written_by_hand(checkpoint: Path, tmp_path: Path, loss_weight: str):
    """Row by row: uniform tokens in place of some, cross-entropy of all tokens (with `equal` of those alone), half of
    the rows conditioned on a first prediction, the others on nothing. Passes of other sizes change nothing."""
    batch = examples((13, 1), (3, 2), (5, 1), (9, 1), (2, 1))
    settings: dict[str, Any] = {"output_dir": str(tmp_path), "model": str(checkpoint), "tasks": {"choice": 1.0}}
    size = len(batch)
    model = load_model(checkpoint, dtype=torch.float64)
    found = []
    for update_tokens in (10_000, 1):
        config = SFTConfig(**settings, batch_size=size, update_tokens=update_tokens, loss_weight=loss_weight)
        loss = accumulate_sft_gradients(model, config, dict(enumerate(batch)), generator(4, "t"))
        found.append((loss, gradient_of(model)))
        model.zero_grad()
    rng = generator(4, "t")
    t_B = ((torch.arange(size) + torch.rand((), generator=rng)) / size).clamp(min=MIN_T)
    t_B = t_B[torch.randperm(size, generator=rng)]
    root, total, conditioned = int(torch.randint(2**62, (), generator=rng)), torch.zeros(()), []
    for i, (prompt, completion) in enumerate(batch):
        noise, ids = noise_of(model, len(completion), generator(root, i)), torch.tensor([prompt + completion])
        hidden = noise.draw_C < t_B[i]
        noised = torch.where(hidden, noise.token_C, torch.tensor(completion))
        row = torch.cat([ids[:, : len(prompt)], noised[None]], dim=1)
        given: tuple[Any, ...] = (row, ids, torch.ones_like(ids), torch.tensor([len(prompt)]))
        signal = None
        if noise.conditioned:
            with torch.no_grad():
                first, _ = noised_hidden(model, *given, structure=training_structure(model))
                signal = expected_embeddings(model, model.head(first))
        states, _ = noised_hidden(model, *given, structure=training_structure(model), signal=signal)
        losses = F.cross_entropy(model.head(states)[0], torch.tensor(completion), reduction="none")
        total = total + (losses.mean() if loss_weight == "1/t" else losses[hidden].sum() / hidden.sum().clamp(min=1))
        conditioned.append(noise.conditioned)
    (total / size).backward()
    assert len(set(conditioned)) == 2
    for loss, gradient in found:
        assert loss == pytest.approx(total.item() / size, rel=1e-7)  # weights are float32
        assert (gradient - gradient_of(model)).norm() < 1e-6 * gradient.norm()
    assert gradient.norm() > 1e-3


SUPERVISED = shlex.split(
    "sft --tasks '{choice: 1}' --gen_length 8 --steps 3 --batch_size 5 --update_tokens 60 --learning_rate 1e-2 "
    "--warmup_steps 0 --logging_steps 1 --threads 1"
)
BY_REWARDS = shlex.split(
    "train --task choice --max_steps 2 --prompts_per_iteration 3 --num_generations 4 --eval_size 3 --eval_steps 2 "
    "--reward_funcs [reward_samples.even_tokens] --threads 1 --learning_rate 1e-2 "
    "--optimizer_steps_per_iteration 2 --objective.num_iterations 2 --update_tokens 200 "
    "--sampler '{rule: canvas, temperature: 0, max_denoising_steps: 4, entropy_bound: 8}' "
    "--eval_samplers '{canvas: {rule: canvas, max_denoising_steps: 3}}'"
)


@pytest.mark.long
def test_the_recipe_of_a_small_model_trains_one_from_scratch(tmp_path: Path):
    """Here a smaller one."""
    values = load_yaml("embedded-uniform-pretrain")
    values["init"]["text_config"] |= {"hidden_size": 32, "intermediate_size": 32, "head_dim": 8, "global_head_dim": 8}
    sizes = {"output_dir": str(tmp_path), "steps": 16, "batch_size": 8, "warmup_steps": 0, "logging_steps": 8}
    folder = train_sft(build(SFTConfig, values | sizes), report=lambda line: None)
    model = load_model(folder)
    assert (model.asks_about_all, model.block_length, model.vocab_size) == (True, 16, len(load_tokenizer(folder)))
    layer = model.backbone.model.layers[0]
    assert layer.canvas_scalar == layer.context_scalar == 1  # factors of a layer's output
    first, last = metrics(tmp_path)
    assert last["loss"] < first["loss"] < 1.2 * math.log(model.vocab_size)


CANVASES: dict[str, Any] = {"rule": "canvas", "temperature": 0.0, "max_denoising_steps": 4, "entropy_bound": 8.0}


@pytest.mark.long
@pytest.mark.parametrize(
    "changes",
    [
        {"objective": {"name": "lfpo", "states": "stratified", "num_iterations": 1}, "engine": {"max_staleness": 1}},
        {"objective": {"name": "agrpo", "mc_samples": 2}, "lora": {"r": 2, "lora_alpha": 4}},
    ],
    ids=["lfpo, sampled ahead", "agrpo, an adapter"],
)
def test_training_by_rewards_resumes_and_exports(changes: dict[str, Any], checkpoint: Path, tmp_path: Path):
    """The canvases of rollouts that wait in the queue are in the checkpoint."""
    settings = {"sampler": CANVASES, "eval_samplers": {"canvas": {**CANVASES}}, "eval_steps": 2, "max_steps": 2}
    folders = [tmp_path / name for name in ("whole", "resumed")]
    configs = [choice_config(folder, checkpoint, save_total_limit=3, **settings, **changes) for folder in folders]
    saved = LFPOTrainer(args=configs[0]).train()
    shutil.copytree(folders[0], folders[1])
    shutil.rmtree(folders[1] / "checkpoints/step-2")
    LFPOTrainer(args=configs[1]).train(resume=True)
    rows = without_times(metrics(folders[0]))
    assert rows == without_times(metrics(folders[1])) and len(rows) == 3
    assert all(row["grad_norm"] > 0 and row["flops"] > 0 for row in rows[1:])
    before, after = read_weights(checkpoint), read_weights(saved)
    assert before.keys() == after.keys()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert any("experts" in name for name in changed) == ("lora" not in changes)
    assert changed and not any("router" in name or "vision" in name or "scalar" in name for name in changed)
    record = json.loads((folders[0] / "rollouts/step-1.jsonl").read_text().splitlines()[0])
    assert [len(canvas) for canvas in record["canvases"]] == [len(record["tokens"])] * len(record["canvases"])
    assert max(record["reveal_step"]) + 1 == record["nfe"] and len(record["canvases"]) <= 4


def test_preference_training_needs_masks(checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    command = ["dpo", "--model", str(checkpoint), "--tasks", "{choice: 1}", "--output_dir", str(tmp_path / "run")]
    assert main(command) == 2
    assert "lfpo dpo needs a model that fills in masks" in capsys.readouterr().err


def run(command: list[str], folder: Path, model: Path, ranks: int, *more: str) -> None:
    run_lfpo(*command, "--model", str(model), "--output_dir", str(folder), *more, ranks=ranks)


@pytest.fixture(scope="module")
def alone(checkpoint: Path) -> Callable[..., Path]:
    """Runs in one process, each made once."""

    @functools.cache
    def made(*arguments: str) -> Path:
        folder = checkpoint.parent / f"alone{made.cache_info().misses}"
        run([*arguments], folder, checkpoint, 1)
        return folder

    return made


@pytest.mark.long
@pytest.mark.parametrize("command", [SUPERVISED, BY_REWARDS, [*BY_REWARDS, "--objective.states", "stratified"]])
@pytest.mark.parametrize("more", [(), ("--rollout_gather", "layer"), ("--lora", "{r: 2, lora_alpha: 4}")])
def test_two_ranks_with_split_weights_train_as_one(
    command: list[str], more: tuple[str, ...], checkpoint: Path, alone: Callable[..., Path], tmp_path: Path
):
    if "--rollout_gather" in more and command is not BY_REWARDS:
        pytest.skip("nothing is gathered")
    one = alone(*command, *(more if "--lora" in more else ()))
    run(command, tmp_path / "two", checkpoint, 2, "--fsdp", "true", *more)
    assert all(row["grad_norm"] > 1e-3 for row in metrics(one) if "grad_norm" in row)
    assert_same_run(one, tmp_path / "two")
