from __future__ import annotations

import io

from rich.console import Console

from lfpo.display import Display, one_line, sparkline

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
        display.update(METRICS)
    text = out.getvalue()
    for part in ("0.500", "75.0%", "25.0%", "3/10", "67% / 0% / 33%"):
        assert part in text


def test_narrow_terminals_do_not_break():
    with Display(10, Console(file=io.StringIO(), width=30, force_terminal=True)) as display:
        display.update(METRICS)


def test_sparkline_by_hand():
    assert sparkline([0.0, 0.5, 1.0]) == "▁▄█"
    assert sparkline([1.0, 1.0]) == "▁▁"


def test_the_line_counts_iterations():
    assert one_line({"step": 0}, 5) == "step 0/5"
