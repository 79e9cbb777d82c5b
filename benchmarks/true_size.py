"""Training at true size on a CPU: random checkpoints in published layouts, from two iterations to the export.

    python -m benchmarks.true_size FOLDER                     # all rows; finished ones are not run again
    python -m benchmarks.true_size FOLDER --rows smallest

Per row: a bfloat16 checkpoint with random weights is written; two iterations of two prompts x 2 rollouts are trained,
the process is killed in its second rollouts and resumed; the model is exported to transformers' layout, and its logits
there are compared with ours; it is sampled from and evaluated. Each command is a process of its own (two ranks with
FSDP), whose anonymous memory is read every 10 ms. Its peak in each phase, and the weights that stay in the checkpoint's
mapped files, stand beside what `lfpo plan --device cpu` counts. Needs 22 GiB of memory and 50 GiB of disk for the
largest row.
"""

import argparse
import contextlib
import json
import os
import shutil
import signal
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
    "llada-8b-4bit": ("llada-8b", 8, [*LORA, "--load_in_4bit", "true"]),
    "llada-8b-fsdp": ("llada-8b", None, [*LORA, "--fsdp", "true", "--rollout_gather", "layer"]),
    "dream-7b": ("dream-7b", None, LORA),
    "sdar-1.7b": ("sdar-1.7b", 6, ALL),
    "llada-moe-7b": ("llada-moe-7b", 8, LORA),
    "nemotron-3b": ("nemotron-labs-diffusion-3b", 1, LORA),
    "diffusion-gemma-26b": ("diffusion-gemma-26b", 2, LORA),  # a sliding and a full layer
}
TRAIN = ["--task", "sudoku", "--prompts_per_iteration", "2", "--num_generations", "2", "--max_steps", "2"]
TRAIN += ["--save_steps", "1", "--eval_samplers", "{}", "--optimizer_steps_per_iteration", "1"]
TRAIN += ["--learning_rate", "1e-4"]
TRAIN += ["--objective.num_iterations", "1"]  # one pass needs the memory of four, and a quarter of their time
TRAIN += ["--reward_funcs", "benchmarks.true_size.even"]
MASKS = ["--sampler.gen_length", "16", "--sampler.steps", "8"]
CANVAS = ["--sampler.rule", "canvas", "--sampler.temperature", "0", "--sampler.gen_length", "256"]
CANVAS += ["--sampler.max_denoising_steps", "3"]
LOGITS = """
import sys, torch, transformers
inputs = torch.load(sys.argv[2])
of_canvases = "decoder_input_ids" in inputs
kind = transformers.DiffusionGemmaForBlockDiffusion if of_canvases else transformers.AutoModelForCausalLM
model = kind.from_pretrained(sys.argv[1], dtype=torch.bfloat16)
with torch.no_grad():
    torch.save(model(**inputs).logits, sys.argv[3])
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
    from lfpo.models.weights import checkpoint_shapes, state_shapes
    from lfpo.plan.model import skeleton

    config = with_layers(LAYOUTS[layout], layers)
    shapes = checkpoint_shapes(family_of(config, folder), state_shapes(skeleton(config).backbone))
    generator = torch.Generator().manual_seed(0)

    def drawn(name: str, writer: int) -> torch.Tensor:
        weight = torch.empty(torch.Size(shapes[name]), dtype=torch.bfloat16)
        return weight.fill_(1.0) if weight.dim() == 1 else weight.normal_(0, 0.02, generator=generator)

    folder.mkdir(parents=True)
    load_tokenizer("embedded").save_pretrained(folder)
    sizes = {n: torch.empty(torch.Size(s), dtype=torch.bfloat16, device="meta") for n, s in shapes.items()}
    write_shards(sizes, folder, "model", drawn)
    (folder / "config.json").write_text(json.dumps(config))  # last: with it the checkpoint is complete


def run_command(folder: Path, command: list[str]) -> int:
    """`lfpo COMMAND` in this process. Its phase, of those of the plan, and the GiB of mapped weights are written to a
    file as they change."""
    from lfpo.base.environment import before_torch

    before_torch()  # the imports below load torch
    from lfpo.cli.command_line import main
    from lfpo.core.algorithm import Algorithm
    from lfpo.train.rl import LFPOTrainer

    def enter(phase: str, mapped: float = 0.0) -> None:
        (folder / f"phase-{os.getpid()}").write_text(f"{phase} {mapped}")

    sample, export = Algorithm.sample_and_score, LFPOTrainer.export

    def sampling(algorithm: Any, *args: Any) -> Any:
        enter("rollout", mapped_weights(algorithm.learner.policies["current"]))
        batch = sample(algorithm, *args)
        enter("update")
        return batch

    def exporting(trainer: Any) -> Any:
        enter("export")
        return export(trainer)

    Algorithm.sample_and_score = sampling  # type: ignore[method-assign,assignment]
    LFPOTrainer.export = exporting  # type: ignore[method-assign,assignment]
    enter("start")
    return main(command)


def mapped_weights(model: Any) -> float:
    """GiB of a model's weights that stay in its checkpoint's files, which are mapped to memory."""
    lines = (line.split() for line in Path("/proc/self/maps").read_text().splitlines() if ".safetensors" in line)
    ranges = [[int(end, 16) for end in line[0].split("-")] for line in lines]
    mapped = (p for p in model.parameters() if any(low <= p.data_ptr() < high for low, high in ranges))
    return sum(p.nbytes for p in mapped) / GIB


def watched(folder: Path, *command: str, ranks: int = 1, until: Path | None = None) -> tuple[float, dict[str, float]]:
    """Run `lfpo COMMAND`: its seconds, and phase -> GiB of memory it needs. until: kill it when this exists and it has
    sampled again for two seconds, which shows what rollouts hold once there are moments."""
    from benchmarks.measure import status_bytes  # loads torch, so not before `run_command` calls before_torch

    for old in folder.glob("phase-*"):
        old.unlink()
    several = ["-m", "torch.distributed.run", "--nproc_per_node", str(ranks), "--module"] if ranks > 1 else ["-m"]
    child = [sys.executable, *several, "benchmarks.true_size", str(folder), "--command", json.dumps(command)]
    peaks, mapped, killed, started, again = dict[str, float](), 0.0, False, time.perf_counter(), float("inf")
    with (folder / "output.log").open("a") as log:
        process = subprocess.Popen(child, stdout=log, stderr=subprocess.STDOUT)
    while process.poll() is None:
        seen = {int(file.name.removeprefix("phase-")): file.read_text().split() for file in folder.glob("phase-*")}
        for pid, words in seen.items():
            # A process that has ended has no such number, and one that is beginning to write has no words yet.
            with contextlib.suppress(FileNotFoundError, ProcessLookupError, StopIteration, ValueError):
                phase, stays = words
                peaks[phase] = max(peaks.get(phase, 0.0), status_bytes("RssAnon", Path(f"/proc/{pid}/status")) / GIB)
                mapped = max(mapped, float(stays))
        if until is not None and until.exists() and all(words[:1] == ["rollout"] for words in seen.values()):
            again = min(again, time.perf_counter())
        if killed := time.perf_counter() > again + 2:
            for pid in seen:  # torchrun's ranks are in sessions of their own
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            process.kill()
        time.sleep(0.01)
    if process.returncode and not killed:
        code = process.returncode
        raise SystemExit(f"lfpo {' '.join(command)}: exit code {code}; {folder}/output.log has its output")
    return time.perf_counter() - started, {phase: peak + mapped for phase, peak in peaks.items()}


def run_row(folder: Path, layout: str, layers: int | None, settings: list[str]) -> dict[str, Any]:
    """One row: phase -> GiB [needed, planned], what -> seconds, and the largest difference of logits."""
    ranks = 2 if "--fsdp" in settings else 1
    model, run, exported = folder / "checkpoint", folder / "run", folder / "exported"
    if not (model / "config.json").exists():
        shutil.rmtree(model, ignore_errors=True)
        write_checkpoint(model, layout, layers)
    for old in (run, exported):
        shutil.rmtree(old, ignore_errors=True)
    uniform = layout.startswith("diffusion-gemma")  # whose own layout is that of transformers
    sampler = CANVAS if uniform else MASKS
    options = ["--model", str(model), *TRAIN, *sampler, *settings]
    planned = folder / "plan.json"
    there = ["--device", "cpu", "--gpu_memory", "1000", "--gpus", str(ranks), "--output", str(planned)]
    watched(folder, "plan", *there, *options)
    plan = json.loads(planned.read_text())
    train = ["train", *options, "--output_dir", str(run)]
    seconds, peaks = dict[str, float](), dict[str, dict[str, float]]()
    first = run / "checkpoints" / "step-1"
    seconds["an iteration, killed"], peaks["killed"] = watched(folder, *train, ranks=ranks, until=first)
    seconds["resume to the end"], peaks["train"] = watched(folder, *train, "--resume", "true", ranks=ranks)
    to = [*([] if uniform else ["--layout", "transformers"]), "--output", str(exported)]
    seconds["export"], peaks["export"] = watched(folder, "export", str(run), *to)
    trained, drawn = str(run / "model"), [*sampler, "--dtype", "bfloat16"]
    seconds["sample"], peaks["sample"] = watched(folder, "sample", "--model", trained, "--prompt", "1", *drawn)
    few = ["--task", "sudoku", "--n", "2", *drawn]
    seconds["eval"], peaks["eval"] = watched(folder, "eval", "--model", trained, *few)
    memory = {}
    for phase, counted in zip(plan["phases"], plan["total"], strict=True):
        memory[phase] = [max(peaks[part].get(phase, 0.0) for part in ("killed", "train")), counted / GIB]
    commands = {name: max(peaks[name].values()) for name in ("export", "sample", "eval")}
    return {"seconds": seconds, "memory": memory, "commands": commands, **compare_logits(folder, trained, exported)}


def compare_logits(folder: Path, trained: str, exported: Path) -> dict[str, float]:
    """Our logits beside those of transformers on the exported model; Dream's position i predicts token i + 1."""
    import torch

    inputs, theirs = folder / "inputs.pt", folder / "logits.pt"
    ours, of_class, shift = our_logits(trained)  # one model at a time is in memory
    torch.save(of_class, inputs)
    subprocess.run([sys.executable, "-c", LOGITS, str(exported), str(inputs), str(theirs)], check=True)
    found = torch.load(theirs).float()
    if shift:
        ours, found = ours[:, 1:], found[:, :-1]
    return {"logits differ by": float((ours - found).abs().max()), "of": float(found.abs().max())}


def our_logits(trained: str) -> tuple[Any, dict[str, Any], bool]:
    """Our logits of one row, what transformers' class takes to compute them, and whether they are shifted. Of a model
    of canvases the last two thirds of the row are the canvas."""
    import torch

    from lfpo.core.doubled import noised_hidden, training_structure
    from lfpo.core.structure import CAUSAL, FULL
    from lfpo.models import load_model

    model, ids, prompt = load_model(trained, dtype=torch.bfloat16), torch.arange(24)[None] + 5, 8
    row = {"input_ids": ids}
    with torch.no_grad():
        if model.asks_about_all:
            row = {"input_ids": ids[:, :prompt], "decoder_input_ids": ids[:, prompt:]}
            real, length = torch.ones_like(ids), torch.tensor([prompt])
            hidden, _ = noised_hidden(model, ids, ids, real, length, structure=training_structure(model))
        else:  # transformers' class of a causal context is autoregressive
            hidden = model.hidden(ids, structure=CAUSAL if model.causal_context else FULL)
        return model.head(hidden).float(), row, model.family.shift


def table(rows: dict[str, Any]) -> str:
    lines = ["| row | start | rollout | update | export | lfpo export, sample, eval | seconds | logits |"]
    lines.append("| --- |" + " ---: |" * 7)
    for name, row in rows.items():
        phases = [f"{needed:.1f} ({planned:.1f})" for needed, planned in row["memory"].values()]
        commands = ", ".join(f"{peak:.1f}" for peak in row["commands"].values())
        seconds = ", ".join(f"{value:.0f}" for value in row["seconds"].values())
        logits = f"{row['logits differ by']:.2g} of {row['of']:.2g}"
        lines.append(f"| {name} | {' | '.join(phases)} | {commands} | {seconds} | {logits} |")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rows", nargs="+", choices=list(ROWS), default=list(ROWS)[1:])
    parser.add_argument("--command", type=json.loads, help=argparse.SUPPRESS)
    args = parser.parse_args(arguments)
    if args.command is not None:
        return run_command(args.folder, args.command)
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
