"""The rules on a run's metrics, on histories made by hand, and what a run does about them."""

from pathlib import Path
from typing import Any

import pytest

from lfpo.cli import main
from lfpo.core.batch_metrics import endings, share_of_commonest
from lfpo.eval.estimates import wilson_interval
from lfpo.runs import health
from lfpo.runs.directory import Run
from lfpo.runs.health import Health
from train_arguments import train_arguments


def rows(**columns: list[Any]) -> list[dict[str, Any]]:
    """One line of metrics an iteration; every one has a reward of a function `f`."""
    n = len(next(iter(columns.values())))
    given = {"reward": [0.5] * n, **columns}
    return [{"rewards/f/mean": 0.5, **{k.replace("_of_", "/"): v[i] for k, v in given.items()}} for i in range(n)]


def said(history: list[dict[str, Any]]) -> list[tuple[int, str]]:
    """(index of the line, rule) of everything that is said."""
    rules = Health()
    found = [(i, rule, text) for i, metrics in enumerate(history) for rule, text in rules.update(metrics).items()]
    assert all("; " in text and "\n" not in text for _, _, text in found)  # what is wrong; what to do
    return [(i, rule) for i, rule, _ in found]


# What a run on 4x4 Sudoku measured.
DEMO = rows(
    reward=[0.68, 0.602, 0.594, 0.805, 0.898, 0.828, 0.93, 0.906, 0.844],
    frac_reward_zero_std=[0.188, 0.062, 0.312, 0.188, 0.375, 0.438, 0.688, 0.562, 0.438],
    kl_of_old=[0.004, 0.001, 0.0, 0.001, 0.001, 0.001, 0.001, 0.001, 0.001],
    entropy_of_rollout=[0.36, 0.264, 0.24, 0.216, 0.246, 0.203, 0.215, 0.169, 0.15],
)
# The default on a pretrained model of 135 M parameters that was right on a tenth of its prompts: in 16 iterations, some
# of which were not recorded, most completions came to end in the same answer.
DRIFT = [0.23, 0.36, 0.39, 0.59, 0.36, 0.61, 0.61, 0.64, 0.81, 0.70]
UP = [0.3 + 0.02 * i for i in range(30)]
NOISE = [0.05 * (-1) ** i for i in range(30)]


@pytest.mark.parametrize(
    ("history", "expected"),
    [
        (DEMO, []),
        (rows(frac_reward_zero_std=[0.9] * 4 + [1.0] * 4), [(6, "groups_agree")]),
        (rows(frac_reward_zero_std=[1.0] * 4), []),  # four iterations are too few
        # It is said again when it begins again.
        (rows(frac_reward_zero_std=[1.0] * 6 + [0.0] * 5 + [1.0] * 5), [(4, "groups_agree"), (15, "groups_agree")]),
        (rows(reward=[a + b for a, b in zip(UP, NOISE, strict=True)]), []),
        (rows(reward=[0.6 + x for x in NOISE[:10]] + [0.58 + x for x in NOISE[:10]]), []),  # within the noise
        # With 8 of the last ten at 0.4 the mean is 0.32 lower, and its standard error sqrt(0.0284 / 10) = 0.053; with 7
        # of them it is 0.28 lower, less than 5 standard errors of 0.061.
        (rows(reward=[0.8] * 20 + [0.4] * 10), [(27, "reward_falls")]),
        (rows(reward=[0.8, 0.7] * 3 + [0.2, 0.3] * 3), [(10, "reward_falls")]),  # windows of five
        (rows(kl_of_old=[0.3] * 9), []),
        (rows(kl_of_old=[0.3] * 5 + [1.0] * 5), [(6, "kl_runs_away")]),  # (3 x 0.3 + 2) / 5 = 0.58
        (rows(kl_of_base=[0.4 * i for i in range(10)]), [(8, "kl_runs_away")]),  # the mean of 1.6 ... 3.2 is 2.4
        (rows(entropy_of_rollout=[1.0] * 5 + [0.05] * 5), [(9, "entropy_runs_away")]),
        (rows(entropy_of_rollout=[1.0] * 5 + [3.0] * 5), [(9, "entropy_runs_away")]),
        # It may fall when the reward rises: that is what learning looks like.
        (rows(entropy_of_rollout=[1.0] * 5 + [0.05] * 5, reward=[0.5] * 5 + [0.9] * 5), []),
        # The mean of the first five is 0.386, of the last five 0.674.
        (rows(completions_of_frac_same_ending=DRIFT, reward=[0.1] * 5 + [0.17] * 5), [(9, "answers_alike")]),
        # Two answers, each right for half of the prompts: learned, and collapsed. One answer that is right for most
        # prompts, and learned.
        (rows(completions_of_frac_same_ending=[0.55] * 10, reward=[0.5] * 5 + [0.9] * 5), []),
        (rows(completions_of_frac_same_ending=[0.5] * 5 + [0.9] * 5, reward=[0.5] * 10), [(9, "answers_alike")]),
        (rows(completions_of_frac_same_ending=[0.3] * 5 + [0.8] * 5, reward=[0.2] * 5 + [0.75] * 5), []),
        (rows(kl_of_old=[None, float("nan")] * 5, entropy_of_rollout=[None] * 10), []),
    ],
)
def test_rules_by_hand(history: list[dict[str, Any]], expected: list[tuple[int, str]]) -> None:
    assert said(history) == expected


@pytest.mark.parametrize(
    ("rewards", "advice"),
    [
        ([0.4] * 5 + [1.0] * 5, "stop, or take harder ones"),
        ([0.5] * 10, "another difficulty"),
        ([0.7, 0.2, 0.2] + [0.0] * 7, "the reward was 0.700: lower learning_rate"),
        ([-1.0] * 5 + [-0.95] * 5, "another difficulty"),
        ([-1.0] * 5 + [-2.0] * 5, "the reward was -1.000: lower learning_rate"),
    ],
)
def test_groups_that_agree_are_solved_too_hard_or_broken(rewards: list[float], advice: str) -> None:
    history = rows(frac_reward_zero_std=[0.5] * 5 + [1.0] * 5, reward=rewards)
    assert advice in Health(history[:-1]).update(history[-1])["groups_agree"]


def test_rewards_of_0_say_to_fine_tune_first() -> None:
    history = rows(frac_reward_zero_std=[1.0] * 5, reward=[0.0] * 5)
    assert "fine-tune first, as with `lfpo sft" in Health(history[:-1]).update(history[-1])["groups_agree"]


@pytest.mark.parametrize(("length", "clipped", "expected"), [(1.0, 0.0, 1), (1.0, 1.0, 0), (1.5, 0.0, 0)])
def test_completions_that_are_all_empty_are_told_at_once(length: float, clipped: float, expected: int) -> None:
    history = rows(completions_of_mean_length=[length] * 2, completions_of_clipped_ratio=[clipped] * 2)
    assert said(history) == [(0, "empty_completions")] * expected


def evaluation(greedy: float, threshold: float) -> dict[str, Any]:
    values = {"greedy/accuracy": greedy, "threshold/accuracy": threshold}
    values |= {f"{name}/low": values[f"{name}/accuracy"] - 0.06 for name in ("greedy", "threshold")}
    values |= {f"{name}/high": values[f"{name}/accuracy"] + 0.06 for name in ("greedy", "threshold")}
    return {f"eval/{name}": value for name, value in values.items()}


@pytest.mark.parametrize(
    ("last", "expected"),
    [
        (evaluation(0.6, 0.42), [(2, "threshold_slides")]),  # 8 points, more than the interval's half width of 6
        (evaluation(0.6, 0.45), []),  # 5 points: within the interval
        (evaluation(0.4, 0.3), []),  # greedy fell too, by less than the noise: not a matter of the threshold
        (evaluation(0.2, 0.1), [(2, "accuracy_falls")]),
    ],
)
def test_threshold_decoding_slides_while_greedy_rises(last: dict[str, Any], expected: list[tuple[int, str]]) -> None:
    assert said([evaluation(0.5, 0.5), {"reward": 1.0, "rewards/f/mean": 1.0}, last]) == expected


# `lfpo train sudoku-uniform` with 8 prompts, seed 0, every second iteration: accuracy and forwards on 200 problems.
FORWARDS_3E5 = [8.76, 7.57, 6.60, 5.92, 5.13, 4.50, 4.12, 3.80, 3.53]
FORWARDS_1E4 = [8.76, 6.26, 4.76, 3.94, 3.59, 3.19, 3.07, 2.96, 2.93]
SLIDES, FALLS = "threshold_slides", "accuracy_falls"
FORWARDS_3E4 = [8.76, 6.59, 5.36, 4.84, 4.24, 4.10, 4.38, 4.27, 4.21]


@pytest.mark.parametrize(
    ("accuracy", "forwards", "expected"),
    [
        ([0.7, 0.76, 0.735, 0.74, 0.76, 0.775, 0.78, 0.75, 0.75], FORWARDS_3E5, []),
        # 8.5 points below the best of iterations 2 and 4, half of whose interval is 6.1; then again after 66.5 %.
        ([0.7, 0.725, 0.725, 0.705, 0.67, 0.64, 0.665, 0.5, 0.545], FORWARDS_1E4, [(5, SLIDES), (7, SLIDES)]),
        ([0.7, 0.7, 0.72, 0.645, 0.56, 0.485, 0.415, 0.295, 0.43], FORWARDS_3E4, [(3, SLIDES), (6, FALLS)]),
        ([0.7, 0.76, 0.6], [8.8, 7.0, 7.5], []),  # it falls with more forwards: not a matter of rest
    ],
)
def test_canvases_that_rest_too_early(
    accuracy: list[float], forwards: list[float], expected: list[tuple[int, str]]
) -> None:
    lines = []
    for right, nfe in zip(accuracy, forwards, strict=True):
        half = 1.96 * (right * (1 - right) / 200) ** 0.5
        values = {"accuracy": right, "low": right - half, "high": right + half, "nfe": nfe}
        lines.append({f"eval/canvas/{name}": value for name, value in values.items()})
    assert said(lines) == expected


def evaluated(**right: int) -> dict[str, Any]:
    """An evaluation in which these samplers solve so many of 200 problems."""
    line: dict[str, Any] = {}
    for name, solved in right.items():
        low, high = wilson_interval(solved, 200)
        line |= {f"eval/{name}/accuracy": solved / 200, f"eval/{name}/low": low, f"eval/{name}/high": high}
    return line


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        # Imitation of right rollouts on 4x4 Sudoku at three times its learning rate. Rewards of training fell by 0.02.
        ([evaluated(greedy=180, threshold=180), {"reward": 0.67}, evaluated(greedy=136, threshold=104)], True),
        ([evaluated(greedy=180, threshold=180), evaluated(greedy=136, threshold=180)], False),  # of one sampler alone
        # Of 200 problems 180, then 142: 19 points, and 5 standard errors are sqrt(0.021^2 + 0.032^2) x 5 = 19.2.
        ([evaluated(greedy=180), evaluated(greedy=142)], False),
        ([evaluated(greedy=180), evaluated(greedy=140)], True),
        ([evaluated(greedy=100), evaluated(greedy=180), evaluated(greedy=136)], True),  # its best, not its start
        ([evaluated(greedy=200), evaluated(greedy=191)], False),  # 4.5 points
        ([evaluated(greedy=6), evaluated(greedy=0)], False),
        # A resumed run may have other eval samplers: those of the last evaluation count.
        ([evaluated(greedy=180, threshold=180), evaluated(threshold=100)], True),
        ([evaluated(greedy=180), {f"eval/greedy/{name}": float("nan") for name in ("accuracy", "low", "high")}], False),
    ],
)
def test_accuracy_that_falls_with_every_sampler(lines: list[dict[str, Any]], expected: bool) -> None:
    assert ("accuracy_falls" in [rule for _, rule in said(lines)]) == expected


def of_100(solved: int) -> dict[str, Any]:
    low, high = wilson_interval(solved, 100)
    return {f"eval/threshold/{k}": v for k, v in (("accuracy", solved / 100), ("low", low), ("high", high))}


@pytest.mark.parametrize(
    ("accuracies", "rewards", "expected"),
    [
        # A pretrained model from a weak base, trained with LFPO, and with one pass a batch.
        ((31, 16, 21), (0.15, 0.25), True),
        ((31, 24, 25), (0.21, 0.26), False),  # 6.5 points, within 2 errors of 5.5
        ((31, 17, 18), (0.18, 0.17), False),  # the reward did not grow
        ((31, 16), (0.15, 0.25), False),
        # 13 points, and 2 errors are hypot(0.046, 0.037 / 2, 0.040 / 2) x 2 = 10.7.
        ((31, 16, 20), (0.15, 0.25), True),
    ],
)
def test_a_reward_that_rises_alone(accuracies: tuple[int, ...], rewards: tuple[float, float], expected: bool) -> None:
    first, *later = map(of_100, accuracies)
    rows = [{"reward": rewards[0]} for _ in range(8)] + [{"reward": rewards[1]} for _ in range(8)]
    lines = [first, *rows[:8], *later[:-1], *rows[8:], later[-1]]
    assert ("reward_rises_alone" in [rule for _, rule in said(lines)]) == expected


def test_nothing_but_none_is_said_at_once_and_later_after_three() -> None:
    none, some = {"reward": 0.0}, {"reward": 0.0, "rewards/f/mean": 0.0}
    assert said([none]) == [(0, "no_reward")]
    assert said([some, none, none]) == []
    assert said([some, none, none, none]) == [(3, "no_reward")]
    assert said([{"reward": 0.0, "rewards/f/failed": 1.0}]) == []  # counted by the trainer
    # A resumed run that still gets nothing ends again; other rules are not said twice.
    assert "no_reward" in Health([none]).update(none)
    agreeing = rows(frac_reward_zero_std=[1.0] * 6)
    assert Health(agreeing, {"groups_agree"}).update(agreeing[0]) == {}


def nothing(prompts: list[str], completions: list[str], **columns: Any) -> list[None]:
    return [None] * len(prompts)


def same(prompts: list[str], completions: list[str], **columns: Any) -> list[float]:
    return [1.0] * len(prompts)


def test_a_run_without_any_reward_ends_and_its_notes_are_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = train_arguments(tmp_path, max_steps="9", reward_funcs="test_health.nothing", eval_steps="0")
    for step in (1, 2):  # and again when it is resumed
        assert main([*arguments, *(["--resume"] if step == 2 else [])]) == 2
        error = capsys.readouterr().err.splitlines()
        assert len(error) == 1 and f"stopped after iteration {step} by no_reward" in error[0], error
    assert [line.count("no_reward") for line in (tmp_path / "run/notes.jsonl").read_text().splitlines()] == [1, 1]


def test_stop_on_ends_the_run_with_a_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changes = {"max_steps": "9", "reward_funcs": "test_health.same", "eval_steps": "0"}
    assert main([*train_arguments(tmp_path, **changes), "--stop_on", "groups_agree"]) == 2
    printed = capsys.readouterr()
    assert "stopped after iteration 5 by groups_agree" in printed.err and "step-5 holds everything" in printed.err
    assert printed.out.count("note: in the last 5 iterations 100%") == 1


def test_a_rule_that_holds_is_said_again_only_where_it_has_no_note() -> None:
    """A run may be killed between a line of metrics and its note."""
    history = [evaluated(greedy=180), evaluated(greedy=100)]
    assert "accuracy_falls" in Health(history).update({})
    assert not Health(history, {"accuracy_falls"}).update({})


def test_the_evaluation_before_training_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is what a run that only falls is compared with."""
    monkeypatch.setattr(health, "RULES", {"no_signal": lambda history: "said; at once" if len(history) == 1 else ""})
    assert main(train_arguments(tmp_path)) == 0
    assert Run(tmp_path / "run").read_notes() == [{"step": 0, "rule": "no_signal", "text": "said; at once"}]
    assert "said; at once" in (tmp_path / "run/report.html").read_text()


def test_the_share_of_the_commonest_ending_by_hand():
    """Last lines 3, 3, 3, "" and 5: three of five."""
    texts = ["1+2=3\n#### 3", "#### 3\n", "x\n\n #### 3 \n\n", "", "#### 5"]
    assert share_of_commonest([endings(texts)]) == 3 / 5
