"""`lfpo eval`: several tasks, killed and continued, one process or two, and what it leaves on disk."""

import errno
import hashlib
import io
import json
import re
import shutil
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import tiny
from lfpo.cli.command_line import main
from lfpo.config.errors import UserError
from lfpo.config.eval import EvalConfig, configure, configure_each
from lfpo.config.files import read_json
from lfpo.core.scoring import Row
from lfpo.eval import command
from lfpo.eval.estimates import scores
from lfpo.eval.store import file_sha256, write_result
from lfpo.eval.terminal import group_means, progress, show
from lfpo.prompts.tasks import get_task
from lfpo.runs.directory import Run
from processes import run_lfpo
from written_runs import write_rows

SAMPLED = ("--n_samples", "2", "--sampler.temperature", "1", "--rollout_tokens", "60")


def run(model: Path, output: Path, *more: str, task: str = "choice") -> int:
    return main(["eval", "--model", str(model), "--task", task, "--n", "5", "--output", str(output), *more])


def numbers(path: Path) -> dict[str, Any]:
    """A result without what may differ between two runs of the same evaluation."""
    times = ("tokens_per_second", "seconds_per_problem", "processes", "environment", "model")
    return {k: v for k, v in json.loads(path.read_text()).items() if k not in times}


def test_what_was_sampled_is_kept_where_grading_fails(
    judged: None, llada: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def fails(self: Judge, rows: list[Row], completions: list[str]) -> list[bool | None]:
        if len(rows) > 1:
            raise ZeroDivisionError
        return [True] * len(rows)

    monkeypatch.setattr(Judge, "correct_all", fails)
    with pytest.raises(ZeroDivisionError):
        run(llada, tmp_path, "--n", "4", task="judged")
    kept = [json.loads(line) for line in (tmp_path / "judged.completions.jsonl").read_text().splitlines()]
    assert [(r["problem"], r["sample"]) for r in kept] == [(i, 0) for i in range(4)]
    assert {"prompt", "completion", "steps", "nfe"} <= kept[0].keys()


def test_other_settings_are_never_mixed(llada: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    out = tmp_path / "out"
    assert run(llada, out, *SAMPLED) == 0
    rows = [json.loads(line) for line in (out / "choice.completions.jsonl").read_text().splitlines()]
    assert [(r["problem"], r["sample"]) for r in rows] == [(i, j) for i in range(5) for j in range(2)]
    assert rows[2]["prompt"] == get_task("choice").row("test", 1)["prompt"] and "correct" in rows[0]
    before = (out / "choice.json").read_text()
    capsys.readouterr()
    assert run(llada, out, *SAMPLED, "--seed", "1", "--sampler.top_k", "3") == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert "seed 0 there, 1 here" in told and "sampler.top_k None there, 3 here" in told
    assert "--overwrite" in told
    assert (out / "choice.json").read_text() == before
    other = tiny.write_llada(tmp_path / "other", rope_theta=10.0)
    assert run(other, out, *SAMPLED) == 2
    assert "model_sha256" in capsys.readouterr().err
    assert run(llada, out, *SAMPLED, "--seed", "1", "--overwrite", "true") == 0
    assert numbers(out / "choice.json")["seed"] == 1
    assert run(llada, out, *SAMPLED) == 2
    assert "seed 1 there, 0 here" in capsys.readouterr().err


def test_a_finished_evaluation_is_not_run_again(llada: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    assert run(llada, tmp_path / "out", task="choice") == 0
    monkeypatch.setattr(command, "load_model", lambda *a, **k: pytest.fail("loaded again"))
    assert run(llada, tmp_path / "out", task="choice") == 0


def test_several_tasks_give_a_file_each_and_one_table(
    llada: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    assert run(llada, tmp_path / "out", task="choice,sudoku,choice") == 0
    names = ("choice.completions.jsonl", "choice.json", "sudoku.completions.jsonl", "sudoku.json")
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == list(names)
    printed = capsys.readouterr().out
    assert printed.count("accuracy") == 1
    assert "\x1b" not in printed
    results = [json.loads((tmp_path / "out" / f"{t}.json").read_text()) for t in ("choice", "sudoku")]
    narrow = Console(width=40, record=True, file=io.StringIO())
    show(results, narrow)
    assert all(len(line) <= 40 for line in narrow.export_text().splitlines())
    assert run(llada, tmp_path / "one.json", task="choice,sudoku") == 2
    assert "two tasks or protocols would write this file" in capsys.readouterr().err


def test_the_mean_of_evalplus():
    results = [{"task": "humaneval_plus", "accuracy": 0.7}, {"task": "mbpp_plus", "accuracy": 0.6}]
    assert group_means(results) == {"evalplus": pytest.approx(0.65)}
    assert group_means(results[:1]) == {}
    assert EvalConfig(task="evalplus,gsm8k").task_names == ["humaneval_plus", "mbpp_plus", "gsm8k"]
    # A comma also separates the files of a task.
    assert EvalConfig(task="gsm8k@train=a,test=b,choice").task_names == ["gsm8k@train=a,test=b", "choice"]


def test_protocols_are_under_the_keys_given(tmp_path: Path):
    config = configure({"task": "gsm8k", "protocol": "paper", "sampler": {"steps": 1024}})
    assert (config.sampler.gen_length, config.sampler.steps, config.sampler.schedule) == (512, 1024, "uniform")
    assert config.sampler.stops_at_confidence
    (tmp_path / "mine.yaml").write_text("n_samples: 3\nsampler: {temperature: 1}\n")
    assert configure({"task": "gsm8k", "protocol": str(tmp_path / "mine.yaml")}).n_samples == 3


def test_protocols_side_by_side(llada: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """A folder and a row each; 16 steps of full diffusion, fewer where a threshold decides."""
    short = ["--sampler.gen_length", "16", "--sampler.block_length", "16"]
    names = "llada-full,llada-blocks,fast-dllm"
    steps = ["--sampler.steps", "16"]
    assert run(llada, tmp_path / "out", "--protocol", "llada-full,llada-blocks", *short, *steps, task="choice") == 0
    printed = capsys.readouterr().out
    for name in ("llada-full", "llada-blocks"):
        assert f"choice, {name}" in printed
        assert numbers(tmp_path / "out" / name / "choice.json")["protocol"] == name
    assert "float32, cpu, lfpo " in printed
    full, blocks, parallel = configure_each({"task": "gsm8k", "protocol": names, "output": "r"})
    assert (full.sampler.block_length, blocks.sampler.block_length, parallel.sampler.block_length) == (256, 32, 32)
    assert (full.sampler.steps, parallel.sampler.steps, parallel.sampler.threshold) == (256, None, 0.9)
    assert (full.output, parallel.output) == ("r/llada-full", "r/fast-dllm")


OTHERS = {  # a second protocol -> what is told of it
    "{sampler: {gen_length: 100000}}": "protocol '.*b.yaml': .* row 1: prompt .* exceeds the model's context",
    "{sampler: {gen_length: 4, first_token: causal}}": "protocol '.*b.yaml': .*sampler: first_token 'causal' is for",
    "{sampler: {gen_length: 4, block_length: 3}}": "block_length 3 does not divide gen_length 4",
    "{sampler: {gen_length: 4}, seed: 1}": "b/choice.json: holds an evaluation with other settings",
}


@pytest.mark.parametrize("other", OTHERS)
def test_all_protocols_are_checked_before_the_first_begins(
    other: str, llada: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    first, second = tmp_path / "a.yaml", tmp_path / "b.yaml"
    for file, text in ((first, "{sampler: {gen_length: 4}}"), (second, "{sampler: {gen_length: 4}}"), (second, other)):
        file.write_text(text)
        if text != other:
            assert run(llada, tmp_path / "out" / file.stem, "--protocol", str(file)) == 0
    before = {path: path.read_text() for path in (tmp_path / "out").rglob("*.json*")}
    monkeypatch.setattr(command, "load_model", lambda *a, **k: pytest.fail("loaded"))
    capsys.readouterr()
    more = [] if "seed" in other else ["--overwrite", "true"]
    assert run(llada, tmp_path / "out", "--protocol", f"{first},{second}", *more) == 2
    assert re.search(OTHERS[other], capsys.readouterr().err)
    assert {path: path.read_text() for path in (tmp_path / "out").rglob("*.json*")} == before


def test_two_protocols_never_write_one_file(
    llada: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    for folder in ("x", "y"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.yaml").write_text("{sampler: {gen_length: 4}}")
    names = [str(tmp_path / folder / "a.yaml") for folder in ("x", "y", "x")]
    assert [config.protocol for config in configure_each({"task": "choice", "protocol": ",".join(names)})] == names[:2]
    assert configure_each({"task": "choice", "protocol": f"{names[0]},{names[0]}"})[0].protocol == names[0]
    monkeypatch.setattr(command, "load_model", lambda *a, **k: pytest.fail("loaded"))
    assert run(llada, tmp_path / "out", "--protocol", ",".join(names)) == 2
    assert "a/choice.json: two tasks or protocols would write this file" in capsys.readouterr().err


@pytest.mark.parametrize("output", ["file/out", "file/a/b.json", "/proc/nope"])
def test_an_output_that_cannot_be_made_is_told_before_the_model_is_loaded(
    output: str, llada: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(command, "load_model", lambda *a, **k: pytest.fail("loaded"))
    assert run(llada, tmp_path / output) == 2
    told = capsys.readouterr().err
    assert "could not be written (No" in told and told.endswith("; give another --output\n") and "disk" not in told


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.ENOENT, errno.EIO])
def test_a_full_disk_alone_is_told_to_be_freed(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def fails(*given: object) -> None:
        raise OSError(number, "what happened")

    monkeypatch.setattr("lfpo.config.files.replace_file", fails)
    monkeypatch.setattr("lfpo.runs.directory.replace_file", fails)
    for write in (lambda: write_result(tmp_path / "a.json", {}), lambda: Run(tmp_path).write_rows("b", [])):
        with pytest.raises(UserError, match=r"could not be written \(what happened\)") as raised:
            write()
        assert ("free disk space" in str(raised.value)) is (number in (errno.ENOSPC, errno.EDQUOT))


def test_another_number_of_problems_is_told_as_n(llada: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert run(llada, tmp_path) == 0
    assert run(llada, tmp_path, "--n", "7", "--seed", "1") == 2
    assert "with other settings (n 5 there, 7 here; " in capsys.readouterr().err


class Judge:
    """A task that judges many at once, and cannot judge every completion here."""

    name, gen_length, reward_functions = "judged", 4, ()

    def row(self, split: str, index: int, seed: int = 0) -> Row:
        return {"prompt": f"{index}\n", "number": index}

    def test_rows(self, n: int | None) -> list[Row]:
        return [self.row("test", i) for i in range(n or 4)]

    def correct_all(self, rows: list[Row], completions: list[str]) -> list[bool | None]:
        return [(None, False, True, True)[row["number"] % 4] for row in rows]

    def sample_record(self, row: Row, completion: str) -> dict[str, Any]:
        return {"task_id": f"Judged/{row['number']}", "completion": completion}


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lfpo.prompts.sources.get_task", lambda name: Judge())
    monkeypatch.setattr("lfpo.prompts.sources.source_file", lambda name: None)


def test_what_cannot_be_judged_is_counted_apart(
    judged: None, llada: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    assert run(llada, tmp_path, "--n", "4", task="judged") == 0
    result = json.loads((tmp_path / "judged.json").read_text())
    assert (result["n"], result["not_judged"], result["accuracy"]) == (4, 1, pytest.approx(2 / 3))
    records = [json.loads(line) for line in (tmp_path / "judged.samples.jsonl").read_text().splitlines()]
    assert [r["task_id"] for r in records] == [f"Judged/{i}" for i in range(4)]
    assert all(r.keys() == {"task_id", "completion"} for r in records)
    kept = [json.loads(line) for line in (tmp_path / "judged.completions.jsonl").read_text().splitlines()]
    assert [r["correct"] for r in kept] == [None, False, True, True]
    assert [r["completion"] for r in kept] == [r["completion"] for r in records]
    monkeypatch.setattr(Judge, "correct_all", lambda self, rows, completions: [None] * len(rows))
    assert run(llada, tmp_path / "none", task="judged") == 0
    result = json.loads((tmp_path / "none" / "judged.json").read_text())
    assert result["accuracy"] is None and result["interval"] is None
    assert "not judged" in capsys.readouterr().out


def test_progress_is_lines_without_a_terminal(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("lfpo.eval.terminal.LINE_SECONDS", 0.0)
    console = Console(record=True, width=100, file=io.StringIO())
    with progress("gsm8k", 8, "completions", console) as state:
        state.advance(2)
        state.advance(6)
    lines = console.export_text().splitlines()
    assert [line.split(",")[0] for line in lines] == ["gsm8k: 2 of 8 completions", "gsm8k: 8 of 8 completions"]
    assert lines[1].endswith("about 0 s left")


@pytest.mark.long
def test_two_processes_evaluate_as_one(llada: Path, tmp_path: Path):
    assert run(llada, tmp_path / "one.json", *SAMPLED) == 0
    both = ("eval", "--model", str(llada), "--limit", "5", "--task", "choice", *SAMPLED, "--output")
    process = run_lfpo(*both, str(tmp_path / "two.json"), ranks=2)
    assert process.stdout.count("accuracy") == 1  # rank 0 alone prints
    assert numbers(tmp_path / "two.json") == numbers(tmp_path / "one.json")
    one, two = ((tmp_path / f"{name}.completions.jsonl").read_text() for name in ("one", "two"))
    assert one == two
    process = run_lfpo(*both, str(tmp_path / "two.json"), "--seed", "3", ranks=2, code=2)
    assert process.stderr.count("seed 0 there, 3 here") == 1  # a mistake is told once


def test_a_task_of_ones_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, llada: Path, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "echo_task.py").write_text(
        "from lfpo.prompts.tasks.task import Task\n"
        "TASK = Task('echo/1', lambda rng: {'prompt': rng.choice('abcdefgh')}, lambda r: r['prompt'],\n"
        "            lambda c, r: True, lambda r, rng, share: 'x', 0.4, 4)\n"
    )
    monkeypatch.chdir(tmp_path)
    assert run(llada, tmp_path / "out", task="echo_task:TASK") == 0
    assert json.loads((tmp_path / "out" / "echo-1.json").read_text())["accuracy"] == 1.0
    assert run(llada, tmp_path / "out", task="echo_task:TASK") == 0
    assert "already evaluated" in capsys.readouterr().out
    # Another verifier under the same name is another evaluation. This one edits its row, and judges it more than once.
    text = (tmp_path / "echo_task.py").read_text().replace("True", "bool(r.pop('prompt', ''))")
    (tmp_path / "echo_task.py").write_text(text)
    monkeypatch.delitem(sys.modules, "echo_task")
    assert run(llada, tmp_path / "out", task="echo_task:TASK") == 2
    assert "with other settings (task_sha256 " in capsys.readouterr().err
    assert run(llada, tmp_path / "out", "--overwrite", "true", task="echo_task:TASK") == 0
    assert json.loads((tmp_path / "out" / "echo-1.json").read_text())["accuracy"] == 1.0


def test_plain_text_for_a_model_without_a_chat_template(llada: Path, tmp_path: Path):
    rows = [{"question": f"What is {n} + 1?", "answer": f"{n} + 1 = {n + 1}\n#### {n + 1}"} for n in range(5)]
    task, out = f"gsm8k@{write_rows(tmp_path / 'test.jsonl', rows)}", tmp_path / "out"
    assert run(llada, out, "--sampler.gen_length", "4", task=task) == 2  # chat is the default
    assert run(llada, out, "--sampler.gen_length", "4", "--prompt_format", "text", task=task) == 0
    assert json.loads((out / "gsm8k.json").read_text())["prompt_format"] == "text"
    shown = json.loads((out / "gsm8k.completions.jsonl").read_text().splitlines()[0])["prompt"]
    assert shown == f"{get_task(task).row('test', 0)['prompt'][0]['content']}\n"


@pytest.mark.parametrize("changes", [{"question": "b" * 600}, {"question": "<|mdm_mask|>"}], ids=["long", "mask"])
def test_a_prompt_that_does_not_fit_is_named_by_file_and_line(
    changes: dict[str, str], llada: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """Before the first task is sampled."""
    rows = [{"question": "a", "answer": "#### 4"}] * 2
    tasks = f"choice,gsm8k@{write_rows(tmp_path / 'mine.jsonl', [*rows, {**rows[0], **changes}])}"
    assert run(llada, tmp_path / "out", "--prompt_format", "text", "--sampler.gen_length", "8", task=tasks) == 2
    error = capsys.readouterr().err
    assert f"error: {tmp_path}/mine.jsonl:3: prompt 'You are" in error and error.count("error") == 1
    assert not (tmp_path / "out").exists()


def test_weights_are_read_for_a_hash_only_where_a_file_keeps_it(
    llada: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The hub's cache names a large file by its SHA-256; a model that is only printed is not compared with others."""
    cached, blobs = tmp_path / "snapshots" / "abc", tmp_path / "blobs"
    cached.mkdir(parents=True)
    blobs.mkdir()
    for file in llada.iterdir():
        name = hashlib.sha256(file.read_bytes()).hexdigest()
        (blobs / name).write_bytes(file.read_bytes())
        (cached / file.name).symlink_to(blobs / name)
    whole = file_sha256(llada)
    with monkeypatch.context() as patch:
        patch.setattr(hashlib, "file_digest", lambda *a: pytest.fail("read again"))
        assert file_sha256(cached) == whole
        assert main(["eval", "--model", str(llada), "--task", "choice", "--n", "1"]) == 0


def test_every_file_that_decides_the_output_is_in_the_hash_of_a_model(llada: Path, tmp_path: Path):
    folder = shutil.copytree(llada, tmp_path / "copy")
    hashes = [file_sha256(folder)]
    (folder / "README.md").write_text("other words")
    assert file_sha256(folder) == hashes[0] == file_sha256(llada)
    for name in ("generation_config.json", "special_tokens_map.json", "tokenizer.model", "model-2.safetensors"):
        (folder / name).write_text("{}")
        hashes.append(file_sha256(folder))
    (folder / "generation_config.json").write_text('{"eos_token_id": [1, 2]}')
    hashes.append(file_sha256(folder))
    assert len(set(hashes)) == len(hashes)


@pytest.mark.parametrize(("n", "ks"), [(1, []), (2, [2]), (5, [2, 4]), (32, [2, 4, 8, 16, 32]), (300, [2**8])])
def test_pass_at_k_goes_up_to_the_number_of_samples(n: int, ks: list[int]):
    found = scores([0] * n, [False] * (n - 1) + [True])["pass_at_k"]
    assert list(found)[-len(ks) :] == ks
    assert found == {k: pytest.approx(k / n) for k in found}


def test_scores_by_hand():
    verdicts = [True, False, None, None, True, True]
    found = scores([0, 0, 1, 1, 2, 2], verdicts)
    assert (found["n"], found["n_samples"], found["not_judged"]) == (3, 2, 2)
    assert found["mean"] == 0.75  # problem 1 was not judged
    assert found["pass_at_k"] == {2: 1.0}
    half = scores([0, 0, 1, 1], [True, None, False, False])
    assert half["mean"] == 0.5
    assert half["pass_at_k"] == {2: 0.0}  # problem 0 has one verdict, too few
    assert scores([0], [None]) == {
        "n": 1, "n_samples": 1, "mean": None, "interval": None, "pass_at_k": {}, "not_judged": 1
    }  # fmt: skip


def test_rewards_have_student_s_interval():
    found = scores([0, 0, 1, 2], [0.0, 1.0, 1.5, None])  # means of problems: 0.5 and 1.5
    assert found["mean"] == 1.0 and found["not_judged"] == 1 and found["pass_at_k"] == {}
    half = 12.706 * (0.5**0.5) / 2**0.5  # one degree of freedom
    assert found["interval"] == pytest.approx((1 - half, 1 + half), rel=1e-4)
    assert scores([0], [0.5])["interval"] is None


OWN = """
def closeness(prompts, completions, answer, **columns):
    return [0.25 * int(a) for a in answer]


def exact(prompts, completions, answer, **columns):
    return [None if a == 0 else float(a) for a in answer]
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The arguments of an evaluation on a CSV of four questions, whose answers are 0, 1, 2, 0."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "own_rewards", raising=False)  # of another test, in a folder that is gone
    (tmp_path / "own_rewards.py").write_text(OWN)
    (tmp_path / "test.csv").write_text("question,answer\n" + "".join(f"q{i},{i % 3}\n" for i in range(4)))
    return ["--eval_file", str(tmp_path / "test.csv"), "--columns", "{question: prompt}", "--sampler.gen_length", "4"]


def test_own_rows_with_a_verifier_have_an_accuracy(own: list[str], llada: Path, tmp_path: Path, capsys):
    out = str(tmp_path / "out")
    assert main(["eval", "--model", str(llada), *own, "--correct", "own_rewards.exact", "--output", out]) == 0
    result = read_json(tmp_path / "out/test.json")
    assert (result["accuracy"], result["not_judged"], result["n"]) == (1.0, 2, 4)  # a reward of 2 is right, too
    kept = [json.loads(line) for line in (tmp_path / "out/test.completions.jsonl").read_text().splitlines()]
    assert [r["correct"] for r in kept] == [None, True, True, None]
    assert kept[1]["columns"] == {"answer": 1} and kept[1]["prompt"] == "q1"
    assert "accuracy (95 %)" in capsys.readouterr().out
    # Another verifier, or another text of it, is another evaluation.
    other = ["--correct", "own_rewards.closeness", "--output", out]
    assert main(["eval", "--model", str(llada), *own, *other]) == 2
    assert "correct own_rewards.exact there, own_rewards.closeness here" in capsys.readouterr().err


def test_own_rows_without_a_verifier_have_a_mean_reward(own: list[str], llada: Path, tmp_path: Path, capsys):
    functions = ["--reward_funcs", "[own_rewards.closeness]"]
    assert main(["eval", "--model", str(llada), *own, *functions, "--output", str(tmp_path / "o.json")]) == 0
    result = read_json(tmp_path / "o.json")
    assert result["reward"] == pytest.approx(0.1875) and "accuracy" not in result  # 0, 0.25, 0.5, 0
    assert result["interval"][0] < 0.1875 < result["interval"][1]
    assert "0.188 (" in capsys.readouterr().out
    assert main(["eval", "--model", str(llada), *own]) == 2
    assert "needs 'reward_funcs' or 'correct'" in capsys.readouterr().err


def test_a_sample_of_own_rows_shows_the_verdict_and_the_columns(own: list[str], llada: Path, capsys):
    arguments = ["sample", "--model", str(llada), *own, "--correct", "own_rewards.exact", "--index"]
    assert main([*arguments, "1"]) == 0
    printed = capsys.readouterr().out
    assert "verdict: right" in printed and "answer: 1" in printed
    assert main([*arguments, "4"]) == 2
    assert "'test' has 4 held-out rows" in capsys.readouterr().err


REWARD = """
import os

def counted(prompts, completions, **columns):
    with open(os.environ["COUNTED"], "a") as file:
        file.write(f"{os.getpid()} {len(completions)}\\n")
    return [float(len(c) % 3) for c in completions]
"""


@pytest.mark.long
def test_each_process_grades_its_share_while_training(
    llada: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "counted_reward.py").write_text(REWARD)
    monkeypatch.chdir(tmp_path)
    write_rows(tmp_path / "rows.jsonl", [{"prompt": f"{i} "} for i in range(5)])
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
            run_lfpo(*arguments, str(folder), ranks=2)
        metrics = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        found.append([m["eval/greedy/reward"] for m in metrics])
        graded.append(Counter[str]())
        for line in log.read_text().splitlines():
            process_id, count = line.split()
            graded[-1][process_id] += int(count)
    assert found[1] == pytest.approx(found[0])
    # At the start 4 stand-ins of training rows and 4 of held-out rows; 4 rollouts; 5 held-out rows before and after.
    assert sorted(graded[0].values()) == [22]
    # 2 rollouts each; 2 and 3 of the rows, twice; rank 0 has the stand-ins and the larger share.
    assert sorted(graded[1].values()) == [6, 16]
