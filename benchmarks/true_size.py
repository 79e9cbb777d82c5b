"""Training at true size on a CPU: random checkpoints in published layouts, from two iterations to the export.

    python -m benchmarks.true_size FOLDER                     # all rows; finished ones are not run again
    python -m benchmarks.true_size FOLDER --rows smallest

Per row: a bfloat16 checkpoint with random weights is written; two iterations of two prompts x 2 rollouts are trained,
the process is killed after the first and resumed; the model is exported to transformers' layout, and its logits there
are compared with ours; it is sampled from and evaluated. Each command is a process of its own. Its memory is read every
10 ms, by phase: the peak of anonymous pages, and of all resident ones, which also count libraries and the memory-mapped
checkpoint, both of which the system may drop. `lfpo plan --device cpu` counts the checkpoint and no libraries. Needs
22 GiB of memory and 50 GiB of disk for the largest row.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

GIB = 2**30
LORA = ["--lora", "{r: 16}", "--dtype", "bfloat16", "--gradient_checkpointing", "true"]
ALL = ["--gradient_checkpointing", "true"]  # trained weights are float32: 20 bytes each with theta_old and moments
# row -> layout, number of layers (None: all), settings
ROWS: dict[str, tuple[str, int | None, list[str]]] = {
    "smallest": ("llada-8b", 1, LORA),
    "llada-8b": ("llada-8b", None, LORA),
    "llada-8b-4bit": ("llada-8b", None, [*LORA, "--load_in_4bit", "true"]),
    "dream-7b": ("dream-7b", None, LORA),
    "sdar-1.7b": ("sdar-1.7b", 6, ALL),
    "llada-moe-7b": ("llada-moe-7b", 8, LORA),
}
TRAIN = ["--task", "sudoku", "--prompts_per_iteration", "2", "--num_generations", "2", "--max_steps", "2"]
TRAIN += ["--save_steps", "1", "--eval_steps", "0", "--optimizer_steps_per_iteration", "1", "--learning_rate", "1e-4"]
TRAIN += ["--objective.num_iterations", "1"]  # one pass needs the memory of four, and a quarter of their time
TRAIN += ["--sampler.gen_length", "16", "--sampler.steps", "8", "--reward_funcs", "benchmarks.true_size.even"]
LENGTH = ["--sampler.gen_length", "16", "--sampler.steps", "8", "--dtype", "bfloat16"]
LOGITS = """
import sys, torch
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.bfloat16)
with torch.no_grad():
    torch.save(model(torch.load(sys.argv[2])).logits, sys.argv[3])
"""


def even(prompts: list[str], completions: list[str], completion_ids: list[list[int]], **columns: Any) -> list[float]:
    """The share of even token ids: random weights get rewards that differ."""
    return [sum(i % 2 == 0 for i in ids) / max(1, len(ids)) for ids in completion_ids]


def write_checkpoint(folder: Path, layout: str, layers: int | None) -> None:
    """A checkpoint with random weights in a published layout, tensor by tensor, and the embedded model's tokenizer."""
    import torch

    from lfpo.models import load_tokenizer
    from lfpo.models.families import family_of
    from lfpo.models.layouts import LAYOUTS, with_layers
    from lfpo.models.tensor_files import write_shards
    from lfpo.models.weights import checkpoint_shapes, pieces, state_shapes
    from lfpo.train.plan.model import skeleton

    config = with_layers(LAYOUTS[layout], layers)
    own = state_shapes(skeleton(config).backbone)
    shapes, generator = checkpoint_shapes(pieces(family_of(config, folder), own), own), torch.Generator().manual_seed(0)

    def drawn(name: str) -> torch.Tensor:
        weight = torch.empty(torch.Size(shapes[name]), dtype=torch.bfloat16)
        return weight.fill_(1.0) if weight.dim() == 1 else weight.normal_(0, 0.02, generator=generator)

    folder.mkdir(parents=True)
    load_tokenizer("embedded").save_pretrained(folder)
    sizes = {n: torch.empty(torch.Size(s), dtype=torch.bfloat16, device="meta") for n, s in shapes.items()}
    write_shards(sizes, drawn, folder, "model")
    (folder / "config.json").write_text(json.dumps(config))  # last: with it the checkpoint is complete


def run_command(phases: Path, command: list[str]) -> int:
    """`lfpo COMMAND` in this process; the phase it is in, of those of the plan, is written to a file as it changes."""
    from lfpo.cli.command_line import main
    from lfpo.train.rl import LFPOTrainer

    def enter(phase: str) -> None:
        phases.write_text(phase)

    sample, export = LFPOTrainer.sample_and_score, LFPOTrainer.export

    def sampling(trainer: Any, *args: Any) -> Any:
        enter("rollout")
        batch = sample(trainer, *args)
        enter("update")
        return batch

    def exporting(trainer: Any) -> Any:
        enter("export")
        return export(trainer)

    LFPOTrainer.sample_and_score = sampling  # type: ignore[method-assign,assignment]
    LFPOTrainer.export = exporting  # type: ignore[method-assign,assignment]
    enter("start")
    return main(command)


def watched(folder: Path, *command: str, until: Path | None = None) -> tuple[float, dict[str, list[float]]]:
    """Run `lfpo COMMAND`: its seconds, and phase -> peaks of anonymous and of all memory, GiB. until: kill it then."""
    phases, peaks, started = folder / "phase", dict[str, list[float]](), time.perf_counter()
    phases.write_text("start")
    child = [sys.executable, "-m", "benchmarks.true_size", str(folder), "--run", json.dumps(command)]
    with (folder / "output.log").open("a") as log:
        process = subprocess.Popen(child, stdout=log, stderr=subprocess.STDOUT)
    while process.poll() is None:
        lines = dict(line.split(":", 1) for line in Path(f"/proc/{process.pid}/status").read_text().splitlines())
        now = [int(lines.get(key, "0 kB").split()[0]) / 2**20 for key in ("RssAnon", "VmRSS")]
        phase = phases.read_text() or "start"
        peaks[phase] = [max(pair) for pair in zip(now, peaks.get(phase, now), strict=True)]
        if until is not None and until.exists():
            process.kill()
        time.sleep(0.01)
    if process.returncode and until is None:
        code = process.returncode
        raise SystemExit(f"lfpo {' '.join(command)}: exit code {code}; {folder}/output.log has its output")
    return time.perf_counter() - started, peaks


def run_row(folder: Path, layout: str, layers: int | None, settings: list[str]) -> dict[str, Any]:
    """One row: phase -> GiB [anonymous, resident, planned], what -> seconds, and the largest difference of logits."""
    model, run, exported = folder / "checkpoint", folder / "run", folder / "exported"
    if not (model / "config.json").exists():
        shutil.rmtree(model, ignore_errors=True)
        write_checkpoint(model, layout, layers)
    for old in (run, exported):
        shutil.rmtree(old, ignore_errors=True)
    options = ["--model", str(model), *TRAIN, *settings]
    watched(folder, "plan", "--device", "cpu", "--gpu_memory", "1000", "--output", str(folder / "plan.json"), *options)
    plan = json.loads((folder / "plan.json").read_text())
    train = ["train", *options, "--output_dir", str(run)]
    seconds, peaks = dict[str, float](), dict[str, dict[str, list[float]]]()
    first = run / "checkpoints" / "step-1"
    seconds["one iteration, killed"], peaks["killed"] = watched(folder, *train, until=first)
    seconds["resume to the end"], peaks["train"] = watched(folder, *train, "--resume", "true")
    to = ["--layout", "transformers", "--output", str(exported)]
    seconds["export"], peaks["export"] = watched(folder, "export", str(run), *to)
    trained = str(run / "model")
    seconds["sample"], peaks["sample"] = watched(folder, "sample", "--model", trained, "--prompt", "1", *LENGTH)
    few = ["--task", "sudoku", "--n", "2", *LENGTH]
    seconds["eval"], peaks["eval"] = watched(folder, "eval", "--model", trained, *few)
    memory = {}
    for phase, planned in zip(plan["phases"], plan["total"], strict=True):
        runs = [peaks[part][phase] for part in ("killed", "train") if phase in peaks[part]]
        memory[phase] = [*(max(found) for found in zip(*runs, strict=True)), planned / GIB]
    commands = {name: max(found[0] for found in peaks[name].values()) for name in ("export", "sample", "eval")}
    return {"seconds": seconds, "memory": memory, "commands": commands, **compare_logits(folder, trained, exported)}


def compare_logits(folder: Path, trained: str, exported: Path) -> dict[str, float]:
    """Our logits beside those of transformers on the exported model; Dream's position i predicts token i + 1."""
    import torch

    from lfpo.models import load_model

    ids, theirs = folder / "ids.pt", folder / "logits.pt"
    torch.save(torch.arange(24)[None] + 5, ids)
    subprocess.run([sys.executable, "-c", LOGITS, str(exported), str(ids), str(theirs)], check=True)
    model = load_model(trained, dtype=torch.bfloat16)
    with torch.no_grad():
        ours, found = model(torch.load(ids)).float(), torch.load(theirs).float()
    if model.family.shift:
        ours, found = ours[:, 1:], found[:, :-1]
    return {"logits differ by": float((ours - found).abs().max()), "of": float(found.abs().max())}


def table(rows: dict[str, Any]) -> str:
    lines = ["| row | start | rollout | update | export | lfpo export, sample, eval | seconds | logits |"]
    lines.append("| --- |" + " ---: |" * 7)
    for name, row in rows.items():
        phases = [f"{own:.1f}, {all_of:.1f} ({planned:.1f})" for own, all_of, planned in row["memory"].values()]
        commands = ", ".join(f"{peak:.1f}" for peak in row["commands"].values())
        seconds = ", ".join(f"{value:.0f}" for value in row["seconds"].values())
        logits = f"{row['logits differ by']:.2g} of {row['of']:.2g}"
        lines.append(f"| {name} | {' | '.join(phases)} | {commands} | {seconds} | {logits} |")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rows", nargs="+", choices=list(ROWS), default=list(ROWS)[1:])
    parser.add_argument("--run", type=json.loads, help=argparse.SUPPRESS)
    args = parser.parse_args(arguments)
    if args.run is not None:
        return run_command(args.folder / "phase", args.run)
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    done: dict[str, Any] = {}
    for name in args.rows:
        folder = args.folder / name
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / "row.json").exists():
            row = run_row(folder, *ROWS[name])
            (folder / "row.json").write_text(json.dumps(row, indent=1))
            for heavy in ("checkpoint", "run", "exported"):
                shutil.rmtree(folder / heavy)
        done[name] = json.loads((folder / "row.json").read_text())
        print(table(done), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
