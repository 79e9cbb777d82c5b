"""Training under torchrun with FSDP on one rank, against the same run without it."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from gpu.rows import Machine, Row, at_most, passes

OPTIONS: dict[str, int | str] = {"max_steps": 2, "prompts_per_iteration": 2, "num_generations": 4}
OPTIONS |= {"optimizer_steps_per_iteration": 1, "eval_size": 4, "save_steps": 1, "save_total_limit": 9}
OPTIONS |= {"bf16": "false", "threads": 1}
RECIPE = ["train", "demo", *(part for name, value in OPTIONS.items() for part in (f"--{name}", str(value)))]
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "1"]


def one_rank(machine: Machine) -> list[Row]:
    """Losses with and without FSDP, and after resuming from the first step's checkpoint. NCCL on a GPU, else gloo."""
    with tempfile.TemporaryDirectory() as where:
        folder = Path(where)
        plain = _train(folder / "plain")
        split = _train(folder / "split", "--fsdp", "true", ranks=True)
        shutil.rmtree(folder / "split" / "checkpoints" / "step-2")
        resumed = _train(folder / "split", "--fsdp", "true", "--resume", ranks=True)
    rows = [passes("steps logged", len(plain) == len(split) == len(resumed) == 2, str(len(resumed)), "2")]
    for what, losses in (("with FSDP", split), ("resumed", resumed)):
        error = max(abs(a / b - 1) for a, b in zip(losses, plain, strict=True))
        rows.append(at_most(f"losses {what}, off those without", error, 1e-5))
    return rows


def _train(folder: Path, *more: str, ranks: bool = False) -> list[float]:
    """The losses of a run's metrics.jsonl."""
    command = [sys.executable, *(TORCHRUN if ranks else []), "-m", "lfpo", *RECIPE, "--output_dir", str(folder), *more]
    ended = subprocess.run(command, env=os.environ, capture_output=True, text=True, check=False)
    if ended.returncode:
        said = [line for line in ended.stderr.splitlines() if line.startswith("error: ")]
        raise RuntimeError(said[0] if said else ended.stderr[-2000:])
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [row["loss"] for row in rows if "loss" in row]
