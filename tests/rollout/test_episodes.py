"""Rollouts of several turns with an environment: rows, views, baselines, ranks, resumed runs, wrong environments."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import games
import tiny
from letter_runs import config, metrics, without_times
from lfpo import LFPOConfig, LFPOTrainer, SamplerConfig
from lfpo.config.errors import UserError
from lfpo.core.batch import Batch
from lfpo.core.encoding import encode_prompt
from lfpo.core.engine import Request
from lfpo.core.passes import fully_masked
from lfpo.core.visited import replay
from lfpo.models import load_model, load_tokenizer
from lfpo.objectives import make_objective
from lfpo.objectives.needs import samplers
from lfpo.plan.estimate import Estimate
from lfpo.report.completions import rollout_sample
from lfpo.rollout.episodes import Environment, play
from lfpo.rollout.sampling import as_it_is
from lfpo.train.records import rollout_records
from rank_runs import assert_same_run
from rank_runs import run as run_distributed
from scripted_engine import SAMPLER, scripted
from update_cases import Whole
from written_runs import write_rows

ROWS: list[dict[str, Any]] = [{"prompt": text, "turns": turns} for text, turns in (("ab", 1), ("c", 2), ("dd", 3))]


def spelled(ids: torch.Tensor, mask: torch.Tensor, batch: Batch, tokenizer: Any) -> str:
    """Tokens as text: _ for a mask, $ for an EOS; padding left out."""
    t, text = batch.trajectory, ""
    for token in ids[mask.bool()].tolist():
        text += {t.mask_id: "_", t.eos_id: "$"}.get(token) or tokenizer.decode([token])
    return text


def test_views_of_two_turns_mask_only_what_the_model_wrote_in_that_turn(llada: Path):
    batch, _, tokenizer = scripted(llada, ["ask "], [["no"], ["y"]])
    masked = fully_masked(batch.trajectory)
    step = replay(batch.trajectory, torch.tensor([0, 0, 1]), torch.tensor([0, 1, 1]))
    found = []
    for views in (masked, step):
        for s in range(len(views)):
            shown = spelled(views.input_ids[s], views.attention_mask[s], batch, tokenizer)
            targets = spelled(views.labels[s], views.target[s], batch, tokenizer)
            found.append((int(views.row[s]), shown, targets))
    assert found == [
        (0, "ask ___", "no$"),
        (1, "ask no(1)___", "y$"),
        (0, "ask ___", "no$"),
        (0, "ask n__", "o$"),
        (1, "ask no(1)y__", "$"),
    ]
    assert [turn.text for turn in batch.turns] == ["no", "y"]
    assert batch.reward_R.tolist() == [1.0]


def test_a_group_counts_each_episode_once_whatever_its_turns(llada: Path):
    """Two prompts with three rollouts each, of which two of the first prompt's end in their first turn."""
    calls = [["x", "n", "y", "n", "n", "n"], ["y", "n", "y", "n"]]
    batch, engine, tokenizer = scripted(llada, ["a", "b"], calls, n=3)
    assert [len(request.prompts) for request in engine.requests] == [6, 4]
    assert batch.rollout_B.tolist() == [0, 1, 1, 2, 3, 3, 4, 4, 5, 5]
    assert batch.reward_R.tolist() == [0, 1, 1, 0, 1, 0]
    assert batch.group_R.tolist() == [0, 0, 0, 1, 1, 1]
    signal_R = make_objective({"name": "diffu_grpo"}).signal(batch.reward_R, batch.group_R)
    assert signal_R.tolist() == pytest.approx([-2 / 3, 1 / 3, 1 / 3, -1 / 3, 2 / 3, -1 / 3])
    signal_B = signal_R[batch.rollout_B]
    assert signal_B.tolist() == pytest.approx([x / 3 for x in (-2, 1, 1, 1, -1, -1, 2, 2, -1, -1)])
    # A block holds whole rollouts, each with all its turns.
    assert torch.isin(batch.rollout_B, torch.tensor([1, 4])).nonzero().flatten().tolist() == [1, 2, 6, 7]
    assert batch.metrics["turns/mean"] == 10 / 6
    assert batch.metrics["rewards/Scripted/mean"] == batch.metrics["reward"] == 0.5
    records = rollout_records(batch, signal_B, tokenizer)
    assert [(r["prompt"], r["completion"], r["turn"], r["reply"], r["reward"]) for r in records[:4]] == [
        ("a", "x", 1, "(1)", 0.0),
        ("a", "n", 1, "(1)", 1.0),
        ("an(1)", "y", 2, "(2)", 1.0),
        ("a", "y", 1, "(1)", 1.0),
    ]


def test_messages_are_a_conversation_of_assistant_and_user(llada: Path):
    ask = [{"role": "user", "content": "hi"}]
    batch, engine, tokenizer = scripted(tiny.with_chat_template(llada), [ask], [["h"], ["y"]])
    told = [*ask, {"role": "assistant", "content": "h"}, {"role": "user", "content": "(1)"}]
    assert batch.reward_R.tolist() == [1.25]  # the sum of both turns
    assert [turn.row["prompt"] for turn in batch.turns] == [ask, told]
    assert engine.requests[1].prompts == [encode_prompt(tokenizer, told)]


def test_an_episode_ends_where_the_conversation_no_longer_fits(tmp_path: Path):
    model = tiny.write_llada(tmp_path / "short", max_sequence_length=10)
    batch, engine, _ = scripted(model, ["1234567", "12"], [["n", "n"], ["y"]])  # 7 + 1 + 3 + 3 tokens, and 2 + 7
    assert [len(request.prompts) for request in engine.requests] == [2, 1]
    assert batch.rollout_B.tolist() == [0, 1, 1]
    assert batch.reward_R.tolist() == [0, 1]
    assert batch.metrics["turns/cut"] == 0.5


def test_a_reply_with_the_mask_token_is_an_error_and_no_cut(llada: Path, monkeypatch: pytest.MonkeyPatch):
    mask = load_tokenizer(llada).mask_token
    monkeypatch.setattr(games.Scripted, "step", lambda self, text: (f"fill {mask}", 0.0, False))
    with pytest.raises(UserError, match=r"environment 'Scripted': the conversation after its reply .* mask token"):
        scripted(llada, ["a"], [["n"], ["n"]])


def test_numpy_scalars_are_numbers(llada: Path, monkeypatch: pytest.MonkeyPatch):
    np = pytest.importorskip("numpy")
    monkeypatch.setattr(games.Scripted, "step", lambda self, text: ["", np.float32(0.5), np.bool_(True)])
    batch, _, _ = scripted(llada, ["a"], [["n"]])
    assert batch.reward_R.tolist() == [0.5]


def test_an_episode_does_not_depend_on_the_others(llada: Path):
    model, tokenizer = load_model(llada), load_tokenizer(llada)
    environment = Environment(games.Letters, max_turns=3, timeout=0.0)

    def turns_of(which: list[int]) -> list[tuple[str, str, int]]:
        rows = [ROWS[i] for i in which]
        request = Request([encode_prompt(tokenizer, row["prompt"]) for row in rows], [100 + i for i in which], SAMPLER)
        turns, *_ = play(environment, as_it_is(model), model, tokenizer, request, rows, lambda index, t: None)
        return [(t.text, t.reply, t.seed) for t in turns if rows[t.rollout] is ROWS[2]]

    together = turns_of([0, 1, 2])
    assert together == turns_of([2])
    assert len({seed for _, _, seed in together}) == 3


def test_trains_evaluates_reports_and_resumes(llada: Path, tmp_path: Path):
    settings = {"environment": "games:Letters", "max_turns": 3, "max_steps": 2}
    args = config(tmp_path, **settings)
    LFPOTrainer(str(llada), args=args, train_dataset=ROWS, eval_dataset=ROWS).train()
    lines = metrics(tmp_path / "run")
    assert [line["grad_norm"] > 0 for line in lines[1:]] == [True, True]
    assert lines[1]["reward"] > 0 and lines[1]["rewards/Letters/mean"] == pytest.approx(lines[1]["reward"])
    # Held-out: 1, 2 and 3 turns; the records of each problem hold its last turn's conversation and reward.
    assert lines[0]["eval/greedy/turns/mean"] == 2.0
    records = [json.loads(line) for line in (tmp_path / "run/eval/step-0.jsonl").read_text().splitlines()]
    assert [(r["problem"], r["turn"]) for r in records] == [(0, 1), (1, 1), (1, 2), (2, 1), (2, 2), (2, 3)]
    last = [records[0], records[2], records[5]]
    assert lines[0]["eval/greedy/reward"] == pytest.approx(sum(r["reward"] for r in last) / 3)
    assert last[2]["prompt"] == "".join(("dd", *(r["completion"] + r["reply"] for r in records[3:5])))
    # The report takes each episode once, with its conversation, in groups of a prompt.
    groups = rollout_sample(tmp_path / "run", vars(args), 2)["groups"]
    assert [len(group["rows"]) for group in groups] == [4] * 4
    for group in groups:
        starts = {
            next(row["prompt"] for row in ROWS if shown["prompt"].startswith(row["prompt"])) for shown in group["rows"]
        }
        assert len(starts) == 1
    rollouts = (tmp_path / "run/rollouts/step-2.jsonl").read_text()
    shutil.rmtree(tmp_path / "run/checkpoints/step-2")
    LFPOTrainer(str(llada), args=args, train_dataset=ROWS, eval_dataset=ROWS).train(resume=True)
    assert without_times(metrics(tmp_path / "run")) == without_times(lines)
    assert (tmp_path / "run/rollouts/step-2.jsonl").read_text() == rollouts


@pytest.mark.long
@pytest.mark.parametrize("fsdp", ["false", "true"])
def test_ranks_whose_episodes_end_at_other_turns_train_as_one(fsdp: str, llada: Path, tmp_path: Path):
    """Each rank has one of three prompts, whose episodes have one, two and three turns; two iterations."""
    rows = str(write_rows(tmp_path / "rows.jsonl", ROWS))
    keys = ["--data_file", rows, "--eval_file", rows, "--task", "null"]
    keys += ["--reward_funcs", "[]", "--environment", "games.Letters", "--max_turns", "3", "--max_steps", "2"]
    keys += ["--sampler.gen_length", "4"]
    for name, ranks, more in (("one", 1, ()), ("three", 3, ("--fsdp", fsdp)), ("two", 2, ("--fsdp", fsdp))):
        run_distributed(tmp_path / name, llada, ranks, *keys, *more)
    assert [line["grad_norm"] > 0.01 for line in metrics(tmp_path / "one")[1:]] == [True, True]
    assert_same_run(tmp_path / "one", tmp_path / "two")
    assert_same_run(tmp_path / "one", tmp_path / "three")
    for step in (1, 2):  # the same rollouts in the same order
        texts = {
            (tmp_path / n / f"rollouts/step-{step}.jsonl").read_text().count('"turn": 3') for n in ("one", "three")
        }
        assert texts == {4}


def test_an_environment_that_raises_loses_the_batch_and_five_end_the_run(llada: Path, tmp_path: Path):
    args = config(tmp_path, environment="games:RaisesLater", max_turns=2, max_steps=6, eval_steps=6)
    trainer = LFPOTrainer(str(llada), args=args, train_dataset=ROWS, eval_dataset=ROWS)
    with pytest.raises(UserError, match=r"environment 'RaisesLater' failed for 5 batches in a row, last with: Conn"):
        trainer.train()
    lines = metrics(tmp_path / "run")
    assert lines[0]["eval/greedy/reward"] is None
    assert [line["rewards/RaisesLater/failed"] for line in lines[1:]] == [1.0] * 4
    records = [json.loads(line) for line in (tmp_path / "run/rollouts/step-1.jsonl").read_text().splitlines()]
    assert [(r["turn"], r["rewards"], r["reply"]) for r in records] == [(1, {"RaisesLater": None}, "")] * 8


@pytest.mark.long
def test_a_wrong_return_value_on_one_rank_ends_both_with_its_sentence(llada: Path, tmp_path: Path):
    rows = str(write_rows(tmp_path / "rows.jsonl", ROWS))
    keys = ["--data_file", rows, "--task", "null", "--reward_funcs", "[]", "--eval_steps", "0"]
    keys += ["--environment", "games.WrongForThree", "--max_turns", "2", "--sampler.gen_length", "4"]
    process = run_distributed(tmp_path / "run", llada, 2, *keys, code=2)
    assert process.stderr.count("environment 'WrongForThree': step returned None, expected (reply") == 2, process.stderr


def test_an_objective_that_joins_a_prompts_rows_in_its_loss_is_refused(tmp_path: Path):
    args = config(tmp_path, environment="games:Letters", max_turns=2)
    with pytest.raises(
        UserError, match="objective Whole needs rollouts of one row each, which an environment does not"
    ):
        samplers(args, 128, Whole(), None)


@pytest.mark.long
def test_the_plan_counts_every_turn_as_a_rollout(llada: Path, tmp_path: Path):
    shape = json.loads((llada / "config.json").read_text())
    keys: dict[str, Any] = {"task": "choice", "sampler": SamplerConfig(temperature=1.0)}
    one = Estimate(config(tmp_path, **keys), shape)
    three = Estimate(config(tmp_path, environment="games:Letters", max_turns=3, **keys), shape)
    for name in ("rollout_flops", "update_flops", "evaluation_flops"):
        assert getattr(three, name) == pytest.approx(3 * getattr(one, name))


@pytest.mark.parametrize(
    "value",
    [("a", 1.0), (3, 1.0, True), ("a", "1", True), ("a", float("nan"), True), ("a", 1.0, 2)],
)
def test_a_wrong_step_is_one_sentence(value: Any, llada: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(games.Returns, "value", value)
    args = config(tmp_path, environment="games:Returns", max_turns=2)
    with pytest.raises(UserError) as raised:
        LFPOTrainer(str(llada), args=args, train_dataset=ROWS)
    said = f"environment 'Returns': step returned {value!r}, expected (reply, reward, done): text, a finite"
    assert said in str(raised.value)


KEYS: list[tuple[dict[str, Any], str]] = [
    ({"environment": "games:Nothing"}, "environment 'games:Nothing': module 'games' has no 'Nothing'"),
    ({"environment": "games:Raises"}, "'Raises' failed on its first call: ConnectionError: nobody there (games.py:"),
    ({"environment": "games:Gym"}, "'Gym': reset returned 'first observation', expected None; an episode begins with"),
    ({"max_turns": 0}, "'environment' goes with 'max_turns'"),
    ({"environment": None}, "'environment' goes with 'max_turns'"),
    ({"max_turns": -1}, "max_turns -1 must not be negative"),
    ({"engine": {"max_staleness": 1}}, "'engine.max_staleness' does not work with 'environment'"),
    ({"engine": {"reward_workers": 1}}, "'engine.reward_workers' does not work with 'environment'"),
    (
        {"reward_funcs": ["reward_samples.even_tokens"]},
        "an environment gives the rewards itself; leave out reward_funcs and correct",
    ),
    ({"correct": "reward_samples.even_tokens"}, "an environment gives the rewards itself; leave out reward_funcs and"),
    ({"reward_memory": 1.0}, "reward_memory limits the functions of reward_funcs"),
    ({"reward_weights": [1.0]}, "1 weights for 0 functions"),
    (
        {"objective": {"name": "mdpo"}},
        "objective MDPO needs rollouts of one row each, which an environment does not give",
    ),
]


@pytest.mark.parametrize(("keys", "sentence"), KEYS)
def test_wrong_keys_are_one_sentence(keys: dict[str, Any], sentence: str, llada: Path, tmp_path: Path):
    from lfpo.config.build import build, to_dict

    given = {**to_dict(config(tmp_path)), "environment": "games:Letters", "max_turns": 2, **keys}
    with pytest.raises(UserError) as raised:
        LFPOTrainer(str(llada), args=build(LFPOConfig, given), train_dataset=ROWS)
    assert sentence in str(raised.value)
