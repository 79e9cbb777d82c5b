"""The judge against an endpoint that misbehaves; what it reads, asks, keeps and counts."""

import asyncio
import json
import math
import pickle
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from judge_endpoint import Endpoint, chat, endpoint
from lfpo.cli import main
from lfpo.config.errors import UserError
from lfpo.core.attempts import RewardFailed
from lfpo.rewards.judge import Judge
from lfpo.rewards.measured import measured
from lfpo.rewards.terms import weighted
from lfpo.train.rl import LFPOTrainer
from scores import score
from small_runs import choice_config

pytest.importorskip("openai", reason="the extra `judge` is not installed")

KEY = "sk-secret-of-the-test"


@pytest.fixture(autouse=True)
def surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    client = pytest.importorskip("openai._base_client")
    monkeypatch.setattr(client, "INITIAL_RETRY_DELAY", 0.01)


@pytest.fixture
def server() -> Iterator[Endpoint]:
    with endpoint() as server:
        yield server


def judge(server: Endpoint, **settings: Any) -> Judge:
    settings = {"template": "{completion}", "timeout": 5.0, "retries": 2, **settings}
    return Judge("m", base_url=server.url, **settings)


def ask(function: Any, *completions: str, **columns: Any) -> list[float | None]:
    return function(prompts=["p"] * len(completions), completions=list(completions), **columns)


# Fault -> the attempts where it happens once; a part of the reason where it does not end.
FAULTS = {
    "hangs": (2, "no answer within 0.2 s"),
    "busy": (2, "HTTP 429: .*too many requests.*"),
    "broken": (2, "HTTP 500: .*internal.*"),
    "reset": (2, "connection lost.*"),
    "garbage": (1, "answer is not JSON"),
    "empty": (1, "answer has no text"),
    "cut": (2, "connection lost.*"),
    "html": (1, "answer is not JSON"),
    "denied": (1, "HTTP 401: .*wrong key Bearer [*]{3}.*"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_that_happens_once_and_one_that_does_not_end(fault: str, server: Endpoint):
    attempts, reason = FAULTS[fault]
    function, started = judge(server, timeout=1.0), time.monotonic()
    assert ask(function, f"{fault} 1 7", "fine") == [0.7 if attempts > 1 else None, 0.8]
    assert time.monotonic() - started < 10
    assert server.times[f"{fault} 1 7"] == attempts
    assert function.counts["no_score"] == (attempts == 1)
    assert_no_score(server, f"{fault} 9 7", reason)


def assert_no_score(server: Endpoint, completion: str, reason: str) -> None:
    rewards = score([judge(server, timeout=0.2)], [1.0], ["p"], [completion], [[1]], {})
    assert rewards.parts == {"judge": [None]}
    assert re.fullmatch(f"none of 1 completions got a score from http://[^ ]*: .*{reason}", rewards.failed["judge"])


@pytest.mark.parametrize(
    ("answer", "reason"),
    [("no idea", "no score in the answer 'no idea'"), ("-1", "score -1 is outside the scale, 0 to 10")],
)
def test_an_answer_without_a_score_is_not_asked_for_again(answer: str, reason: str, server: Endpoint):
    function = judge(server)
    assert ask(function, f"slow 0 {answer}", "fine") == [None, 0.8]
    assert (len(server.seen), function.counts["no_score"]) == (2, 1)
    assert_no_score(server, f"slow 0 {answer}", reason)


def test_no_endpoint():
    with endpoint() as server:
        function = judge(server)
    with pytest.raises(RewardFailed, match=r"none of 2 completions got a score from http://[^ ]*: connection lost"):
        ask(function, "a", "b")


def test_the_time_limit_of_rewards_ends_a_batch(server: Endpoint):
    started = time.monotonic()
    rewards = score([judge(server, timeout=60.0)], [1.0], ["p"] * 2, ["hangs 9 7", "x"], [[1]] * 2, {}, timeout=0.5)
    assert rewards.failed == {"judge": "it ran for more than 0.5 s"} and time.monotonic() - started < 5


READ = [
    ({}, "Good.\n\n**Score: 7/10**\n", 0.7),
    ({}, "7.5", 0.75),
    ({}, "6 out of 10.", 0.6),
    ({}, "7 or 8", None),
    ({}, "I counted 3 errors.", None),
    ({"scale": (1.0, 5.0)}, "2", 0.25),
    ({"read": "yes_no"}, "It is right.\nAnswer: **Yes**.", 1.0),
    ({"read": "yes_no"}, "no", 0.0),
    ({"read": "yes_no"}, "yes and no", None),
    ({"read": "json"}, '```json\n{"score": 4, "why": "{}"}\n```', 0.4),
    ({"read": "json", "json_field": "right", "scale": (0, 1)}, '{"right": true}', 1.0),
    ({"read": "json"}, '{"score": "4"}', None),
    ({"read": "json"}, '{"score": NaN}', None),
    ({"read": "json"}, '{"points": 4}', None),
    ({"read": "json"}, "4", None),
    ({"read": lambda text: float(len(text))}, "four", 0.4),
    ({}, "8/100", None),
    ({}, "Score: 3 / 5", None),
    ({}, "3 out of 5", None),
    ({}, "7/10.0", 0.7),
    ({"scale": (1.0, 5.0)}, "3/5", 0.5),
    ({"scale": (0, 100)}, "8/100.", 0.08),
    ({"read": "json"}, '{"score": true}', 1.0),
    ({"read": "json"}, '{"score": false}', 0.0),
    ({"read": "json", "scale": (-1.0, 1.0)}, '{"score": false}', 0.0),
    ({"read": lambda text: text == "yes", "scale": (1.0, 5.0)}, "yes", 1.0),
    ({"read": lambda text: text == "yes", "scale": (1.0, 5.0)}, "no", 0.0),
    ({"read": lambda text: np.bool_(True)}, "", 1.0),
    ({"read": lambda text: torch.tensor(False)}, "", 0.0),
    ({"read": lambda text: np.float32(5)}, "", 0.5),
    ({"read": lambda text: None}, "", None),
    ({"read": lambda text: np.array([1.0, 5.0])}, "", None),
    ({"read": lambda text: "7"}, "", None),
    ({"read": lambda text: math.nan}, "", None),
]


@pytest.mark.parametrize(("settings", "text", "expected"), READ)
def test_how_a_score_is_read(settings: dict[str, Any], text: str, expected: float | None):
    found = Judge("m", **settings)._score(text)
    assert isinstance(found, str) if expected is None else found == pytest.approx(expected)


@pytest.mark.parametrize(
    ("read", "odd"),
    [
        (lambda text: json.loads(text)["score"], "no JSON"),
        (lambda text: json.loads(text)["score"], "[]"),
        (lambda text: {"odd": "7"}.get(text, 5), "odd"),
    ],
)
def test_an_odd_answer_costs_its_completion_alone(read: Any, odd: str, server: Endpoint):
    server.text = ""  # answers with the completion
    function, fine = judge(server, read=read), '{"score": 5}'
    assert ask(function, odd, fine) == [None, 0.5]
    assert list(function.cache.values()) == [0.5]
    assert (function.counts["no_score"], len(server.seen)) == (1, 2)


def test_what_read_says_of_an_answer_is_in_the_reason(server: Endpoint):
    function = judge(server, read=lambda text: json.loads(text)["score"])
    with pytest.raises(
        RewardFailed, match=r"could not be read from the answer 'x': .*JSONDecodeError: .*\(decoder.py:"
    ):
        ask(function, "slow 0 x")

    def refuses(text: str) -> float:
        raise UserError("set the scale")

    with pytest.raises(UserError, match="set the scale"):
        ask(judge(server, read=refuses), "a", "b")


@pytest.mark.parametrize("usage", [None, {}])
def test_an_answer_without_text_or_counts_of_tokens(usage: Any, server: Endpoint):
    """A model that was cut off while it reasoned gives no content; some endpoints count nothing."""
    server.bodies["cut off"] = json.dumps({**chat("7"), "choices": [{"message": {"content": None}}]})
    server.bodies["uncounted"] = json.dumps({**chat("7"), "usage": usage})
    function = judge(server, retries=0)
    assert ask(function, "cut off", "uncounted", "fine") == [None, 0.7, 0.8]
    assert (function.counts["prompt_tokens"], function.counts["completion_tokens"]) == (20, 4)


def test_the_message_has_prompt_completion_and_columns(server: Endpoint):
    function = judge(
        server, template="{prompt}|{completion}|{answer}|{{}}", options={"temperature": 0, "max_tokens": 9}
    )
    assert function(["p {answer}"], ["c {0}"], answer=["a"], completion_ids=[[1]]) == [0.8]
    chat = [{"role": "assistant", "content": "c"}]
    assert function([[{"role": "user", "content": "p"}]], [chat], answer=["a"]) == [0.8]
    assert [body["messages"] for body in server.seen] == [
        [{"role": "user", "content": text}] for text in ("p {answer}|c {0}|a|{}", "user: p|c|a|{}")
    ]
    assert {(body["model"], body["temperature"], body["max_tokens"]) for body in server.seen} == {("m", 0, 9)}
    with pytest.raises(UserError, match="the template asks for 'answer', and the row has completion, gold, prompt"):
        function(["p"], ["c"], gold=["a"])


def test_equal_requests_are_sent_once_and_only_scores_are_kept(server: Endpoint):
    function = judge(server, retries=0)
    assert ask(function, "a", "a", "broken 1 4") == [0.8, 0.8, None]
    assert ask(function, "a", "b", "broken 1 4") == [0.8, 0.8, 0.4]
    assert server.times == {"a": 1, "b": 1, "broken 1 4": 2}
    assert measured({"judge": function}) == {
        f"rewards/judge/{key}": value
        for key, value in {
            "completions": 6,
            "no_score": 1,
            "cache_hits": 2,
            "prompt_tokens": 30,
            "completion_tokens": 6,
            "failure_rate": 1 / 6,
        }.items()
    }
    assert measured({"judge": weighted(function, "w")})["rewards/judge/completions"] == 0
    small = judge(server, cache_size=1)
    ask(small, "c", "d")
    assert list(small.cache.values()) == [0.8]
    assert ask(small, "d", "c") == [0.8, 0.8] and (server.times["c"], server.times["d"]) == (2, 1)


def test_counts_of_ranks_are_added(server: Endpoint, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("lfpo.core.collectives.gather", lambda own: [own, own])
    function = judge(server)
    ask(function, "a", "slow 0 none", "b")
    found = measured({"ask": ask, "judge": function})
    assert found["rewards/judge/prompt_tokens"] == 60 and found["rewards/judge/failure_rate"] == 1 / 3


def test_requests_at_once_are_bounded(server: Endpoint):
    assert ask(judge(server, concurrency=3), *(f"slow 1 {i}" for i in range(9))) == [i / 10 for i in range(9)]
    assert 2 <= server.most_open <= 3


def test_it_works_in_a_notebook_and_in_another_process(server: Endpoint):
    function = judge(server)

    async def cell() -> list[float | None]:
        return ask(function, "a")

    assert asyncio.run(cell()) == [0.8]
    again = pickle.loads(pickle.dumps(function))
    assert ask(again, "a", "b") == [0.8, 0.8] and server.times["a"] == 1 and again.__name__ == "judge"


def test_the_key_comes_from_the_environment(
    server: Endpoint, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    assert ask(judge(server), "a", "denied 9 7") == [0.8, None]
    assert server.keys == {f"Bearer {KEY}"}
    assert "1 of 2 completions got no score: HTTP 401" in caplog.text and KEY not in caplog.text
    server.keys.clear()
    assert ask(judge(server, api_key_env=""), "b") == [0.8] and server.keys == {"Bearer none"}
    monkeypatch.delenv("OPENAI_API_KEY")
    with pytest.raises(UserError, match="OPENAI_API_KEY is not set"):
        ask(judge(server), "c")


def test_a_reason_is_logged_once_for_consecutive_batches(server: Endpoint, caplog: pytest.LogCaptureFixture):
    function = judge(server)
    for bad in ("slow 0 what", "slow 0 who", "fine", "slow 0 how"):
        ask(function, "a", bad)
    assert [record.getMessage().split("answer ")[1] for record in caplog.records] == ["'what'", "'how'"]


MODULE = """
import os
from lfpo.rewards.judge import Judge

def read(text):
    return None if len(text) % 3 == 0 else len(text) % 8

echo = Judge("m", base_url=os.environ["JUDGE_URL"], template="{prompt}{completion}", read=read, name="echo")
"""


def test_a_run_counts_what_its_judge_cost(llada: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "my_judge.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    rewards = ["my_judge.echo", "reward_samples.even_tokens"]
    run = tmp_path / "run"
    with endpoint(text="") as server:
        monkeypatch.setenv("JUDGE_URL", server.url)
        config = choice_config(run, llada, reward_funcs=rewards, max_steps=2, eval_size=0, keep_going=True)
        LFPOTrainer(args=config).train()
    lines = [row for row in map(json.loads, (run / "metrics.jsonl").read_text().splitlines()) if "reward" in row]
    unscored = [(run / f"rollouts/step-{step}.jsonl").read_text().count('"echo": null') for step in (1, 2)]
    assert 0 < sum(unscored) < 16
    found = [{k: row[f"rewards/echo/{k}"] for k in ("completions", "no_score", "failure_rate")} for row in lines]
    assert [row["completions"] for row in found] == [8 + 4, 8]  # 4 stand-ins at start
    assert found[0]["no_score"] - unscored[0] in (0, 2, 4) and found[1]["no_score"] == unscored[1]
    assert found[1]["failure_rate"] == unscored[1] / 8
    assert sum(row["rewards/echo/prompt_tokens"] for row in lines) == 10 * len(server.seen)
    assert not any(KEY in path.read_text(errors="replace") for path in run.rglob("*") if path.is_file())


def test_the_documented_config_in_a_dry_run(
    server: Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    page = (Path(__file__).parents[2] / "docs" / "own-reward-and-data.md").read_text(encoding="utf-8")
    for name, text in re.findall(r"^```\w+\n# ([\w.]+)\n(.*?)^```", page, re.DOTALL | re.MULTILINE):
        (tmp_path / name).write_text(text.replace("http://127.0.0.1:8000/v1", server.url))
    rows = [{"prompt": f"countdown\n{n} 1 = 2\n", "answer": str(n), "weight": n} for n in (1, 2)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    server.text = "Yes."
    assert main(["train", "judged.yaml", "--dry_run"]) == 0
    assert "judge, overlong: called once" in capsys.readouterr().out
    assert {body["max_tokens"] for body in server.seen} == {8} and len(server.seen) == 2
    server.text = "Perhaps."
    monkeypatch.delitem(sys.modules, "my_terms")  # and its cache
    assert main(["train", "judged.yaml", "--dry_run"]) == 2
    said = capsys.readouterr().err
    assert "reward function 'judge' failed on its first call: none of 4 completions got a score" in said
    assert not (tmp_path / "runs").exists()
