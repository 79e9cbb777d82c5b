"""A small selection of the fault drill, and tests that the drill notices when something is lost."""

from __future__ import annotations

import json
import os
import pickle
import random
import shlex
import shutil
from pathlib import Path

import pytest

from drill import command, damage, disk, fuzz, numbers, ranks, scores, soak, stops, surroundings
from drill.command import DrillConfig, markdown
from drill.harness import ITERATIONS, Child, Drill, Outcome, Tally, difference, in_namespaces, progress, same_weights
from drill.inside import CLONE_NEWNS, Fault
from lfpo.base.errors import LOST

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def drill(tmp_path_factory: pytest.TempPathFactory) -> Drill:
    settings = DrillConfig(kills=2, damages=1, fuzz=200, soak_minutes=0.04)
    return Drill(tmp_path_factory.mktemp("drill"), settings, random.Random(0))


def survived(outcomes: list[Outcome], tried: int) -> None:
    assert sum(o.tried for o in outcomes) == tried
    for outcome in outcomes:
        assert outcome.survived == outcome.tried, outcome


@pytest.mark.long
def test_killed_while_saving_and_while_evaluating(drill: Drill):
    assert drill.visits["checkpoint"] > 50 and drill.visits["evaluation"] == 4 * 4
    survived(stops.killed(drill), 2)


@pytest.mark.long
def test_a_truncated_checkpoint(drill: Drill, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(damage, "all_damaged", lambda drill: Outcome("left out", 0, 0))
    survived(damage.damaged(drill), 1 + 4)


@pytest.mark.long
def test_nan_updates_never_reach_the_weights(drill: Drill):
    survived([numbers.nan_in_every_step(drill, Fault("nan_gradient", "gradient", 5, 10_000))], 1)


@pytest.mark.long
def test_a_reward_function_that_hangs_once(drill: Drill):
    survived([scores.fails_once(drill, "hangs", scores.in_the_third_batch("hang"), "it ran for more than 2 s")], 1)


def test_a_reward_function_that_always_raises(drill: Drill):
    survived([scores.always_raises(drill)], 1)


@pytest.mark.long
def test_a_full_disk(drill: Drill, tmp_path: Path):
    if reason := disk.no_namespace(tmp_path):
        pytest.skip(reason)
    survived(disk.try_each(drill, tmp_path, ["fill"], ["checkpoint"]), 1)


def broken(job: dict[str, int]) -> list[Outcome]:
    raise ValueError(f"root here: {os.getuid() == 0}")


def test_work_in_namespaces_that_fails_is_an_error(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    if reason := disk.no_namespace(tmp_path):
        pytest.skip(reason)
    with pytest.raises(RuntimeError, match=r"test_drill\.broken failed"):
        in_namespaces(broken, {}, CLONE_NEWNS)


@pytest.mark.long
def test_a_stopped_rank_is_named_by_the_other(drill: Drill):
    tally = Tally("one rank of two stopped")
    assert 0 < ranks.lose(drill, tally, "stop", "reward", 1) < ranks.SILENCE + ranks.WITHIN
    survived([tally.outcome()], 1)


def test_an_end_that_does_not_name_the_lost_rank_is_seen(tmp_path: Path):
    def ended(said: str, code: int = LOST) -> str:
        (tmp_path / "log").write_text(said)
        return ranks.unclear(Child(None, tmp_path / "log", 0.0), code, 1)

    assert ended("step 1\nlost: rank 1 gave no sign of life for 3 s\n") == ""
    assert ended("lost: rank 1 gave no sign of life\n", 1).startswith("exit code 1")
    for said in (
        "",
        "lost: rank 0 gave no sign of life; see rank 1\n",
        "lost: rank 1 a\nerror: process 1: b\n",
        "Traceback (most recent call last):\nlost: rank 1 a\n",
    ):
        assert ended(said).startswith("it said")


@pytest.mark.long
def test_planted_code_is_never_run(drill: Drill):
    survived(surroundings.planted(drill), 1)


def test_what_is_planted_would_run(tmp_path: Path):
    surroundings.plant_pickles(tmp_path, tmp_path / "touched")
    with pickle.loads((tmp_path / "optimizer.pt").read_bytes()):
        assert (tmp_path / "touched").exists()


@pytest.mark.long
def test_random_inputs(drill: Drill):
    survived(fuzz.fuzz(drill), 200)


def test_the_fuzz_sees_errors_hangs_and_stray_writes(drill: Drill, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from hypothesis import strategies as st

    monkeypatch.setattr(fuzz, "SECONDS", 0.1)
    (tmp_path / "own").mkdir()
    watch = fuzz.Watch(tmp_path / "own")

    def take(value: int) -> None:
        (tmp_path / "own" / "fine").write_text("")
        (tmp_path / "stray").write_text("")
        if value % 3 == 0:
            raise KeyError("oh")
        while value % 3 == 1:
            pass

    found = fuzz.feed(drill, "all", st.sampled_from([3, 1, 2]), take, 3, watch)
    assert "KeyError: 'oh'" in found.note and "hung on 1" in found.note and str(tmp_path / "stray") in found.note
    assert str(tmp_path / "own") not in found.note


@pytest.mark.long
def test_a_soak_grows_nothing(drill: Drill):
    (outcome,) = soak.soak(drill)
    assert outcome.survived == outcome.tried >= 1, outcome
    assert "no process left" in outcome.note


def test_slope():
    assert soak.slope([0.0, 1.0, 2.0], [10.0, 13.0, 16.0]) == pytest.approx(3.0)


@pytest.mark.parametrize(
    ("file", "said"),
    [
        ("metrics.jsonl", "line 3 of metrics.jsonl"),
        ("rollouts/step-2.jsonl", "rollouts/step-2.jsonl differs"),
        ("eval/step-2.jsonl", "eval/step-2.jsonl differs"),
        ("model/model.safetensors", "the final weights differ"),
    ],
)
def test_any_difference_is_seen(drill: Drill, tmp_path: Path, file: str, said: str):
    copy = tmp_path / "copy"
    shutil.copytree(drill.unbroken, copy)
    assert difference(drill.unbroken, copy) == "" and progress(copy) == ITERATIONS
    if file == "metrics.jsonl":
        lines = (copy / file).read_text().splitlines()
        lines[3] = json.dumps({**json.loads(lines[3]), "loss": 0.0})
        (copy / file).write_text("\n".join(lines) + "\n")
    elif file.endswith(".jsonl"):
        (copy / file).unlink()
    else:
        damage.flip_bit_at(copy / file, -1)
    assert said in difference(drill.unbroken, copy)


def test_a_missing_iteration_is_seen(drill: Drill, tmp_path: Path):
    copy = tmp_path / "copy"
    shutil.copytree(drill.unbroken, copy)
    lines = (copy / "metrics.jsonl").read_text().splitlines(keepends=True)
    (copy / "metrics.jsonl").write_text("".join(lines[:-1]))
    assert f"has {ITERATIONS} lines" in difference(drill.unbroken, copy)
    assert same_weights(drill.unbroken / "model", copy / "model")


def fails(drill: Drill) -> list[Outcome]:
    tally = Tally("a fault", "fine")
    tally.add("", lost=1, seconds=2.0)
    tally.add("it | broke", lost=3, seconds=1.0)
    return [tally.outcome()]


def test_the_command_fails_when_a_run_did(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setitem(command.FAULTS, "killed", "test_drill:fails")
    assert command.main(["--faults", "killed", "--output", str(tmp_path / "out")]) == 2
    said = capsys.readouterr()
    assert "not survived: a fault" in said.err and "NOT SURVIVED" in said.out
    written = json.loads((tmp_path / "out" / "drill.json").read_text())
    assert written["outcomes"][0] | {"tried": 2, "survived": 1, "lost": 3, "seconds": 2.0} == written["outcomes"][0]
    assert written["config"]["seed"] == 0 and "torch" in written["versions"]
    assert "| a fault | 2 | 1 | 3 | 2.0 | FAILED: it \\| broke |" in (tmp_path / "out" / "drill.md").read_text()


def test_unknown_faults_and_negative_sizes_are_named(capsys: pytest.CaptureFixture[str]):
    assert command.main(["--faults", "kiled"]) == 2
    assert "did you mean 'killed'" in capsys.readouterr().err
    assert command.main(["--kills", "-1"]) == 2
    assert "kills -1 must not be negative" in capsys.readouterr().err


def test_markdown_of_nothing():
    assert markdown([]).count("\n") == 2


def test_documented_commands_are_valid(monkeypatch: pytest.MonkeyPatch):
    """Each `make drill` in README, docs and the drill's results is one that the drill accepts."""
    configs: list[DrillConfig] = []
    monkeypatch.setattr(command, "run_drill", configs.append)
    pages = [ROOT / "README.md", ROOT / "tests/drill/RESULTS.md", *sorted((ROOT / "docs").glob("*.md"))]
    lines = [line for page in pages for line in page.read_text().splitlines() if line.startswith("make drill")]
    for line in lines:
        words = shlex.split(line, comments=True)
        assert words[:2] == ["make", "drill"]
        assert command.main(shlex.split(words[2].removeprefix("ARGS=")) if words[2:] else []) == 0
    assert len(configs) >= 6
