"""The charts of training metrics, as a table, and the looks of lines. The page, `--text` and `--figures` read it."""

from dataclasses import dataclass

# The colours of Okabe and Ito, which colour-blind readers can tell apart; STYLES change when the colours repeat.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C6D31")
STYLES = ("-", "--", ":")
SHARE = "share"  # the unit of values in [0, 1] that the page shows in percent


@dataclass(frozen=True)
class Line:
    """One line of a chart.

    key: in metrics.jsonl. name: in the legend. colour: index into COLOURS (page.js has the same), modulo its length.
    """

    key: str
    name: str
    colour: int = 0
    dashed: bool = False


@dataclass(frozen=True)
class Chart:
    """One chart over iterations. It is shown where a run has at least one value of one of its lines.

    unit: of the y axis, "" for none. note: one sentence that says what the chart tells. from_zero: the y axis starts at
    0 or below. stacked: the lines are drawn on top of each other, as areas.
    """

    title: str
    unit: str
    note: str
    lines: tuple[Line, ...]
    from_zero: bool = True
    stacked: bool = False


# fmt: off
SIGNAL = (
    Chart("Groups with equal rewards", SHARE, "Share of prompts whose rollouts all earn the same: little to learn.",
          (Line("frac_reward_zero_std", "groups", 1),)),
    Chart("Completion length", "tokens", "Up to and including the first end-of-sequence token.",
          (Line("completions/mean_length", "mean", 2),)),
    Chart("Loss", "", "Its level depends on the states drawn: watch the reward.",
          (Line("loss", "loss"),), from_zero=False),
    Chart("Gradient norm", "", "Before clipping, mean over the iteration's steps.",
          (Line("grad_norm", "norm", 3),)),
    Chart("Time of an iteration", "s", "How rollout, reward and update share it.",
          (Line("time/rollout", "rollout"), Line("time/reward", "reward", 1), Line("time/update", "update", 2)),
          stacked=True),
)
POLICY = (
    Chart("KL to theta_old", "nats", "How far the policy is from the one that sampled the rollouts.",
          (Line("kl/old", "KL"),)),
    Chart("KL to the base", "nats", "How far training has moved the policy from the base model.",
          (Line("kl/base", "KL", 3),)),
    Chart("Entropy", "nats", "Near 0, the policy samples nearly the same rollout each time.",
          (Line("entropy/targets", "at the targets"), Line("entropy/rollout", "in the rollout", 1))),
    Chart("Probability of target tokens", "", "Solid above dashed: the updates make these tokens more likely.",
          (Line("p_target/good", "good"), Line("p_target_old/good", "good, old", dashed=True),
           Line("p_target/bad", "bad", 1), Line("p_target_old/bad", "bad, old", 1, dashed=True)), from_zero=False),
    Chart("Ratio", "", "Probability under the current policy over that under theta_old.",
          (Line("ratio/mean", "mean", 2),), from_zero=False),
    Chart("Clipped ratios", SHARE, "Share of ratios that the clip takes out of the gradient.",
          (Line("ratio/clipped", "ratios", 2),)),
    Chart("Saturated negatives", SHARE, "Share of bad rollouts' targets with pi-(y) > 0.95: almost no gradient.",
          (Line("negatives/saturated", "targets", 1),)),
)
# fmt: on


def reward_parts(metrics: dict[str, list[float | None]]) -> Chart:
    keys = [k for k in metrics if k.startswith("rewards/") and k.endswith("/mean")]
    lines = tuple(Line(k, k.removeprefix("rewards/").removesuffix("/mean"), i) for i, k in enumerate(keys))
    return Chart("Reward parts", "", "Mean of each reward function, unweighted.", lines)


def shown(chart: Chart, metrics: dict[str, list[float | None]]) -> list[Line]:
    """The lines of a chart that have at least one value."""
    return [line for line in chart.lines if any(v is not None for v in metrics.get(line.key, []))]
