"""Reports without a browser: text, figures, and the steps of a sample."""

import importlib.util
import io
import itertools
import json
import re
from pathlib import Path

import pytest

from lfpo.base.terminal import Terminal
from lfpo.cli.command_line import main
from lfpo.cli.sample import printable
from lfpo.compare.grid import run_compare
from lfpo.config.compare import CompareConfig
from lfpo.config.errors import UserError
from lfpo.report.charts import POLICY
from lfpo.report.data import run_data
from lfpo.report.figures import _run_figures, write_figures
from lfpo.report.text import print_report
from lfpo.runs.card import model_card
from lfpo.runs.directory import Run
from written_runs import write_comparison, write_rows, write_run


def printed(folder: Path, width: int) -> str:
    out = io.StringIO()
    print_report(Run(folder), Terminal(file=out, width=width))
    return out.getvalue()


@pytest.mark.parametrize("width", [70, 200])
def test_the_text_fits_and_has_first_and_last_values(width: int, tmp_path: Path):
    run = Run(write_run(tmp_path / "run", ["a\x1b[31mred"], steps=4, eval_texts=["b"], policy=True))
    run.add_note(1, "kl_old", "the KL runs away")
    text = printed(run.dir, width)
    assert "\x1b" not in text
    assert all(len(line) <= width for line in text.replace("iteration 1, kl_old: the KL runs away", "").splitlines())
    for part in ("25.0%", "75.0%", "gradient norm", "rollout 8 s", "p_target_old/good", "the KL runs away"):
        assert part in text
    assert "15.0 to 35.0" in text
    assert next(r for r in text.splitlines() if r.startswith("kl/base")).split()[1:] == ["0.01", "▁▃▅█", "0.04", "nats"]
    assert "0.125 ▁▁▁ 0.125 share" in text  # negatives/saturated, null at first


def test_the_text_of_an_evaluation_without_a_reward_has_a_dash(tmp_path: Path):
    folder = write_run(tmp_path / "run", ["a"], steps=4)
    path = folder / "metrics.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for row in rows:
        for name in [key for key in row if key.startswith("eval/") and not key.endswith(("nfe", "steps"))]:
            del row[name]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert "25.0%" not in printed(folder, 80)
    path.write_text("".join(json.dumps({**row, "eval/greedy/reward": None}) + "\n" for row in rows))
    text = printed(folder, 80)
    assert "reward" in text and any(" - " in line for line in text.splitlines() if "greedy" in line)


def test_the_text_of_a_comparison_is_its_table(tmp_path: Path):
    text = printed(write_comparison(tmp_path), 160)
    assert "minus lfpo" in text and "unigrpo" in text and "2 of 2" in text
    numbers = re.findall(r"[-+]?\d+\.\d+", text)
    assert len(numbers) > 30 and sorted(re.findall(r"[-+]?\d+\.\d+", printed(tmp_path, 40))) == sorted(numbers)
    path = tmp_path / "results.json"
    data = json.loads(path.read_text().replace("unigrpo", "uni[b=1]"))
    path.write_text(json.dumps(data))
    assert "uni[b=1]" in printed(tmp_path, 160)


def test_report_takes_several_folders_and_refuses_unknown_options(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    folders = [str(write_run(tmp_path / name, ["text"])) for name in "ab"]
    assert main(["report", *folders]) == 0
    assert capsys.readouterr().out.split() == [f"{f}/report.html" for f in folders]
    assert main(["report", "--text", folders[0]]) == 0
    assert "reward" in capsys.readouterr().out
    assert main(["report", folders[0], "--figure"]) == 2
    assert "did you mean '--figures'" in capsys.readouterr().err
    monkeypatch.setenv("HOME", str(tmp_path))
    assert main(["report", "~/a"]) == 0
    assert capsys.readouterr().out.split() == [f"{folders[0]}/report.html"]


@pytest.mark.long
def test_without_matplotlib_figures_and_comparisons_name_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    there = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "matplotlib" else there(name, *rest)
    )
    missing = re.escape("figures need matplotlib, which is not installed: pip install 'lfpo[figures]'")
    with pytest.raises(UserError, match=missing):
        write_figures(Run(tmp_path))
    with pytest.raises(UserError, match=missing):  # before any cell runs
        run_compare(
            CompareConfig(recipe="sudoku", output_dir=str(tmp_path), seeds=[1], objectives={"lfpo": {"name": "lfpo"}})
        )
    assert not list(tmp_path.iterdir())


@pytest.mark.long
def test_figures_of_a_run_are_svg_and_pdf_and_the_same_each_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = write_run(tmp_path / "run", ["some words"], eval_texts=["more words"], policy=True)
    paths = write_figures(Run(folder))
    names = {p.name for p in paths}
    curves = {chart.title.lower().replace(" ", "-") for chart in POLICY}
    assert {"kl-to-theta_old", "entropy"} < curves
    wanted = {"convergence", "steps-accuracy", "reveal-greedy", *curves}
    assert {f"{n}.{e}" for n in wanted for e in ("svg", "pdf")} <= names
    assert "Saturated negatives (%)" in (folder / "figures/saturated-negatives.svg").read_text()
    first = {p: p.read_bytes() for p in paths}
    assert all(b.startswith(b"%PDF") for p, b in first.items() if p.suffix == ".pdf")
    assert "held out, greedy" in (folder / "figures/convergence.svg").read_text()
    monkeypatch.setattr("lfpo.report.figures._run_figures", lambda data: itertools.islice(_run_figures(data), 3))
    again = write_figures(Run(folder))  # curves, points and an image: the rest takes as long and shows no more
    assert {p.stem for p in again} == {"convergence", "steps-accuracy", "reveal-greedy"}
    assert {p: p.read_bytes() for p in again} == {p: first[p] for p in again}


@pytest.mark.long
def test_the_figure_of_a_comparison_shows_all_objectives(tmp_path: Path):
    write_comparison(tmp_path)
    assert {p.name for p in write_figures(Run(tmp_path))} == {"comparison.svg", "comparison.pdf"}
    drawn = (tmp_path / "figures/comparison.svg").read_text()
    assert all(label in drawn for label in ("base", "lfpo", "agrpo", "unigrpo", "rejection"))


def test_shown_steps_fit_a_narrow_terminal_and_a_log(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("COLUMNS", "30")
    settings = ["--sampler.gen_length", "40", "--sampler.threshold", "0.99"]
    assert main(["sample", "--prompt", r"countdown\n3 4 5 = 17\n", "--show-steps", *settings]) == 0
    text = capsys.readouterr().out
    assert "\x1b" not in text
    assert all(len(line) <= 30 for line in text.splitlines())


def test_printable_text_cannot_steer_a_terminal():
    assert printable("a\x1b[2Jb\nc\x7f\r") == "a␛[2Jb↵c␡␍"


def test_mean_rewards_have_intervals_and_a_paired_change(tmp_path: Path):
    folder = write_run(tmp_path / "run", ["text"], eval_texts=["one", "two", "three"])
    metrics = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for line, mean in ((metrics[0], 0.25), (metrics[-1], 0.5)):
        for key in ("accuracy", "low", "high"):
            line.pop(f"eval/greedy/{key}")
        line |= {"eval/greedy/reward": mean, "eval/greedy/low": mean - 0.2, "eval/greedy/high": mean + 0.2}
    write_rows(folder / "metrics.jsonl", metrics)
    for step, rewards in ((0, (0.0, 0.25, 0.5)), (2, (0.25, 0.25, 1.0))):
        rows = [json.loads(line) for line in (folder / f"eval/step-{step}.jsonl").read_text().splitlines()]
        for row, reward in zip(rows, rewards, strict=True):
            del row["correct"]
            row |= {"reward": reward, "columns": {"answer": "4"}}
        write_rows(folder / f"eval/step-{step}.jsonl", rows)
    data = run_data(Run(folder))
    (pair,) = data["evaluations"]
    half = 4.3027 * 0.25 / 3**0.5  # differences 0.25, 0, 0.5: deviation 0.25, two degrees of freedom
    assert pair["change"]["mean"] == 0.25 and pair["change"]["high"] == pytest.approx(0.25 + half, rel=1e-4)
    shown = data["samples"]["problems"]["greedy"][2][1]
    assert (shown["reward"], shown["columns"]) == (1.0, {"answer": "4"})
    text = printed(folder, 100)
    assert "0.250" in text and "0.300 to 0.700" in text and "greedy: +0.250, 95 % interval" in text
    card = model_card(Run(folder), {"model": "embedded", "data_file": "rows.jsonl"}, "train")
    assert "| `greedy` | 0.250 (0.050 to 0.450) | 0.500 (0.300 to 0.700) | 8.0 |" in card
    assert "Mean reward with its 95 % interval at step 0 and step 2" in card
