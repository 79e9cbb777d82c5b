"""The page in a real browser: it draws, plays, sorts, fits a phone, and keeps out what a model wrote."""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from browser import Page, browser
from lfpo.config.build import build
from lfpo.config.train import LFPOConfig
from lfpo.report import write_report
from lfpo.runs.directory import Run
from lfpo.train.rl import LFPOTrainer
from served_report import add_iteration, served
from written_runs import CODE, HOSTILE, record, write_comparison, write_rows, write_run

pytestmark = pytest.mark.long  # a browser takes seconds to start


@pytest.fixture(scope="module")
def running() -> Iterator[Any]:
    with browser() as found:
        yield found


@contextmanager
def opened_page(running: Any, url: str | Path, **context: Any) -> Iterator[Page]:
    """An open page that must have no errors at the end."""
    with Page(running, url, **context) as opened:
        yield opened
        assert opened.errors == []


def panel(page: Any, heading: str, kind: str = "section.panel") -> Any:
    """The part of a page with this heading."""
    return page.locator(kind, has=page.get_by_role("heading", name=heading))


@pytest.fixture(scope="module")
def real(running: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a real, short run on Sudoku, as training left it."""
    folder = tmp_path_factory.mktemp("real") / "run"
    sizes = {"max_steps": 2, "prompts_per_iteration": 2, "num_generations": 4, "optimizer_steps_per_iteration": 1}
    sizes |= {"eval_size": 3, "eval_steps": 1, "threads": 1}
    LFPOTrainer(args=build(LFPOConfig, {"output_dir": str(folder), "task": "sudoku", **sizes})).train()
    return folder / "report.html"


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a run whose losses report metrics of the policy."""
    folder = tmp_path_factory.mktemp("measured") / "run"
    return write_report(Run(write_run(folder, ["text"], steps=4, eval_texts=["text"], policy=True)))


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report(Run(write_comparison(tmp_path_factory.mktemp("comparison"))))


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a run whose completions are code, hostile, or broken."""
    texts = [CODE, HOSTILE, "half \ud83d a character, \x1b[31m and \x00 control"]
    return write_report(Run(write_run(tmp_path_factory.mktemp("written") / "run", texts, eval_texts=texts)))


def test_a_real_run_opens_without_errors_and_without_network(running: Any, real: Path):
    with opened_page(running, real) as opened:
        assert opened.page.title() == "run: lfpo report"
        learned = ["How straight the path is", "Training signal", "What an iteration learned from"]
        for name in ["Watch it denoise", "Learning", *learned]:
            assert opened.page.get_by_role("heading", name=name, exact=True).is_visible()
        assert opened.page.locator(".chart:visible svg path.line").count() >= 8
        assert "2 of 2 iterations" in opened.texts("header.top")[0]
        assert all(r.startswith(("file:", "data:")) for r in opened.requests)


def test_notes_of_a_run_are_shown_as_text(running: Any, tmp_path: Path):
    run = Run(write_run(tmp_path / "run", ["text"]))
    run.add_note(2, "groups_agree", "all groups agree <b>here</b>")
    run.add_note(3, "groups_agree", "after the last line of metrics")
    with opened_page(running, write_report(run)) as opened:
        assert opened.texts(".notes li") == ["Iteration 2: all groups agree <b>here</b>"]


def test_the_player_plays_scrubs_and_takes_keys(running: Any, real: Path):
    with opened_page(running, real) as opened:
        page = opened.page
        page.select_option(".player .control:has-text('Sampler') select", "greedy")
        masked, slider = page.locator(".cell.masked"), page.locator(".player input[type=range]")
        assert page.locator(".pane").count() == 2
        assert page.locator(".cell").count() == 32
        assert masked.count() == 0
        slider.fill("0")
        assert masked.count() == 32
        slider.fill("5")
        assert masked.count() == 22  # greedy: a token a step, on both sides
        assert page.locator(".cell.fresh").count() == 2
        page.locator(".player").focus()
        page.keyboard.press("ArrowRight")
        assert masked.count() == 20
        page.keyboard.press("Home")
        assert slider.input_value() == "0"
        page.keyboard.press("Space")
        assert page.locator(".player .primary").inner_text() == "Pause"
        _wait(opened, lambda: int(slider.input_value()) >= 3)
        page.keyboard.press("Space")
        paused = slider.input_value()
        page.wait_for_timeout(700)
        assert slider.input_value() == paused
        page.keyboard.press("End")
        assert slider.input_value() == "16"
        before = page.locator(".prompt").first.inner_text()
        page.keyboard.press("n")
        assert page.locator(".prompt").first.inner_text() != before
        page.get_by_role("button", name="Play", exact=True).click()
        _wait(opened, lambda: page.locator(".player .primary").inner_text() == "Play")
        assert masked.count() == 0
        page.select_option(".player .control:has-text('Colour by') select", "confidence")
        assert page.locator(".cell[class*=sure]").count() == 32


def test_a_grid_marks_a_repeated_digit_once_both_are_there(running: Any, tmp_path: Path):
    """By hand, revealed in reading order: 1 twice in the second row, then once more below; a 4 where 2 was given."""
    folder = write_run(tmp_path / "run", ["x"])
    puzzle, grid = "1___34______2___", "1234341121434321"
    rows = [record(grid, prompt=f"sudoku {puzzle}", piece=1, stride=1, sampler="greedy", problem=0, correct=False)]
    write_rows(folder / "eval/step-0.jsonl", rows)
    config = folder / "config.yaml"
    text = config.read_text().replace("task: null", "task: d1_sudoku").replace("data_file: rows.jsonl\n", "")
    config.write_text(text)
    with opened_page(running, write_report(Run(folder))) as opened:
        slider = opened.page.locator(".player input[type=range]")
        clashes = opened.page.locator(".cell.clash:not(.masked)")
        assert opened.page.locator(".cell.given").count() == 4
        for clock, count in ((16, 4), (7, 0), (8, 2), (0, 0)):
            slider.fill(str(clock))
            assert clashes.count() == count


def test_groups_say_how_many_are_right_and_play_a_row(running: Any, real: Path):
    with opened_page(running, real) as opened:
        page = opened.page
        section = panel(page, "What an iteration learned from")
        slider = section.locator("input[type=range]")
        rows = "section.group tbody tr"
        for step in (2, 1):
            slider.fill(str(step - 1))
            assert f"iteration {step}" in section.inner_text()
            counts = page.locator(".bars text.count-of").all_text_contents()
            assert sum(map(int, counts)) == 2 * 8  # two histograms
            assert re.fullmatch(r"[0-4] of 4 right", opened.texts(".group .chip")[0])
            times = [int(t[2:] or 1) for t in opened.texts(f"{rows} td:nth-child(3)")]
            assert sum(times) == 8  # 2 prompts x 4 rollouts, equal ones in one row
        section.locator("select").select_option("high")
        rewards = [float(t) for t in opened.texts(".group tbody tr:first-child td:nth-child(4)")]
        assert rewards == sorted(rewards, reverse=True)
        text = opened.texts(".group:first-child tbody td pre")[0]
        page.get_by_label("Filter").fill(text)
        for n in range(section.locator(".group").count()):
            assert text in "".join(opened.texts(f".group:nth-child({n + 1}) pre"))
        section.locator("tbody button").first.click()
        assert page.locator(".pane").count() == 1
        assert "reward" in page.locator(".pane h3").inner_text()
        assert page.locator(".scene").bounding_box()["width"] - page.locator(".progress").bounding_box()["width"] < 600
        page.get_by_role("button", name="Back to before and after").click()
        assert page.locator(".pane").count() == 2


def test_differences_within_a_group_are_marked(running: Any, measured: Path):
    """By hand: a longest common subsequence of a b c d e and a c x e is a c e."""
    with opened_page(running, measured) as opened:
        code = "([a, b]) => differing([...a], [...b])"
        assert opened.page.evaluate(code, ["abcde", "acxe"]) == [False, True, False, True, False]
        assert opened.page.evaluate(code, ["same", "same"]) == [False] * 4
        assert opened.page.evaluate(code, ["x", ""]) == [True]


def test_the_player_is_saved_as_png(running: Any, real: Path, tmp_path: Path):
    with opened_page(running, real) as opened:
        page = opened.page
        page.select_option(".player .control:has-text('Sampler') select", "greedy")
        shade = page.locator(".cell").first.evaluate("(e) => getComputedStyle(e).backgroundColor")
        box = page.locator(".cell").first.bounding_box()
        shot = page.locator(".shot").bounding_box()
        with page.expect_download() as saved:
            page.get_by_role("button", name="PNG").click()
        saved.value.save_as(tmp_path / "a.png")
        picture: Any = Image.open(tmp_path / "a.png").convert("RGB")
        assert picture.size == tuple(-(-2 * (shot[side] + 32) // 1) for side in ("width", "height"))
        # A corner of the first cell, clear of its digit.
        at = tuple(int(2 * (box[axis] - shot[axis] + 16 + 8)) for axis in ("x", "y"))
        assert f"rgb{picture.getpixel(at)}" == shade


def test_a_comparison_shows_its_curves_and_its_table(running: Any, comparison: Path):
    with opened_page(running, comparison) as opened:
        front, work = opened.page.locator("figure.chart").all()
        assert front.locator("text.named").all_text_contents() == ["base", "lfpo", "agrpo", "unigrpo", "rejection"]
        assert work.locator("path.line").count() == 4
        assert "lfpo 93 %" in work.locator(".legend li").all_inner_texts()
        assert opened.texts(".result th[scope=row]") == ["base", "lfpo", "agrpo", "unigrpo", "rejection"]


def test_policy_charts_show_the_values_of_a_run(running: Any, measured: Path):
    with opened_page(running, measured) as opened:
        policy = panel(opened.page, "How the policy changes")
        legends = {
            figure.locator("h3").inner_text(): figure.locator(".legend").inner_text().split("\n")
            for figure in policy.locator("figure.chart:visible").all()
        }
        assert legends == {
            "KL to theta_old (nats)": ["KL 0.004"],
            "KL to the base (nats)": ["KL 0.04"],
            "Entropy (nats)": ["at the targets 0.25", "in the rollout 0.125"],
            "Probability of target tokens": ["good 0.875", "good, old 0.813", "bad 0.0625", "bad, old 0.125"],
            "Ratio": ["mean 1"],
            "Clipped ratios": ["ratios 0 %"],
            "Saturated negatives": ["targets 12.5 %"],
        }
        target = panel(opened.page, "Probability of target", "figure.chart")
        assert target.locator("path.line[stroke-dasharray]").count() == 2
        assert target.locator("path.line:not([stroke-dasharray])").count() == 2
        panel(opened.page, "Saturated", "figure.chart").locator("svg[tabindex]").press("ArrowRight")
        assert "iteration 2" in policy.inner_text()  # the value of iteration 1 is null


def test_axes_of_values_that_hardly_differ_have_different_tick_labels(running: Any, measured: Path):
    with opened_page(running, measured) as opened:
        code = """([y, from, share]) => {
            const axis = yAxis([{ y }], from ?? undefined);
            return ticks(axis.bottom, axis.top, axis.step).map((t) => reading(t, share, axis.step));
        }"""
        for y, start, share, expected in (
            ([1, 1], None, False, ["0.995", "0.9975", "1", "1.0025", "1.005"]),
            ([0, 0], 0, True, ["0 %", "25 %", "50 %", "75 %", "100 %"]),
            ([0.0004, 0.0001], 0, True, ["0 %", "0.01 %", "0.02 %", "0.03 %", "0.04 %"]),
            ([0.2, 0.9], 0, False, ["0", "0.25", "0.5", "0.75", "1"]),
            ([-0.5, 0.5], 0, False, ["-0.5", "-0.25", "0", "0.25", "0.5"]),
        ):
            assert opened.page.evaluate(code, [y, start, share]) == expected


def test_long_lines_are_drawn_as_means_over_a_thin_line_of_all_values(running: Any, measured: Path, tmp_path: Path):
    with opened_page(running, measured) as opened:
        assert opened.page.locator(".line.faint").count() == 0
        x, y = opened.page.evaluate("averaged({ x: [...Array(150).keys()], y: Array(150).fill(2) })")
        assert x[:2] == [0.5, 2.5]
        assert (len(x), set(y)) == (75, {2})
    path = write_report(Run(write_run(tmp_path / "run", ["text"], steps=160, policy=True)))
    with opened_page(running, path) as opened:
        target = panel(opened.page, "Probability of target", "figure.chart")
        points = [line.get_attribute("d").count("L") + 1 for line in target.locator("path.line").all()]
        # The dashed lines have means only. The first iteration has no bad rollouts.
        assert sorted(points) == [75, 75, 75, 75, 159, 160]


@pytest.fixture(
    params=["written", "comparison", *(pytest.param(n, marks=pytest.mark.long) for n in ("real", "measured"))]
)
def any_page(request: pytest.FixtureRequest) -> Path:
    return request.getfixturevalue(request.param)


def test_a_phone_has_no_sideways_scroll(running: Any, any_page: Path):
    with opened_page(running, any_page, width=390) as opened:
        assert opened.page.evaluate("document.documentElement.scrollWidth") == 390


def test_axe_finds_nothing_serious(running: Any, any_page: Path):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="pip install -e '.[dev]'").Axe()
    # The page's own policy would keep axe's script out too.
    with opened_page(running, any_page, color_scheme="light", reduced_motion="reduce", bypass_csp=True) as opened:
        opened.page.evaluate("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
        found = axe.run(opened.page).response["violations"]
        opened.page.emulate_media(color_scheme="dark")  # the colours change, and nothing else
        colours = {"runOnly": ["cat.color"], "resultTypes": ["violations"]}
        found += axe.run(opened.page, options=colours).response["violations"]
        serious = [v for v in found if v["impact"] in ("serious", "critical")]
        assert [(v["id"], n["html"][:200]) for v in serious for n in v["nodes"]] == []


def test_hostile_and_broken_completions_are_shown_as_text(running: Any, written: Path):
    with opened_page(running, written) as opened:
        page = opened.page
        shown = "\n".join(opened.texts(".completions pre"))
        assert HOSTILE in shown
        assert "half \ufffd a character, ␛[31m and ␀ control" in shown.replace("\ud83d", "\ufffd")
        for _ in range(3):
            page.locator(".player").press("n")
        assert page.evaluate("window.owned") is None
        assert page.locator("main script, main img").count() == 0


def test_an_edited_token_is_shown_as_it_was_held(running: Any, tmp_path: Path):
    """By hand: `abc` is revealed as `xbz`; step 4 makes `a` of `x`, step 5 `q` of `z`, step 7 `c` of `q`."""
    folder = write_run(tmp_path / "run", ["x"])
    row = record("abc", prompt="letters", piece=1, stride=1, sampler="greedy", problem=0, correct=True)
    edits = {"0": [[0, 1, "x", 0.5], [3, 2, "a", 0.9]], "2": [[2, 3, "z", 0.5], [4, 4, "q", 0.6], [6, 5, "c", 0.9]]}
    write_rows(folder / "eval/step-0.jsonl", [{**row, "edits": edits, "scheduled_steps": 7, "nfe": 7}])
    with opened_page(running, write_report(Run(folder))) as opened:
        slider = opened.page.locator(".player input[type=range]")
        for clock, text, fresh in ((3, "xbz", 1), (4, "abz", 1), (5, "abq", 1), (6, "abq", 0), (7, "abc", 0)):
            slider.fill(str(clock))
            assert "".join(opened.texts(".tokens .token:not(.masked)")) == text
            assert opened.page.locator(".token.fresh").count() == fresh
        assert "step 5" in str(opened.page.locator(".token").nth(2).get_attribute("title"))


def test_the_theme_can_be_chosen_and_print_is_whole(running: Any, real: Path):
    with opened_page(running, real, color_scheme="light") as opened:
        page = opened.page
        ground = "getComputedStyle(document.documentElement).backgroundColor"
        light = page.evaluate(ground)
        button = page.locator("button.theme")
        button.click()
        assert (button.inner_text(), page.evaluate(ground)) == ("Theme: light", light)
        button.click()
        assert button.inner_text() == "Theme: dark"
        assert page.evaluate(ground) != light
        page.emulate_media(media="print")
        assert page.evaluate(ground) == "rgb(255, 255, 255)"
        assert not page.locator(".player input[type=range]").is_visible()
        assert page.locator(".cell").first.is_visible()


def _wait(opened: Page, what: Callable[[], bool], seconds: int = 60) -> None:
    """Wait until what() holds. The page's policy refuses scripts of Playwright's own waiting functions."""
    for _ in range(10 * seconds):
        if what():
            return
        opened.page.wait_for_timeout(100)
    raise AssertionError(f"still not true after {seconds} seconds")


def test_the_open_page_updates_without_reload(running: Any, tmp_path: Path):
    folder = write_run(tmp_path / "run", ["old text"], eval_texts=["one", "two"], steps=3)
    (folder / "run.json").write_text(json.dumps({**json.loads((folder / "run.json").read_text()), "iterations": 4}))
    with served(folder) as server, opened_page(running, server.address) as opened:
        page = opened.page
        assert page.locator(".chip.live").count() == 1
        page.get_by_label("Filter").fill("text")
        page.locator(".player").press("Home")
        page.evaluate("document.body.dataset.kept = 'same page'")
        add_iteration(folder, 4)
        page.get_by_text("4 of 4 iterations").wait_for(timeout=30000)
        page.get_by_label("Filter").fill("brand")
        assert "brand new" in opened.texts(".completions pre")
        assert page.locator("body").get_attribute("data-kept") == "same page"
        assert page.locator(".player input[type=range]").input_value() == "0"  # the player keeps its step
