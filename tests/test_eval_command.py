"""`lfpo eval`: several tasks, killed and continued, one process or two, and what it leaves on disk."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import tiny
from lfpo.base.errors import UserError
from lfpo.cli.command_line import main
from lfpo.eval import command, scoring
from lfpo.eval.progress import Progress
from lfpo.eval.settings import EvalConfig, configure
from lfpo.eval.store import Journal, read_partial
from lfpo.eval.table import group_means, show
from lfpo.prompts.tasks import get_task
from lfpo.prompts.tasks.task import Row
from processes import run_lfpo

SAMPLED = ("--n_samples", "2", "--sampler.temperature", "1", "--rollout_tokens", "60")


def run(model: Path, output: Path, *more: str, task: str = "choice") -> int:
    return main(["eval", "--model", str(model), "--task", task, "--n", "5", "--output", str(output), *more])


def numbers(path: Path) -> dict[str, Any]:
    """A result without what may differ between two runs of the same evaluation."""
    times = ("tokens_per_second", "seconds_per_problem", "processes", "environment", "model")
    return {k: v for k, v in json.loads(path.read_text()).items() if k not in times}


def killed_after(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Evaluations stop as by Ctrl-C once `count` answers are written down."""
    advance = Progress.advance

    def stop(self: Progress, more: int) -> None:
        advance(self, more)
        if self.done >= count:
            raise KeyboardInterrupt

    monkeypatch.setattr(Progress, "advance", stop)


@pytest.mark.parametrize("more", [SAMPLED, ("--scoring", "likelihood", "--likelihood.mc_num", "2")])
def test_a_killed_evaluation_continues_to_the_same_result(
    more: tuple[str, ...], llada: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    assert run(llada, tmp_path / "whole.json", *more) == 0
    more = (*more, *(("--rollout_tokens", "20") if "likelihood" in more else ()))  # a problem at a time
    with monkeypatch.context() as patch:
        killed_after(2, patch)
        assert run(llada, tmp_path / "out.json", *more) == 130
    (partial,) = tmp_path.glob("out.partial-*.jsonl")
    kept = len(read_partial(partial)[1])
    assert kept >= 2
    assert not (tmp_path / "out.json").exists()
    with partial.open("a") as file:
        file.write('{"problem": 4, "sam')  # the kill came in the middle of a line
    asked: list[dict[str, Any]] = []
    add = Journal.add

    def counted(self: Journal, records: list[dict[str, Any]]) -> None:
        asked.extend(records)
        add(self, records)

    monkeypatch.setattr(Journal, "add", counted)
    assert run(llada, tmp_path / "out.json", *more) == 0
    mine, theirs = numbers(tmp_path / "out.json"), numbers(tmp_path / "whole.json")
    assert {k: v for k, v in mine.items() if k != "rollout_tokens"} == {
        k: v for k, v in theirs.items() if k != "rollout_tokens"
    }
    texts = [(tmp_path / f"{name}.completions.jsonl").read_text() for name in ("whole", "out")]
    assert texts[1].count("\n") == kept + len(asked) and ("likelihood" in more or texts[0] == texts[1])
    assert not list(tmp_path.glob("*.partial-*"))


def test_other_settings_are_never_mixed(
    llada: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        killed_after(1, patch)
        run(llada, out, *SAMPLED)
    before = (out / "choice.partial-0.jsonl").read_text()
    capsys.readouterr()
    assert run(llada, out, *SAMPLED, "--seed", "1") == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert "seed 0 there, 1 here" in told
    assert "--overwrite" in told
    assert (out / "choice.partial-0.jsonl").read_text() == before
    other = tiny.write_llada(tmp_path / "other", rope_theta=10.0)
    assert run(other, out, *SAMPLED) == 2
    assert "model_sha256" in capsys.readouterr().err
    assert run(llada, out, *SAMPLED, "--seed", "1", "--overwrite", "true") == 0
    assert numbers(out / "choice.json")["seed"] == 1
    assert run(llada, out, *SAMPLED) == 2  # a finished one is not overwritten either
    assert "seed 1 there, 0 here" in capsys.readouterr().err


def test_a_finished_evaluation_is_not_run_again(llada: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    assert run(llada, tmp_path / "out", task="choice") == 0
    monkeypatch.setattr(scoring, "generate", lambda *a, **k: pytest.fail("evaluated again"))
    assert run(llada, tmp_path / "out", task="choice") == 0


def test_a_damaged_partial_file_is_named(llada: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "choice.partial-0.jsonl").write_text("not JSON\n")
    assert run(llada, tmp_path) == 2
    assert "choice.partial-0.jsonl" in capsys.readouterr().err


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
    assert "give a folder" in capsys.readouterr().err


def test_the_mean_of_evalplus():
    results = [{"task": "humaneval_plus", "accuracy": 0.7}, {"task": "mbpp_plus", "accuracy": 0.6}]
    assert group_means(results) == {"evalplus": pytest.approx(0.65)}
    assert group_means(results[:1]) == {}
    assert EvalConfig(task="evalplus,gsm8k").task_names == ["humaneval_plus", "mbpp_plus", "gsm8k"]


def test_commas_between_files_belong_to_their_task():
    config = EvalConfig(task="gsm8k@train=a,test=b,choice")
    assert config.task_names == ["gsm8k@train=a,test=b", "choice"]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"scoring": "likelihood", "n_samples": 2}, "samples nothing"),
        ({"scoring": "likelihood", "sampler": {"steps": 4}}, "samples nothing"),
        ({"likelihood": {"mc_num": 4}}, "need scoring 'likelihood'"),
        ({"likelihood": {"mc_num": 0}}, "mc_num"),
        ({"overwrite": True}, "output"),
        ({"task": ","}, "no task"),
        ({"protocol": "papr"}, "did you mean 'paper'"),
    ],
)
def test_settings_that_would_be_ignored_are_errors(changes: dict[str, Any], told: str):
    with pytest.raises(UserError, match=told):
        configure({"task": "choice", **changes})


def test_protocols_are_under_the_keys_given(tmp_path: Path):
    config = configure({"task": "gsm8k", "protocol": "paper", "sampler": {"steps": 1024}})
    assert (config.sampler.gen_length, config.sampler.steps, config.sampler.schedule) == (512, 1024, "uniform")
    assert config.sampler.stops_at_confidence
    (tmp_path / "mine.yaml").write_text("n_samples: 3\nsampler: {temperature: 1}\n")
    assert configure({"task": "gsm8k", "protocol": str(tmp_path / "mine.yaml")}).n_samples == 3


class Judge:
    """A task that judges many at once, and cannot judge every completion here."""

    name, gen_length = "judged", 4

    def test_rows(self, n: int | None) -> list[Row]:
        return [{"prompt": f"{i}\n", "number": i} for i in range(n or 4)]

    def correct_all(self, rows: list[Row], completions: list[str]) -> list[bool | None]:
        return [(None, False, True, True)[row["number"] % 4] for row in rows]

    def sample_record(self, row: Row, completion: str) -> dict[str, Any]:
        return {"task_id": f"Judged/{row['number']}", "completion": completion}


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lfpo.cli.commands.check_names", lambda model, tasks: None)
    monkeypatch.setattr(command, "get_task", lambda name: Judge() if name == "judged" else get_task(name))


def test_what_cannot_be_judged_is_counted_apart(judged: None, llada: Path, tmp_path: Path):
    assert run(llada, tmp_path, "--n", "4", task="judged") == 0
    result = json.loads((tmp_path / "judged.json").read_text())
    assert (result["n"], result["not_judged"], result["accuracy"]) == (4, 1, pytest.approx(2 / 3))
    records = [json.loads(line) for line in (tmp_path / "judged.samples.jsonl").read_text().splitlines()]
    assert [r["task_id"] for r in records] == [f"Judged/{i}" for i in range(4)]
    assert all(r.keys() == {"task_id", "completion"} for r in records)
    kept = [json.loads(line) for line in (tmp_path / "judged.completions.jsonl").read_text().splitlines()]
    assert [r["correct"] for r in kept] == [None, False, True, True]
    assert [r["completion"] for r in kept] == [r["completion"] for r in records]


def test_two_processes_evaluate_as_one(llada: Path, tmp_path: Path):
    both = ("eval", "--model", str(llada), "--limit", "5", "--output")
    for how in ("generation", "likelihood"):
        arguments = SAMPLED if how == "generation" else ("--scoring", "likelihood")
        assert run(llada, tmp_path / "one.json", *arguments, "--overwrite", "true") == 0
        more = (str(tmp_path / "two.json"), "--task", "choice", *arguments, "--overwrite", "true")
        process = run_lfpo(*both, *more, ranks=2)
        assert process.returncode == 0, process.stderr
        assert process.stdout.count("accuracy") == 1  # rank 0 alone prints
        assert numbers(tmp_path / "two.json") == numbers(tmp_path / "one.json")
        one, two = (
            [json.loads(line) for line in (tmp_path / f"{name}.completions.jsonl").read_text().splitlines()]
            for name in ("one", "two")
        )
        logps = [[x for row in rows for x in row.pop("logp", [])] for rows in (one, two)]
        assert one == two
        assert logps[0] == pytest.approx(logps[1], rel=1e-6)  # forwards of other shapes round otherwise
        assert not list(tmp_path.glob("*.partial-*"))


def test_a_task_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, llada: Path):
    (tmp_path / "echo_task.py").write_text(
        "from lfpo.prompts.tasks.task import Task\n"
        "TASK = Task('echo/1', lambda rng: {'prompt': rng.choice('abcdefgh')}, lambda r: r['prompt'],\n"
        "            lambda c, r: True, lambda r, rng, share: 'x', 0.4, 4)\n"
    )
    monkeypatch.chdir(tmp_path)
    assert run(llada, tmp_path / "out", task="echo_task:TASK") == 0
    assert json.loads((tmp_path / "out" / "echo-1.json").read_text())["accuracy"] == 1.0
