"""A run's folder: one process at a time, wherever it lies, and what a crash left in its files."""

import json
import os
import shutil
from pathlib import Path

import pytest

from lfpo.cli.command_line import main
from lfpo.config.errors import UserError
from lfpo.config.train import LFPOConfig
from lfpo.runs.directory import Run, check_folder, open_run
from train_arguments import train_arguments


def in_a_child(run: Run) -> str:
    """What another process is told that trains in the folder, too; "" where it may."""
    told = run.dir.with_name("told")
    if (child := os.fork()) == 0:
        code = 1
        try:
            with run.locked():
                code = 0
        except UserError as error:
            told.write_text(str(error))
            code = 2
        finally:
            os._exit(code)
    return told.read_text() if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2 else ""


def test_two_processes_do_not_train_in_one_folder(tmp_path: Path):
    run = Run(tmp_path / "run")
    run.dir.mkdir()
    with run.locked():
        said = in_a_child(run)
        assert f"process {os.getpid()} on " in said
        assert said.startswith(f"{run.dir}: ") and "trains here; wait for its end or stop it" in said
    assert in_a_child(run) == ""
    with pytest.raises(OSError, match="full"), run.locked():  # what the block raises is raised
        raise OSError("full")
    assert in_a_child(run) == ""


@pytest.mark.long
def test_a_run_that_was_moved_goes_on_from_its_own_config_yaml(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    assert main(train_arguments(Path("before"))) == 0
    shutil.move("before/run", "after")
    assert main(["train", "after/config.yaml", "--resume", "--max_steps", "2"]) == 0
    assert "resumed from" in capsys.readouterr().out
    assert not Path("before/run").exists()
    assert [json.loads(line)["step"] for line in Path("after/metrics.jsonl").read_text().splitlines()] == [0, 1, 2]
    Path("elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    assert main(["train", "../after/config.yaml", "--resume", "--max_steps", "3"]) == 0
    assert len((tmp_path / "after/metrics.jsonl").read_text().splitlines()) == 4
    # A folder that is given wins.
    assert main(["train", "../after/config.yaml", "--max_steps", "1", "--output_dir", "new"]) == 0
    assert len(Path("new/metrics.jsonl").read_text().splitlines()) == 2


def test_a_damaged_line_is_named(tmp_path: Path):
    run = Run(tmp_path)
    run.metrics_file.write_bytes(b'{"step": 1}\n\x00\x00\n{"step": 3}\n')
    with pytest.raises(UserError, match=r"metrics\.jsonl:2: the line is damaged .*delete it"):
        run.read_metrics()


@pytest.mark.parametrize("cut", [b"", b'{"step": 2', b"\x00" * 9])
def test_a_cut_last_line_is_dropped_in_silence(tmp_path: Path, cut: bytes):
    run = Run(tmp_path)
    run.metrics_file.write_bytes(b'{"step": 1}\n' + cut)
    run.truncate_metrics(1)
    assert run.read_metrics() == [{"step": 1}] and [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]


def test_a_lock_alone_is_no_run(tmp_path: Path):
    (tmp_path / ".lock").touch()
    check_folder(tmp_path, None, resume=False, kind="train")


def test_a_resume_writes_nothing_before_it_holds_the_folder_and_text_stays_text(tmp_path: Path):
    config = LFPOConfig(output_dir=str(tmp_path / "run"), data_file="1e5", reward_funcs=["rewards.f"])
    open_run(tmp_path / "run", config, resume=False, kind="train")
    before = (tmp_path / "run/run.json").read_bytes()
    run = open_run(tmp_path / "run", config, resume=True, kind="train")
    assert (tmp_path / "run/run.json").read_bytes() == before
    run.write_config(config, iterations=3, learning_rate=1e-4)
    chosen = {"iterations": 3, "learning_rate": 1e-4}
    assert json.loads((tmp_path / "run/run.json").read_text()) == json.loads(before) | chosen
