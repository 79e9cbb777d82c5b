"""Training runs on prompts of letters, of which several test files look at the metrics."""

import json
from pathlib import Path
from typing import Any

import torch

from lfpo.config.sampler import SamplerConfig
from lfpo.config.train import LFPOConfig
from lfpo.models import load_model
from lfpo.models.weights import saved_weights
from lfpo.train.checkpoint import latest_checkpoint
from lfpo.train.rl import LFPOTrainer
from small_runs import ONE_PASS

ROWS = [{"prompt": text, "want": text[0]} for text in ("abc", "b", "cd", "dada")]


def even_letters(prompts, completions, **columns):
    """Learnable by a random model in seconds: the share of characters from the first half of the byte alphabet."""
    return [sum(ord(ch) % 2 == 0 for ch in c) / max(1, len(c)) for c in completions]


def config(tmp_path: Path, **changes) -> LFPOConfig:
    settings: dict[str, Any] = {"output_dir": str(tmp_path / "run"), "max_steps": 3, "prompts_per_iteration": 2}
    settings |= {"num_generations": 4, "sampler": SamplerConfig(gen_length=4, temperature=1.0)}
    settings |= {"eval_samplers": {"greedy": SamplerConfig(gen_length=4)}, "optimizer_steps_per_iteration": 2}
    settings |= {"learning_rate": 1e-2, "eval_steps": 2, "save_steps": 1, "objective": ONE_PASS}
    return LFPOConfig(**{**settings, **changes})


def metrics(run: Path) -> list[dict]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def without_times(rows: list[dict]) -> list[dict]:
    return [{k: v for k, v in row.items() if not k.startswith("time/")} for row in rows]


def assert_resume_is_exact(model: Path, tmp_path: Path, **changes: Any) -> Path:
    """Four iterations in one go and in two parts: same metrics and weights. Returns the last checkpoint's folder."""
    for name, steps in (("whole", 4), ("run", 2), ("run", 4)):
        sizes = {"output_dir": str(tmp_path / name), "max_steps": steps, "save_steps": 2}
        args = config(tmp_path, **sizes, ema_decay=0.5, **changes)
        trainer = LFPOTrainer(str(model), even_letters, args=args, train_dataset=ROWS, eval_dataset=ROWS)
        trainer.train(resume=(tmp_path / name).exists())
    assert all(row["grad_norm"] > 0 for row in metrics(tmp_path / "whole")[1:])
    assert without_times(metrics(tmp_path / "run")) == without_times(metrics(tmp_path / "whole"))
    whole, run = (latest_checkpoint(tmp_path / name) for name in ("whole", "run"))
    assert whole is not None and run is not None
    exported = [(tmp_path / name / "model") for name in ("whole", "run")]
    for one, other in ((whole / "model", run / "model"), (whole / "reference", run / "reference"), exported):
        a, b = load_model(one), load_model(other)
        assert all(torch.equal(x, saved_weights(b)[key]) for key, x in saved_weights(a).items())
    return run
