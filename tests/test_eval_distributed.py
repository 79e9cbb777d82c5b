"""Evaluation during training, in two processes: each grades its share, and the numbers are those of one."""

import json
from collections import Counter
from pathlib import Path

import pytest

from lfpo.cli.command_line import main
from processes import run_lfpo

REWARD = """
import os

def counted(prompts, completions, **columns):
    with open(os.environ["COUNTED"], "a") as file:
        file.write(f"{os.getpid()} {len(completions)}\\n")
    return [float(len(c) % 3) for c in completions]
"""


def test_each_process_grades_its_share(
    llada: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "counted_reward.py").write_text(REWARD)
    monkeypatch.chdir(tmp_path)
    rows = "".join(json.dumps({"prompt": f"{i} "}) + "\n" for i in range(5))
    (tmp_path / "rows.jsonl").write_text(rows)
    arguments = ["train", "--model", str(llada), "--data_file", "rows.jsonl", "--eval_file", "rows.jsonl"]
    arguments += ["--reward_funcs", "[counted_reward.counted]", "--max_steps", "1", "--prompts_per_iteration", "2"]
    arguments += ["--num_generations", "2", "--optimizer_steps_per_iteration", "1", "--sampler.gen_length", "4"]
    arguments += ["--eval_samplers", "{greedy: {}}", "--eval_steps", "1", "--threads", "1", "--output_dir"]
    found, graded = [], []
    for processes in (1, 2):
        folder, log = tmp_path / f"run-{processes}", tmp_path / f"log-{processes}"
        monkeypatch.setenv("COUNTED", str(log))
        if processes == 1:
            assert main([*arguments, str(folder)]) == 0
        else:
            process = run_lfpo(*arguments, str(folder), ranks=2)
            assert process.returncode == 0, process.stderr
        metrics = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        found.append([m["eval/greedy/reward"] for m in metrics])
        graded.append(Counter[str]())
        for line in log.read_text().splitlines():
            process_id, count = line.split()
            graded[-1][process_id] += int(count)
    assert found[1] == pytest.approx(found[0])
    # 4 stand-ins at the start, 4 rollouts, and 5 held-out rows before and after.
    assert sorted(graded[0].values()) == [18]
    # 2 rollouts each; 2 and 3 of the rows, twice; rank 0 has the stand-ins and the larger share.
    assert sorted(graded[1].values()) == [6, 12]
