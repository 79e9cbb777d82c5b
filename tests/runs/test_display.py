import io
import math
import re
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from lfpo.base import progress as progress_module
from lfpo.base.progress import duration
from lfpo.base.terminal import Terminal
from lfpo.cli import main
from lfpo.core import observer as observer_module
from lfpo.core.observer import Observer
from lfpo.runs import display as display_module
from lfpo.runs.display import Display, _iterations, sparkline
from train_arguments import train_arguments

METRICS: dict[str, float] = {"step": 3, "reward": 0.5, "steps": 16.0, "nfe": 9.5, "loss": 1.25, "grad_norm": 0.3}
METRICS |= {"time/rollout": 2.0, "time/reward": 0.0, "time/update": 1.0, "eval/greedy/accuracy": 0.75}
METRICS |= {"eval/greedy/nfe": 16.0, "eval/greedy/steps": 16.0, "completions/mean_length": 12.0}


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


def test_an_iteration_without_rewards_is_shown_on_a_terminal():
    """Its reward is NaN: a reward function failed for the whole batch, in the first iteration or in a later one."""
    for before in ([], [0.5, 0.75]):
        out, nan = io.StringIO(), float("nan")
        with Display(10, Console(file=out, width=80, force_terminal=True)) as display:
            for step, reward in enumerate([*before, nan], start=1):
                display.update({**METRICS, "step": step, "reward": reward, "eval/greedy/reward": nan})
            assert display.rewards == before
            assert ("last reward 0.750" in display.phase_line()) == bool(before)
        assert "nan" in out.getvalue()


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0.0, 0.5, 1.0], "▁▄█"),
        ([2.0, 2.0], "▁▁"),
        ([0.0, math.nan, 1.0, math.inf], "▁█"),
        ([math.nan], ""),
    ],
)
def test_a_sparkline_by_hand(values: list[float], expected: str):
    assert sparkline(values) == expected


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


def test_a_sampler_s_name_is_shown_as_it_is_written():
    out = io.StringIO()
    console = Terminal(file=out, width=80, force_terminal=True, color_system=None)
    with Display(10, console) as display:
        display.update({**METRICS, "eval/[blue]/accuracy": 0.125, "eval/[blue]/nfe": 3.0})
    assert re.search(r"\[blue\] +12\.5% at 3\.0 NFE", out.getvalue())


def test_a_log_file_is_quiet_between_evaluations_but_tells_the_first_and_the_last(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(display_module, "QUIET", 1000.0)
    out = io.StringIO()
    plain = {k: v for k, v in METRICS.items() if not k.startswith("eval/")}
    with Display(9, Console(file=out, width=200)) as display:
        for step in range(1, 10):
            display.update({**(METRICS if step == 5 else plain), "step": step})
    assert [line.split()[1] for line in out.getvalue().splitlines()] == ["1/9", "5/9", "9/9"]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """time.monotonic() is its `now`."""
    found: Any = SimpleNamespace(now=0.0, monotonic=lambda: found.now)
    for module in (display_module, observer_module, progress_module):
        monkeypatch.setattr(module, "time", found)
    return found


def test_time_left_by_hand(clock: SimpleNamespace):
    """Iterations of 10 s, and evaluations of 100 s after every fifth and the last one of 12."""
    display = Display(12, Console(quiet=True), evaluates_after=lambda step: step % 5 == 0 or step == 12)
    clock.now = 100
    display.update({"step": 0, "time/eval": 100.0})
    assert display.left() is None  # no iteration yet
    clock.now += 10
    display.update({"step": 1})
    assert display.left() == 11 * 10 + 3 * 100  # from the first iteration on: after 5, 10 and 12
    clock.now += 4
    assert display.left() == 406
    clock.now += 6
    display.update({"step": 2})
    for step in (3, 4, 5):
        clock.now += 10 + (120 if step == 5 else 0)
        display.update({"step": step, **({"time/eval": 120.0} if step == 5 else {})})
    assert display.left() == 7 * 10 + 2 * 120
    clock.now += 1000
    assert display.left() == 0


def test_without_a_terminal_the_phase_is_told_again_and_again(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(display_module, "PHASE_LINES", 0.02)
    progress, out = Observer(), io.StringIO()
    progress.begin("evaluation, greedy", 200, "problems")
    with Display(9, Console(file=out, width=200), progress=progress):
        until = time.monotonic() + 10
        while out.getvalue().count("\n") < 2 and time.monotonic() < until:
            time.sleep(0.01)
    lines = out.getvalue().splitlines()
    assert len(lines) >= 2 and all(x.startswith("iteration 1/9  evaluation, greedy  0 of 200 problems") for x in lines)
    said = len(lines)
    time.sleep(0.06)
    assert len(out.getvalue().splitlines()) == said  # nothing after the end


def test_a_resumed_run_is_shown_where_it_goes_on():
    progress = Observer()
    progress.resumed_at = 2
    with Display(3, Console(file=io.StringIO()), progress=progress) as display:
        assert display.phase_line().startswith("iteration 3/3")
        display.update({**METRICS, "step": 3})
        assert display.phase_line().startswith("iteration 3/3")


def test_training_goes_through_its_phases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """What a run of one iteration begins, in order, and that each phase is done to its end."""
    ended: list[tuple[str, int, int]] = []
    begin = Observer.begin

    def record(self: Observer, phase: str, total: int = 0, unit: str = "") -> None:
        if getattr(self, "phase", "") and (self.total or phase != self.phase):
            ended.append((self.phase, self.done, self.total))
        begin(self, phase, total, unit)

    monkeypatch.setattr(Observer, "begin", record)
    passes = {"objective.num_iterations": "2"}
    assert main(train_arguments(tmp_path, optimizer_steps_per_iteration="2", update_tokens="64", **passes)) == 0
    evaluations = [("evaluation, greedy", 4, 4), ("evaluation, threshold", 4, 4)]
    names = [name for name, _, _ in ended]
    assert ended[:2] == evaluations and ended[2:4] == [("sampling", 4, 4), ("verdicts", 4, 4)]
    assert names[4:8] == [f"optimiser step {i} of 4" for i in range(1, 5)]
    assert ended[8:10] == evaluations and names[10] == "checkpoint"
    assert all(done == total for _, done, total in ended) and ended[4][2] > 0


def test_durations():
    assert [duration(s) for s in (0.4, 59, 200, 7500)] == ["0 s", "59 s", "3 min 20 s", "2 h 05 min"]
