"""Answers as they are finished: every one once, before the last, and the same as in the whole trajectory."""

from pathlib import Path

import torch

from lfpo.eval.estimates import scores
from lfpo.eval.evaluate import Answer, answers_of, generate, grade
from lfpo.models import load_model, load_tokenizer
from lfpo.rollout.engine import as_it_is
from lfpo.rollout.sampler import SamplerConfig


def test_answers_come_one_batch_after_another(llada: Path):
    model, tokenizer = load_model(llada, dtype=torch.float64), load_tokenizer(llada)
    rows = [{"prompt": "x" * (i + 1)} for i in range(5)]
    wanted = [(4, 1), (0, 0), (2, 1), (2, 0), (3, 0)]
    sampler = SamplerConfig(gen_length=4, temperature=1.0)
    batches: list[list[Answer]] = []
    trajectory = generate(as_it_is(model, 14), model, tokenizer, rows, wanted, sampler, seed=1, finished=batches.append)
    assert len(batches) > 1
    came = [answer for batch in batches for answer in batch]
    assert sorted((a.problem, a.sample) for a in came) == sorted(wanted)
    whole = answers_of(trajectory, wanted, tokenizer)
    assert sorted(came, key=repr) == sorted(whole, key=repr)
    alone = generate(as_it_is(model, 10**6), model, tokenizer, rows, wanted[2:3], sampler, seed=1)
    assert answers_of(alone, wanted[2:3], tokenizer) == [whole[2]]


def test_scores_by_hand():
    verdicts = [True, False, None, None, True, True]
    found = scores([0, 0, 1, 1, 2, 2], verdicts)
    assert (found["n"], found["n_samples"], found["not_judged"]) == (3, 2, 2)
    assert found["accuracy"] == 0.75  # problem 1 was not judged
    assert found["pass_at_k"] == {2: 1.0}
    half = scores([0, 0, 1, 1], [True, None, False, False])
    assert half["accuracy"] == 0.5
    assert half["pass_at_k"] == {2: 0.0}  # problem 0 has one verdict, too few
    assert scores([0], [None]) == {
        "n": 1, "n_samples": 1, "accuracy": None, "interval": None, "pass_at_k": {}, "not_judged": 1
    }  # fmt: skip


def test_a_task_that_judges_many_at_once_is_asked_once():
    class Batch:
        asked = 0

        def correct_all(self, rows: list[dict[str, int]], completions: list[str]) -> list[bool | None]:
            self.asked += 1
            return [c == str(row["n"]) for row, c in zip(rows, completions, strict=True)]

    task = Batch()
    assert grade(task.correct_all, [{"n": 1}, {"n": 2}], ["1", "1"]) == [True, False]
    assert task.asked == 1
