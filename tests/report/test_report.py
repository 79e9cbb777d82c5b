"""The data of a report's page: values by hand, and text that must stay text."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from lfpo.config.errors import UserError
from lfpo.config.watch import WatchConfig
from lfpo.models import load_tokenizer
from lfpo.prompts.tokenizer import token_texts
from lfpo.report import write_report
from lfpo.report.charts import SIGNAL
from lfpo.report.completions import (
    groups_of,
    histogram,
    playable,
    reveal_map,
    reward_histograms,
    sudoku_grid,
)
from lfpo.report.completions import (
    verdicts as verdicts_after,
)
from lfpo.report.data import evaluation_pairs, paired_change, percents, run_data, times
from lfpo.report.html import embedded
from lfpo.report.overview import overview_data
from lfpo.report.watch import Server
from lfpo.runs.directory import Run
from tiny import byte_alphabet, byte_level
from written_runs import HOSTILE, policy_metrics, record, write_rows, write_run


def data_of(page: str) -> dict:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    return json.loads(found.group(1))


@pytest.mark.parametrize("text", ["1234\n", "naïve 解く 🙂 end", "e\u0301 ↵ \x1b"])
def test_token_texts_join_to_the_text(text: str):
    tokenizer = load_tokenizer("embedded")
    ids = tokenizer.encode(text, add_special_tokens=False)
    texts = token_texts(tokenizer, ids)
    assert len(texts) == len(ids)
    assert "".join(texts) == tokenizer.decode(ids) == text


def test_a_cut_character_belongs_to_its_last_token_and_a_broken_one_is_shown_as_such():
    tokenizer = load_tokenizer("embedded")
    ids = tokenizer.encode("🙂", add_special_tokens=False)
    assert token_texts(tokenizer, ids) == ["", "", "", "🙂"]
    assert set(token_texts(tokenizer, ids[:3])) == {"\ufffd"}
    assert token_texts(tokenizer, [tokenizer.eos_token_id]) == [tokenizer.eos_token]


SPACE = "\u2581"
PIECES = ["<unk>", "</s>", SPACE, SPACE + "the", SPACE + "fox", "es", "\n", *(f"<0x{byte:02X}>" for byte in range(256))]


def sentencepiece() -> PreTrainedTokenizerFast:
    """A tokenizer that drops the space that a text begins with, as Llama 2's does."""
    tokenizer = Tokenizer(models.Unigram([(piece, -1.0) for piece in PIECES], unk_id=0, byte_fallback=True))
    steps = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(steps)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", eos_token="</s>")


def test_token_texts_keep_the_spaces_that_a_tokenizer_drops_only_at_the_beginning():
    pieces = [SPACE + "the", SPACE + "fox", "es", SPACE, "<0xE6>", "<0x97>", "<0xA5>", "\n", SPACE + "the", "</s>"]
    expected = ["the", " fox", "es", " ", "", "", "日", "\n", " the", "</s>"]
    for first, text in ((SPACE, ""), (SPACE + "fox", "fox"), ("es", "es"), ("</s>", "</s>")):
        ids = [PIECES.index(piece) for piece in [first, *pieces]]
        found = token_texts(sentencepiece(), ids)
        assert found == [text, " the", *expected[1:]]
        assert "".join(found) == sentencepiece().decode(ids)


def test_a_character_that_never_ends_costs_no_other_token_its_text():
    """A completion that is cut inside its second emoji: decoded together the bytes of both would be broken."""
    pieces = [SPACE + "the", *(f"<0x{byte:02X}>" for byte in [*"😀".encode(), 0xF0, 0x9F]), SPACE + "fox"]
    found = token_texts(sentencepiece(), [PIECES.index(piece) for piece in pieces])
    assert found == ["the", "", "", "", "😀", "\ufffd", "\ufffd", " fox"]


def test_token_texts_join_where_tokens_hold_parts_of_two_characters():
    alphabet, word = byte_alphabet(), "日本".encode()
    parts = ["".join(alphabet[byte] for byte in part) for part in (word[:1], word[1:4], word[4:])]
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=byte_level({part: i for i, part in enumerate([*alphabet, *parts])})
    )
    assert token_texts(tokenizer, [32, 256, 257, 258, 32]) == [" ", "", "", "日本", " "]


def test_whatever_a_model_writes_stays_text(tmp_path: Path):
    broken = "half \ud83d a character \u2028 and \x00 control"
    page = write_report(Run(write_run(tmp_path / "run", [HOSTILE, broken], eval_texts=[HOSTILE])))
    text = page.read_text(encoding="utf-8")
    assert "owned" in text
    assert HOSTILE not in text
    assert text.count("<script") == text.count("</script>") == 2
    assert {r["completion"] for g in data_of(text)["groups"] for r in g["rows"]} == {HOSTILE, broken}
    assert json.loads(embedded({"a": "</script>"})) == {"a": "</script>"}


def test_the_policy_charts_have_all_keys_and_a_run_brings_their_values(tmp_path: Path):
    data = run_data(Run(write_run(tmp_path / "run", ["text"], steps=2, policy=True)))
    assert {line["key"] for chart in data["charts"]["policy"] for line in chart["lines"]} == policy_metrics(1).keys()
    assert data["metrics"]["kl/old"] == [None, 0.001, 0.002]
    assert data["metrics"]["p_target/bad"] == [None, None, 0.125]
    assert [chart["title"] for chart in data["charts"]["signal"]] == ["Reward parts", *(c.title for c in SIGNAL)]


def test_evaluation_pairs_are_first_and_last():
    metrics = [{"step": s, "eval/a/nfe": float(s), "eval/a/accuracy": s / 10} for s in (0, 5, 10)]
    (pair,) = evaluation_pairs([*metrics, {"step": 11}])
    assert pair["name"] == "a" and pair["first"]["step"] == 0
    assert pair["last"] == {"step": 10, "nfe": 10.0, "accuracy": 1.0}


def test_reveal_map_by_hand():
    records = [{"reveal_step": [0, 1, -1], "tokens": ["a", "b"]}, {"reveal_step": [1, 1, 0], "tokens": ["a", "b", "c"]}]
    found = reveal_map(records, length=3, steps=2)
    assert found["cells"] == [[0, 0, 0.5], [0, 1, 0.5], [1, 1, 1.0], [2, 0, 1.0]]
    assert found["reveals"] == 2.0
    assert (found["width"], found["height"]) == (3, 2)


def test_histogram_by_hand():
    assert histogram([0.0, 0.5, 1.0, 1.0], (0.0, 1.0))["counts"] == [1, *[0] * 9, 1, *[0] * 8, 2]
    assert histogram([2.0, 2.0]) == {"low": 2.0, "high": 2.0, "counts": [2]}
    assert histogram([])["counts"] == []
    assert histogram([-1.0, 0.0], (0.0, 1.0))["low"] == -1.0  # outside the range: the range gives way


def test_group_agreement_by_hand():
    rewards = (1.0, 1.0), (0.0, 1.0), (0.0, 0.0), (1.0, 1.0), (1.0, None, 1.0), (None,)
    groups = [[{"reward": value, "r": 0.5} for value in group] for group in rewards]
    assert reward_histograms(groups, True)["agreement"] == {"all right": 0.6, "all wrong": 0.2, "mixed": 0.2}
    assert "agreement" not in reward_histograms([[{"reward": 0.5, "r": 0.5}] * 2], True)
    assert reward_histograms([[{"reward": 0.5, "r": r} for r in (0.25, 0.75, None)]], True)["r"]["high"] == 1.0
    assert reward_histograms([[{"reward": 0.5, "r": r} for r in (0.25, 0.75, None)]], False)["r"]["high"] == 0.75


def test_groups_are_what_the_file_holds():
    """Not what config.yaml says, which a resume may have changed: runs of one prompt, cut where it was drawn again."""
    records = [{"asked": prompt, "n": n} for n, prompt in enumerate("aabbbbccc")]
    assert [[record["n"] for record in group] for group in groups_of(records, 2)] == [[0, 1], [2, 3], [4, 5], [6, 7, 8]]
    assert [len(group) for group in groups_of(records, 3)] == [2, 4, 3]
    assert groups_of([], 2) == []


def test_sudoku_grids_are_found_where_they_are_written():
    grid = "1234341221434321"
    assert sudoku_grid("sudoku\n1BCD34HI2JK34LM1\n", grid) == {"puzzle": "1...34..2..34..1", "at": 0}
    assert sudoku_grid("Puzzle: 1000340020034001", f"<answer>{grid}</answer>") == {
        "puzzle": "1...34..2..34..1",
        "at": 8,
    }
    assert sudoku_grid("Puzzle: 1000340020034001", "I do not know") is None
    assert sudoku_grid("What is 2 + 2?", grid) is None


def test_what_the_player_gets_is_as_long_as_its_tokens():
    shown = playable({**record("abcdef"), "reveal_step": [0, 1, -1, -1], "confidence": [0.5, 1, 0, 0]}, {"task": "x"})
    assert shown["tokens"] == ["abc", "def"]
    assert shown["reveal"] == [0, 1]
    assert shown["confidence"] == [0.5, 1]


def test_rollouts_after_the_last_metrics_line_are_left_out(tmp_path: Path):
    folder = write_run(tmp_path / "run", ["text"], steps=3)
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    (folder / "metrics.jsonl").write_text("\n".join(lines[:-1]) + "\n" + lines[-1][:20])
    data = run_data(Run(folder))
    assert {g["step"] for g in data["groups"]} == {1, 2}
    assert (data["step"], data["finished"]) == (2, False)


def test_a_long_run_stays_small_and_says_what_it_leaves_out(tmp_path: Path):
    texts = [f"answer {i} " * 60 for i in range(7)]
    folder = write_run(tmp_path / "run", texts, steps=2000, rollouts=5, eval_texts=texts)
    page = write_report(Run(folder)).read_text()
    assert len(page) < 10_000_000
    data = data_of(page)
    assert len(data["metrics"]["reward"]) == 2001
    assert data["rollouts_note"].startswith(f"{sum(len(g['rows']) for g in data['groups'])} of ")
    assert "from 24 of 2,000 iterations" in data["rollouts_note"]
    assert {1, 2000} <= {g["step"] for g in data["groups"]}


def test_percents_sum_to_100_by_largest_remainders():
    assert percents({"a": 1, "b": 1, "c": 1}) == {"a": 34, "b": 33, "c": 33}
    assert percents({"a": 0.004, "b": 2.496, "c": 7.5}) == {"a": 0, "b": 25, "c": 75}
    assert percents({"a": 0.0}) == {}


def test_time_of_a_run_has_evaluation_and_rest():
    rows = [{"time/eval": 3.0}, {"time/rollout": 2.0, "time/reward": 0.5, "time/update": 1.0, "time/total": 4.0}]
    assert times(rows) == {"rollout": 2.0, "reward": 0.5, "update": 1.0, "eval": 3.0, "rest": 0.5}


def change(folder: Path, name: str, first: dict[str, Any], last: dict[str, Any]) -> Any:
    at = {end["step"]: verdicts_after(folder, end["step"]) for end in (first, last)}
    return paired_change(at, name, first, last)


def test_the_change_is_paired_by_problem(tmp_path: Path):
    """By hand: of eight problems two are gained and one is lost, so the mean is 1/8; pairs without change count 0."""
    before, after = [1, 1, 1, 1, 0, 0, 0, 0], [1, 1, 1, 0, 1, 1, 0, 0]
    for step, verdicts in ((0, before), (4, after)):
        rows = [{"sampler": "greedy", "problem": i, "correct": bool(v)} for i, v in enumerate(verdicts)]
        write_rows(tmp_path / f"eval/step-{step}.jsonl", rows)
    first, last = {"step": 0, "accuracy": 0.5}, {"step": 4, "accuracy": 0.625}
    found = change(tmp_path, "greedy", first, last)
    assert found is not None
    assert (found["mean"], found["gained"], found["lost"]) == (0.125, 2, 1)
    assert -0.4 < found["low"] < 0 < found["high"] < 0.6
    for step in (0, 4):  # a row that cannot be judged on this machine
        path = tmp_path / f"eval/step-{step}.jsonl"
        path.write_text(path.read_text() + '{"sampler": "greedy", "problem": 8, "correct": null}\n')
    assert change(tmp_path, "greedy", first, last) == found
    assert change(tmp_path, "other", first, last) is None
    with (tmp_path / "eval/step-4.jsonl").open("a") as file:  # another number of problems
        file.write('{"sampler": "greedy", "problem": 9, "correct": true}\n')
    assert change(tmp_path, "greedy", first, last) is None


def test_the_change_is_over_problems_that_both_evaluations_judged(tmp_path: Path):
    before, after = [None, True, False, True, False, True, False], [True, True, False, True, False, True, None]
    for step, verdicts in ((0, before), (4, after)):
        rows = [{"sampler": "greedy", "problem": i, "correct": verdict} for i, verdict in enumerate(verdicts)]
        write_rows(tmp_path / f"eval/step-{step}.jsonl", rows)
    found = change(tmp_path, "greedy", {"step": 0}, {"step": 4})
    assert found is not None and (found["mean"], found["gained"], found["lost"]) == (0.0, 0, 0)


def test_a_run_without_evaluation_plays_its_rollouts(tmp_path: Path):
    folder = write_run(tmp_path / "run", ["first text", "second"], steps=2)
    data = run_data(Run(folder))
    assert not data["held_out"]
    (pair,) = data["samples"]["problems"]["rollouts"]  # one prompt, in both iterations
    best = {g["step"]: max(r["reward"] for r in g["rows"]) for g in data["groups"]}
    assert [row["step"] for row in pair] == [1, 2]
    assert [row["reward"] for row in pair] == [best[1], best[2]]
    assert "training rollouts" in data["samples_note"]


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda folder: write_report(Run(folder / "sft")), "a run of `lfpo sft`"),
        (lambda folder: Server(WatchConfig(str(folder / "sft"))), "holds a run of `lfpo sft`"),
        (lambda folder: Server(WatchConfig(str(folder / "dpo"))), "holds a run of `lfpo dpo`"),
        (lambda folder: Server(WatchConfig(str(folder / "empty"))), "holds no run"),
        (lambda folder: overview_data(folder / "empty"), "no metrics"),
        (lambda folder: Server(WatchConfig(str(folder / "run"), host="host.invalid")), "could not listen"),
    ],
)
def test_what_cannot_be_shown_is_told(call: Callable[[Path], object], said: str, tmp_path: Path):
    write_run(tmp_path / "run", ["text"])
    for kind in ("sft", "dpo"):
        (write_run(tmp_path / kind, ["text"]) / "run.json").write_text(json.dumps({"kind": kind}))
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=said):
        call(tmp_path)
