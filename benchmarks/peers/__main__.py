"""Seconds and memory of d1's trainer (arXiv 2504.12216) divided by ours, for diffu-GRPO on the same model and prompts.

    make peers                                   # makes d1's environment first
    python -m benchmarks.peers --python ENV/bin/python --d1 FOLDER [--rows "embedded, 64 tokens"]

Each side is a process with one thread; they run iterations in turn, so that a slow moment of the machine falls on both.
The first turn of each is not counted; the table has medians. Sides draw their own noise: tokens differ, their number
does not. Memory is the peak of resident memory above what the process held before the turn.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.measure import status_bytes
from benchmarks.peers.turn import NUMBERS
from benchmarks.table import markdown

TRAINER = "diffu-grpo/diffu_grpo_trainer.py"
# row -> vocabulary and layers of a random model of width 512 (None: the embedded model), and numbers of `turn.NUMBERS`
ROWS: dict[str, tuple[int | None, int, dict[str, int]]] = {
    "embedded, 64 tokens": (None, 0, {}),
    "embedded, 128 tokens": (None, 0, {"tokens": 128, "steps": 64}),
    "embedded, 64 tokens, 12 passes, LoRA, KL": (None, 0, {"passes": 12, "lora": 1}),
    "V = 4,096, 64 tokens": (4096, 8, {}),
    "V = 32,000, 64 tokens": (32000, 6, {}),
    "V = 32,000, 128 tokens, 4 rollouts": (32000, 6, {"tokens": 128, "steps": 64, "prompts": 1}),
}
DEFAULTS = {"prompts": 4, "generations": 4, "tokens": 64, "steps": 32, "block": 32, "passes": 1, "lora": 0}


def write_model(folder: Path, vocabulary: int | None, layers: int) -> None:
    """A model twice, in our layout and as a Llama of transformers; and the prompts."""
    from lfpo.models import init_model, load_model, load_tokenizer
    from lfpo.models.export import export_transformers
    from lfpo.models.layouts import LAYOUTS
    from lfpo.models.loading import save_model
    from lfpo.prompts.tasks import get_task

    tokenizer = load_tokenizer("embedded")
    if vocabulary is None:
        model = load_model("embedded")
    else:
        shape = {"n_layers": layers, "d_model": 512, "n_heads": 8, "mlp_hidden_size": 2048, "vocab_size": vocabulary}
        own = {f"{name}_token_id": getattr(tokenizer, f"{name}_token_id") for name in ("mask", "eos", "pad")}
        model = init_model({**LAYOUTS["llada-8b"], **shape, **own}, seed=0)
    save_model(model, folder / "lfpo", tokenizer)
    export_transformers(folder / "lfpo", folder)
    prompts = [row["prompt"] for row in get_task("sudoku").test_rows(8)]
    (folder / "prompts.json").write_text(json.dumps(prompts))


class Side:
    """A child process that runs one iteration for each `turn`."""

    def __init__(self, python: str, module: str, folder: Path, numbers: dict[str, int], *more: str):
        options = [part for name in NUMBERS for part in (f"--{name}", str(numbers[name]))]
        command = [python, "-m", f"benchmarks.peers.{module}", str(folder), *more, *options]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "WANDB_MODE": "disabled"}
        self.log = folder / f"{module}.log"
        pipe = subprocess.PIPE
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                command, stdin=pipe, stdout=pipe, stderr=log, text=True, env=environment, bufsize=1
            )
        self.found: list[dict[str, float]] = []

    def line(self) -> str:
        assert self.process.stdout is not None
        found = self.process.stdout.readline().strip()
        if not found:
            raise SystemExit(f"{self.log.stem} ended early:\n{self.log.read_text()[-2000:]}")
        return found

    def turn(self) -> None:
        assert self.line() == "ready" and self.process.stdin is not None
        proc = Path(f"/proc/{self.process.pid}")
        (proc / "clear_refs").write_text("5")  # the peak becomes what is resident now
        before = status_bytes("VmHWM", proc / "status")
        print("go", file=self.process.stdin, flush=True)
        found = json.loads(self.line())
        self.found.append({**found, "memory": (status_bytes("VmHWM", proc / "status") - before) / 2**20})

    def close(self) -> None:
        """Wait for the process, which ends after its last turn, and close its pipes."""
        self.process.communicate()


def run_row(name: str, python: str, trainer: Path, turns: int) -> list[str]:
    """Cells: seconds of rollout and update, and memory, of d1, of ours, and the ratio."""
    vocabulary, layers, changes = ROWS[name]
    numbers = {**DEFAULTS, **changes, "turns": turns + 1}
    with tempfile.TemporaryDirectory() as folder:
        write_model(Path(folder), vocabulary, layers)
        sides = [
            Side(python, "d1", Path(folder), numbers, "--trainer", str(trainer)),
            Side(sys.executable, "ours", Path(folder), numbers),
        ]
        for _ in range(turns + 1):
            for side in sides:
                side.turn()
        for side in sides:
            side.close()
    medians = [{key: statistics.median(t[key] for t in side.found[1:]) for key in side.found[0]} for side in sides]
    return cells(*medians)


def cells(theirs: dict[str, float], ours: dict[str, float]) -> list[str]:
    for side in (theirs, ours):
        side["both"] = side["rollout"] + side["update"]
    ratios = {part: theirs[part] / ours[part] for part in ("rollout", "update", "both")}
    found = [f"{theirs[part]:.2f} / {ours[part]:.2f} = {ratio:.2f}" for part, ratio in ratios.items()]
    return [*found, f"{theirs['memory']:,.0f} / {ours['memory']:,.0f}"]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", required=True, help="of an environment with requirements.txt")
    parser.add_argument("--d1", type=Path, required=True, help="folder of d1's repository")
    parser.add_argument("--rows", nargs="+", choices=list(ROWS), default=list(ROWS))
    parser.add_argument("--turns", type=int, default=3)
    asked = parser.parse_args(arguments)
    trainer = (asked.d1 / TRAINER).resolve()
    if not trainer.exists():
        print(f"error: {trainer}: no such file; --d1 must be a copy of github.com/dllm-reasoning/d1", file=sys.stderr)
        return 2
    rows = []
    for name in asked.rows:
        rows.append(("d1 / lfpo", [name, *run_row(name, asked.python, trainer, asked.turns)]))
        print(markdown(("", "rollout, s", "update, s", "iteration, s", "peak, MiB"), rows), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
