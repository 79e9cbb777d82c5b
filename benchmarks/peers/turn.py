"""What both sides do: wait for their turn, run one iteration, report. Needs the standard library only."""

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

NUMBERS = ("prompts", "generations", "tokens", "steps", "block", "passes", "turns", "lora")


def settings() -> argparse.Namespace:
    """What the command line of a side says."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--trainer", type=Path)
    for name in NUMBERS:
        parser.add_argument(f"--{name}", type=int)
    return parser.parse_args()


def prompts(asked: argparse.Namespace) -> list[dict[str, str]]:
    """The dataset of both sides."""
    found: list[str] = json.loads((asked.folder / "prompts.json").read_text())
    return [{"prompt": prompt} for prompt in found[: asked.prompts]]


def rewards(completions: list[str], **_: Any) -> list[float]:
    """1/4, 2/4, 3/4, 1 in turn, so that advantages are never all zero, whatever a random model writes."""
    return [(i % 4 + 1) / 4 for i in range(len(completions))]


def wait() -> float:
    """Say that this side is ready, and block until the other side has had its turn. Returns the time."""
    print("ready", file=sys.__stdout__, flush=True)
    if sys.stdin.readline().strip() != "go":
        raise SystemExit(0)
    return time.perf_counter()


def report(rollout: float, update: float) -> None:
    """The seconds of one iteration."""
    print(json.dumps({"rollout": rollout, "update": update}), file=sys.__stdout__, flush=True)
