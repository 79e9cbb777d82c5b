"""The embedded base model as it is shipped."""

import json
from pathlib import Path

import pytest

from lfpo.base.config import load_yaml
from lfpo.eval.estimates import mean_interval, pass_at_k, wilson_interval
from lfpo.eval.evaluate import evaluate
from lfpo.models import load_model, load_tokenizer
from lfpo.models.loading import EMBEDDED
from lfpo.prompts.tasks import TASKS, get_task
from lfpo.rollout.engine import as_it_is
from lfpo.rollout.sampler import SamplerConfig


def test_it_is_small_and_in_lladas_layout():
    assert sum(f.stat().st_size for f in EMBEDDED.iterdir()) < 8e6
    config = json.loads((EMBEDDED / "config.json").read_text())
    assert config["model_type"] == "llada"
    assert not [f for f in EMBEDDED.iterdir() if f.suffix not in {".json", ".safetensors", ".jinja"}]


def test_it_has_the_architecture_its_recipe_says():
    config = json.loads((EMBEDDED / "config.json").read_text())
    init = load_yaml("embedded-pretrain")["init"]
    assert {k: config[k] for k in init if k != "vocab_size"} == {k: v for k, v in init.items() if k != "vocab_size"}


@pytest.mark.parametrize("name", list(TASKS))
def test_its_tokenizer_keeps_every_text(name: str):
    tokenizer, task = load_tokenizer("embedded"), get_task(name)
    for i in range(50):
        text = task.row("test", i)["prompt"]
        assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text
    odd = "naïve 漢字 <x>\n\t 007 ~ ####"
    assert tokenizer.decode(tokenizer.encode(odd, add_special_tokens=False)) == odd


@pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n == "sudoku" else [pytest.mark.long]) for n in TASKS])
def test_it_is_flawed_but_not_hopeless(name: str):
    """A small sample of what `lfpo eval` measures: sampled accuracy is neither near 0 nor near 1."""
    task = get_task(name)
    rows = [task.row("test", i) for i in range(40)]
    sampler = SamplerConfig(temperature=1.0, remasking="random").for_length(task.gen_length)
    model, tokenizer = load_model("embedded"), load_tokenizer("embedded")
    result = evaluate(as_it_is(model), model, tokenizer, rows, task.correct_all, sampler)
    assert result.accuracy is not None and result.interval is not None
    assert 0.05 < result.accuracy < 0.75
    assert result.interval[0] < result.accuracy < result.interval[1]


def test_evaluation_depends_on_its_seed_only():
    task, model, tokenizer = get_task("countdown"), load_model("embedded"), load_tokenizer("embedded")
    rows = [task.row("test", i) for i in range(6)]
    sampler = SamplerConfig(temperature=1.0).for_length(task.gen_length)
    results = [
        evaluate(as_it_is(model, t), model, tokenizer, rows, task.correct_all, sampler, seed=s).completions
        for s, t in ((1, 10**6), (1, 40), (2, 10**6))
    ]
    assert results[0] == results[1] != results[2]


def test_intervals_and_pass_at_k_by_hand():
    assert wilson_interval(8, 10) == pytest.approx((0.4902, 0.9433), abs=1e-4)
    assert wilson_interval(0, 20)[0] == 0.0
    assert wilson_interval(20, 20)[1] == 1.0
    assert pass_at_k(4, 1, 2) == pytest.approx(1 - 3 / 6)
    assert pass_at_k(4, 0, 2) == 0.0
    assert pass_at_k(4, 3, 2) == 1.0
    # Two problems at 1/2 and 1: mean 3/4, standard error 1/4.
    assert mean_interval([1, 2], [2, 2]) == pytest.approx((0.75 - 0.49, 1.0))


def test_a_users_task_by_dotted_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "shout.py").write_text(
        "from lfpo.prompts.tasks.task import Task\n"
        "TASK = Task('shout', lambda rng: {'prompt': rng.choice('abcdefgh'), 'answer': 'x'}, lambda r: r['prompt'],\n"
        "            lambda c, r: c == r['answer'], lambda r, rng, share: 'x', 0.4, 4)\n"
    )
    monkeypatch.chdir(tmp_path)
    task = get_task("shout:TASK")
    assert task.reward_functions[0](["a"], ["x"], answer=["x"]) == [1.0]
