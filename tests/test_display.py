from __future__ import annotations

import io

import pytest
from rich.console import Console

from lfpo.runs.display import Display, _iterations, one_line, sparkline

METRICS = {
    "step": 3,
    "reward": 0.5,
    "steps": 16.0,
    "nfe": 9.5,
    "loss": 1.25,
    "grad_norm": 0.3,
    "time/rollout": 2.0,
    "time/reward": 0.0,
    "time/update": 1.0,
    "eval/greedy/accuracy": 0.75,
    "eval/greedy/nfe": 16.0,
    "eval/greedy/steps": 16.0,
    "completions/mean_length": 12.0,
}


def test_a_log_file_gets_one_plain_line_an_iteration():
    out = io.StringIO()
    with Display(10, Console(file=out, width=200)) as display:
        display.update({"step": 0, "eval/greedy/accuracy": 0.25, "eval/greedy/nfe": 16.0, "eval/greedy/steps": 16.0})
        display.update(METRICS)
    lines = out.getvalue().splitlines()
    assert len(lines) == 2
    assert "\x1b" not in out.getvalue()
    assert "step 3/10  reward 0.500" in lines[1]
    assert "greedy: 75.0% at 16.0 NFE" in lines[1]


def test_a_terminal_gets_a_panel_with_start_and_now():
    out = io.StringIO()
    with Display(10, Console(file=out, width=80, force_terminal=True)) as display:
        display.update({"step": 0, "eval/greedy/accuracy": 0.25, "eval/greedy/nfe": 16.0, "eval/greedy/steps": 16.0})
        display.update({**METRICS, "step": 2, "reward": 0.125})
        display.update(METRICS)
    text = out.getvalue()
    for part in ("0.500", "0.125", "75.0%", "25.0%", "3/10", "67% / 0% / 33%", "1.2500", "length"):
        assert part in text


@pytest.mark.parametrize("width", [20, 30, 50, 80])
def test_a_narrow_terminal_loses_columns_and_never_breaks_a_row(width: int):
    console = Console(file=io.StringIO(), width=width, force_terminal=True)
    with Display(10, console) as display:
        display.update(METRICS)
        table = _iterations(display.recent, width)
    out = io.StringIO()
    Console(file=out, width=width).print(table)
    lines = out.getvalue().splitlines()
    assert len(lines) == 2
    assert all(len(line) <= width for line in lines)
    assert "reward" in lines[0] and "0.500" in lines[1]
    assert ("loss" in lines[0]) == (width >= 50)


def test_a_log_file_is_quiet_between_evaluations_but_tells_the_first_and_the_last():
    out = io.StringIO()
    plain = {k: v for k, v in METRICS.items() if not k.startswith("eval/")}
    with Display(9, Console(file=out, width=200), quiet=1000) as display:
        for step in range(1, 10):
            display.update({**(METRICS if step == 5 else plain), "step": step})
    assert [line.split()[1] for line in out.getvalue().splitlines()] == ["1/9", "5/9", "9/9"]


def test_sparkline_by_hand():
    assert sparkline([0.0, 0.5, 1.0]) == "▁▄█"
    assert sparkline([1.0, 1.0]) == "▁▁"


def test_the_line_counts_iterations():
    assert one_line({"step": 0}, 5) == "step 0/5"
