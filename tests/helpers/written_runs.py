"""Run folders written by hand, with the completions and metrics that a test needs."""

import json
from pathlib import Path
from typing import Any

from lfpo.compare.grid import write_results
from lfpo.config.build import to_dict, yaml_text
from lfpo.config.compare import Cell, CompareConfig, cell_folder
from lfpo.config.train import LFPOConfig

CODE = "```python\ndef area(r):\n    # a circle\n    return 3 * r ** 2\n```"
HOSTILE = "</script><script>window.owned = 1</script><img src=x onerror='window.owned = 1'>"

MANY = 20  # iterations with rollouts of their own; later ones link to those of the first


def record(
    text: str, *, prompt: str = "Say something.", piece: int = 3, stride: int = 5, **more: Any
) -> dict[str, Any]:
    """A completion cut into pieces of `piece` characters, revealed in an order that jumps by `stride`."""
    tokens = [text[i : i + piece] for i in range(0, len(text), piece)]
    reveal = [(i * stride) % len(tokens) for i in range(len(tokens))]
    row: dict[str, Any] = {"prompt": prompt, "prompt_ids": [1, 2], "completion": text}
    row |= {"token_ids": list(range(len(tokens))), "tokens": tokens, "reveal_step": reveal}
    row |= {"confidence": [round((i % 10) / 10, 2) for i in range(len(tokens))]}
    return row | {"scheduled_steps": max(reveal) + 1, "nfe": max(reveal) + 1} | more


def write_run(
    folder: Path,
    texts: list[str],
    *,
    steps: int = 2,
    rollouts: int = 4,
    eval_texts: list[str] | None = None,
    policy: bool = False,
    **settings: Any,
) -> Path:
    """A run of `steps` iterations whose rollouts go through `texts`.

    eval_texts: completions of two evaluations. policy: metrics.jsonl has the keys of `policy_metrics`. settings: of the
    configuration.
    """
    config = LFPOConfig(
        output_dir=str(folder),
        data_file="rows.jsonl",
        max_steps=steps,
        prompts_per_iteration=max(1, rollouts // 4),
        num_generations=min(4, rollouts),
        optimizer_steps_per_iteration=1,
        **settings,
    )
    (folder / "rollouts").mkdir(parents=True)
    (folder / "config.yaml").write_text(yaml_text(to_dict(config)))
    info = {"kind": "train", "environment": "CPU (test), 1 of 1 threads", "versions": {"lfpo": "0"}}
    (folder / "run.json").write_text(json.dumps({**info, "iterations": steps}))
    lines: list[dict[str, Any]] = [{"step": 0, **_evaluation(0.25)}]
    for step in range(1, steps + 1):
        records: list[dict[str, Any]] = []
        for i in range(rollouts if step < MANY else 0):
            reward = float((step + i) % 3)
            text = texts[(step * rollouts + i) % len(texts)]
            records.append(record(text, rewards={"form": reward, "fact": reward / 2}, reward=reward, r=reward / 2))
        if records:
            write_rows(folder / f"rollouts/step-{step}.jsonl", records)
        else:  # or writing a long run takes longer than reading it
            (folder / f"rollouts/step-{step}.jsonl").hardlink_to(folder / "rollouts/step-1.jsonl")
        line: dict[str, Any] = {"step": step, "reward": step / steps, "frac_reward_zero_std": 0.5}
        line |= {"rewards/form/mean": step / steps, "rewards/fact/mean": step / steps / 2}
        line |= {"completions/mean_length": 9.0, "steps": 16.0, "nfe": 16.0 - 8 * step / steps}
        line |= {"loss": 1 / step, "grad_norm": 0.5}
        line |= {"time/rollout": 2.0, "time/reward": 0.25, "time/update": 1.0, "time/total": 3.25 * step}
        lines.append(line)
    if policy:
        lines = [lines[0], *(line | policy_metrics(line["step"]) for line in lines[1:])]
    lines[-1] |= _evaluation(0.75)
    write_rows(folder / "metrics.jsonl", lines)
    if eval_texts:
        (folder / "eval").mkdir()
        for step in (0, steps):
            rows = [
                {"sampler": "greedy", "problem": i, **record(t, stride=1 + 2 * (step > 0)), "correct": step > 0}
                for i, t in enumerate(eval_texts)
            ]
            write_rows(folder / f"eval/step-{step}.jsonl", rows)
    return folder


def compared(objective: str, seed: int, frontier: list[float], curve: list[float]) -> dict[str, Any]:
    """A cell of `lfpo compare` with these accuracies: at 1, 2, ... forwards, and at evaluations 5 TFLOPs apart."""
    points = [{"threshold": 0.5 + 0.1 * i, "accuracy": a, "nfe": 1.0 + i} for i, a in enumerate(frontier)]
    steps = [{"step": i, "flops": 5e12 * i, "accuracy": a, "nfe": 2.0} for i, a in enumerate(curve)]
    what = {"objective": objective, "seed": seed, "version": "0", "forwards": 16}
    return {**what, "frontier": points, "curve": steps, "flops": 5e12 * max(0, len(curve) - 1), "seconds": 1.0}


def write_comparison(folder: Path) -> Path:
    """What `lfpo compare` leaves of four objectives on two seeds."""
    labels = ("lfpo", "agrpo", "unigrpo", "rejection")
    config = CompareConfig("sudoku", str(folder), {label: {"name": label} for label in labels}, seeds=[1, 2])
    for number, label in enumerate(labels):
        for seed in config.seeds:
            end = 0.9 - 0.1 * number + 0.02 * seed
            cell = compared(label, seed, [end - 0.2, end, end + 0.01], [0.4, 0.6, end])
            write_result(config, Cell(label, seed), cell)
    write_result(config, Cell("base"), compared("base", 0, [0.3, 0.4, 0.5], []))
    return write_results(config, {}).parent


def write_result(config: CompareConfig, cell: Cell, result: dict[str, Any]) -> None:
    folder = cell_folder(config, cell)
    folder.mkdir(parents=True)
    (folder / "result.json").write_text(json.dumps(result))


def policy_metrics(step: int) -> dict[str, float | None]:
    """What a loss can report of the policy at iteration `step`; no bad rollouts in the first iteration."""
    found: dict[str, float | None] = {"kl/old": 0.001 * step, "kl/base": 0.01 * step}
    found |= {"entropy/targets": 1.0 / step, "entropy/rollout": 0.5 / step}
    found |= {"p_target/good": 1 - 0.5 / step, "p_target/bad": 0.25 / step if step > 1 else None}
    found |= {"p_target_old/good": 1 - 0.75 / step, "p_target_old/bad": 0.5 / step if step > 1 else None}
    return found | {"negatives/saturated": 0.125 if step > 1 else None, "ratio/mean": 1.0, "ratio/clipped": 0.0}


def write_rows(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(r) + "\n" for r in rows))
    return path


def _evaluation(accuracy: float) -> dict[str, float]:
    values = {"accuracy": accuracy, "low": accuracy - 0.1, "high": accuracy + 0.1, "steps": 16.0, "nfe": 8.0}
    return {**{f"eval/greedy/{k}": v for k, v in values.items()}, "time/eval": 1.0}
