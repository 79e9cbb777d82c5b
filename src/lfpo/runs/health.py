"""Says when a run learns nothing or goes wrong: rules over its metrics, each with a threshold and what to do.

A rule looks at all metrics so far and returns a sentence while it holds. `Health` passes the sentence on when the rule
begins to hold, and again only after it has ceased to.
"""

import math
import statistics
from collections.abc import Callable, Collection, Sequence

from lfpo.config.json import Json

Metrics = Json  # one line of metrics.jsonl
Rule = Callable[[Sequence[Metrics]], str]

RECENT = 5  # iterations whose mean is judged; one iteration alone is too noisy
WINDOW = 10  # iterations of a mean reward, where the run has twice as many
ALIKE = 0.95  # share of prompts without a signal: at 16 prompts an iteration, less than one has any
# Of the mean reward: relative, and in standard errors. All earlier windows are compared: over 100 iterations of a
# constant reward with noise 4 errors would speak in 13 % of the runs, 5 do in 1.5 %.
FALL, ERRORS = 0.1, 5.0
KL_OLD, KL_BASE = 0.5, 2.0  # nats a token. Healthy runs of the recipes stay below 0.3 and 0.2
LOW, HIGH = 0.1, 2.0  # entropy relative to its start
SLIDE = 0.05  # accuracy
Z = 1.96  # standard errors of half a 95 % interval, as in lfpo.eval.estimates, which this layer cannot import
SAME, GROWN = 0.5, 1.5  # share of completions with the most frequent ending, and relative to the start


class Health:
    """The rules that hold. history: the metrics of a resumed run. told: the rules that have a note there. One of these
    that still holds is not reported again, except no_reward, which ended that run."""

    def __init__(self, history: Sequence[Metrics] = (), told: Collection[str] = ()):
        self.history = list(history)
        self.holding = set(self._rules_met()) & set(told) - {"no_reward"}

    def update(self, metrics: Metrics) -> dict[str, str]:
        """Take one more line of metrics; returns the rules that begin to hold, with what to say."""
        self.history.append(metrics)
        holding = self._rules_met()
        # Only on a change: a rule that holds for hundreds of iterations is said once.
        began = {name: text for name, text in holding.items() if name not in self.holding}
        self.holding = set(holding)
        return began

    def _rules_met(self) -> dict[str, str]:
        return {name: text for name, rule in RULES.items() if (text := rule(self.history))}


def no_reward(history: Sequence[Metrics]) -> str:
    """Every reward function returned None for every rollout, in the first iteration or in three in a row."""
    nothing = [not any(key.startswith("rewards/") for key in m) for m in history if "reward" in m]
    if not nothing or not all(nothing[-3:]) or (len(nothing) < 3 and not nothing[0]):
        return ""
    return (
        "every reward function returned None for every rollout, so there is nothing to learn from; return a number "
        "where the function applies"
    )


def empty_completions(history: Sequence[Metrics]) -> str:
    """All completions of the first iteration are empty: each begins with the end-of-text token."""
    first: Metrics = next((m for m in history if "reward" in m), {})
    if first.get("completions/mean_length") != 1 or first.get("completions/clipped_ratio") != 0:
        return ""
    return (
        "all completions of the first iteration are empty, so there is nothing to learn from; where prompts are "
        "conversations, they must end before the answer"
    )


def groups_agree(history: Sequence[Metrics]) -> str:
    """Nearly all prompts got one reward for all of their rollouts, so that no rollout is better than another."""
    alike = _values(history, "frac_reward_zero_std")[-RECENT:]
    if len(alike) < RECENT or statistics.fmean(alike) < ALIKE:
        return ""
    rewards = _values(history, "reward")
    reward = statistics.fmean(rewards[-RECENT:])
    advice = "take prompts of another difficulty, more num_generations or a higher sampler.temperature, and look at "
    advice += "the completions"
    if reward > statistics.fmean(rewards[:RECENT]) + FALL:
        advice = "these prompts are solved: stop, or take harder ones"
    elif not any(rewards):
        advice = "no completion is right, and rewards cannot teach what never happens: fine-tune first, as with `lfpo "
        advice += "sft --model MODEL --data_file DEMONSTRATIONS.jsonl`, or take easier prompts"
    elif (highest := max(rewards[:RECENT])) - reward > 0.5 * abs(highest):
        advice = f"the reward was {highest:.3f}: lower learning_rate, and go on from an earlier checkpoint or the base"
    return (
        f"in the last {RECENT} iterations {statistics.fmean(alike):.0%} of the prompts got the same reward for all of "
        f"their rollouts (mean {reward:.3f}), so there is little to learn from; {advice}"
    )


def no_signal(history: Sequence[Metrics]) -> str:
    """Rewards differ within groups, and yet nothing is learned: no rollout has a signal, or the gradient is 0."""
    recent = [m for m in history if _finite(m.get("frac_reward_zero_std"))][-RECENT:]
    if len(recent) < RECENT or any(m["frac_reward_zero_std"] == 1 for m in recent):
        return ""
    if all(m.get("frac_signal") == 0 for m in recent):
        what = "no rollout has a signal"
    elif all(m.get("grad_norm") == 0 for m in recent):
        what = "the gradient is 0"
    else:
        return ""
    return (
        f"in the last {RECENT} iterations rewards differ within groups and {what}, so nothing is learned; compare the "
        "rewards with what the objective needs of them, and its knobs that leave rollouts out"
    )


def reward_falls(history: Sequence[Metrics]) -> str:
    """The mean reward of the last iterations is clearly below the best mean before."""
    rewards = _values(history, "reward")
    window = min(WINDOW, len(rewards) // 2)  # a run that breaks does so early, often within ten iterations
    if window < RECENT:
        return ""
    windows = [rewards[i : i + window] for i in range(len(rewards) - 2 * window + 1)]
    best, last = max(windows, key=statistics.fmean), rewards[-window:]
    before, now = statistics.fmean(best), statistics.fmean(last)
    error = math.sqrt((statistics.variance(best) + statistics.variance(last)) / window)
    if before - now <= max(FALL * abs(before), ERRORS * error):
        return ""
    return (
        f"the mean reward of {window} iterations fell from {before:.3f} to {now:.3f}; lower learning_rate, and go on "
        "from an earlier checkpoint"
    )


def kl_runs_away(history: Sequence[Metrics]) -> str:
    """The policy moves further in one iteration, or has moved further from its base, than a useful update does."""
    for key, limit, what in (("kl/old", KL_OLD, "the previous iteration"), ("kl/base", KL_BASE, "the base model")):
        values = _values(history, key)[-RECENT:]
        if len(values) == RECENT and statistics.fmean(values) > limit:
            return (
                f"KL to {what} is {statistics.fmean(values):.2f} nats a token ({key}, mean of {RECENT} iterations; "
                f"limit {limit:g}); lower learning_rate, or raise the objective's beta"
            )
    return ""


def entropy_runs_away(history: Sequence[Metrics]) -> str:
    """Rollouts have become nearly deterministic, or much more random, and the reward has not gained by it."""
    entropies, rewards = _values(history, "entropy/rollout"), _values(history, "reward")
    if len(entropies) < 2 * RECENT or not statistics.fmean(entropies[:RECENT]):
        return ""
    start, now = statistics.fmean(entropies[:RECENT]), statistics.fmean(entropies[-RECENT:])
    gained = statistics.fmean(rewards[-RECENT:]) - statistics.fmean(rewards[:RECENT])
    if LOW <= now / start <= HIGH or gained > 0:
        return ""
    advice = "all rollouts become alike: raise sampler.temperature, or lower learning_rate"
    if now > start:
        advice = "the policy comes apart: lower learning_rate, and go on from an earlier checkpoint"
    return f"entropy of the rollouts went from {start:.3f} to {now:.3f} nats a token without a higher reward; {advice}"


def threshold_slides(history: Sequence[Metrics]) -> str:
    """Accuracy of threshold decoding has fallen by more than its interval's half width since its best, while greedy
    decoding has not fallen; or that of canvases, whose steps have no threshold, while they take fewer forwards."""
    greedy, forwards = "eval/greedy/accuracy", "eval/canvas/nfe"
    if slid := _slid(history, "threshold", greedy):
        (before, best), (now, last) = slid
        if last >= best:
            return (
                f"threshold accuracy slid from {before:.1%} to {now:.1%} while greedy went from {best:.1%} to "
                f"{last:.1%}: tokens revealed together agree less; raise the eval sampler's threshold, or train on "
                "rollouts sampled with it"
            )
    if slid := _slid(history, "canvas", forwards):
        (before, best), (now, last) = slid
        if last < best:
            return (
                f"canvas accuracy slid from {before:.1%} to {now:.1%} while forwards went from {best:.1f} to "
                f"{last:.1f}: canvases come to rest too early; lower learning_rate or the objective's num_iterations, "
                "and go on from an earlier checkpoint"
            )
    return ""


def accuracy_falls(history: Sequence[Metrics]) -> str:
    """The accuracy of every eval sampler is below its best by more than 5 points and 5 standard errors.

    Rewards of training can hide it: in a run whose accuracy fell from 90 to 52 % they fell by 0.02.
    """
    ends = {name: _best_and_last(history, name) for name in _last_samplers(history)}
    if not ends or not all(end is not None and _fell(*end) for end in ends.values()):
        return ""
    found = ", ".join(f"{name} from {end[0][0]:.1%} to {end[1][0]:.1%}" for name, end in ends.items() if end)
    return f"accuracy fell with every eval sampler: {found}; lower learning_rate, and go on from an earlier checkpoint"


def reward_rises_alone(history: Sequence[Metrics]) -> str:
    """The reward of training has grown, and the accuracy of every eval sampler, as a mean of the last two evaluations,
    is below the first one by more than 5 points and 2 standard errors.

    So it was from a weak base, which lost 7 of 34 points on test problems while its rewards went from 0.15 to 0.25. The
    first evaluation is fixed, so fewer errors are asked for than from the best of many.
    """
    rewards = _values(history, "reward")
    if len(rewards) < 2 * RECENT or statistics.fmean(rewards[-RECENT:]) <= statistics.fmean(rewards[:RECENT]):
        return ""
    ends = {name: _first_and_last_two(history, name) for name in _last_samplers(history)}
    if not ends or not all(end and end[0] - end[1] > max(SLIDE, 2 * end[2]) for end in ends.values()):
        return ""
    found = ", ".join(f"{name} from {end[0]:.1%} to {end[1]:.1%}" for name, end in ends.items() if end)
    return (
        f"the reward of training grew while accuracy on held-out problems fell: {found} (mean of the last two); begin "
        "with a model that is right more often (lfpo sft), or take more or easier prompts"
    )


def _last_samplers(history: Sequence[Metrics]) -> list[str]:
    """The eval samplers of the last evaluation; a resumed run may have others than before."""
    evaluations = [[k.split("/")[1] for k in m if k.startswith("eval/") and k.endswith("/accuracy")] for m in history]
    return next(filter(None, reversed(evaluations)), [])


def _first_and_last_two(history: Sequence[Metrics], sampler: str) -> tuple[float, float, float] | None:
    """An eval sampler's first accuracy, the mean of its last two, and the standard error of the difference; None with
    fewer than three."""
    found = _accuracies(history, sampler)
    if len(found) < 3:
        return None
    first, *last = (found[0], *found[-2:])
    errors = [(high - low) / (2 * Z) for _, low, high in (first, *last)]
    # The mean of two has half of each one's error.
    return first[0], (last[0][0] + last[1][0]) / 2, math.hypot(errors[0], errors[1] / 2, errors[2] / 2)


def _fell(best: Sequence[float], last: Sequence[float]) -> bool:
    """Whether two accuracies with their intervals differ by more than noise. A constant accuracy does in at most 2 % of
    the runs with 26 evaluations of 16 problems, and in 0.1 % with 200 problems."""
    error = math.hypot(*((high - low) / (2 * Z) for _, low, high in (best, last)))
    return best[0] - last[0] > max(SLIDE, ERRORS * error)


def _slid(history: Sequence[Metrics], sampler: str, beside: str) -> tuple[tuple[float, float], ...]:
    """An eval sampler's accuracy and the metric `beside` it, at its best and at last, where it has fallen; else ()."""
    if (found := _best_and_last(history, sampler, beside)) is None:
        return ()
    (best, low, high, before), (last, _, _, now) = found
    return () if best - last <= max(SLIDE, (high - low) / 2) else ((best, before), (last, now))


def _best_and_last(history: Sequence[Metrics], sampler: str, *beside: str) -> tuple[list[float], list[float]] | None:
    """`_accuracies` of an eval sampler's most accurate and its last evaluation; None without any."""
    found = _accuracies(history, sampler, *beside)
    return (max(found, key=lambda values: values[0]), found[-1]) if found else None


def _accuracies(history: Sequence[Metrics], sampler: str, *beside: str) -> list[list[float]]:
    """Accuracy of an eval sampler, both ends of its interval and the metrics `beside` it, of each evaluation with them
    all."""
    names = [*(f"eval/{sampler}/{name}" for name in ("accuracy", "low", "high")), *beside]
    return [[m[name] for name in names] for m in history if all(_finite(m.get(name)) for name in names)]


def answers_alike(history: Sequence[Metrics]) -> str:
    """Completions of different prompts have come to end in the same line, and the reward has not gained by it.

    Where one answer is right for most prompts, the reward grows with the share. A task of two answers begins with a
    share of a half, and keeps it when it learns.
    """
    shares, rewards = _values(history, "completions/frac_same_ending"), _values(history, "reward")
    if len(shares) < 2 * RECENT or len(rewards) < 2 * RECENT:
        return ""
    start, now = statistics.fmean(shares[:RECENT]), statistics.fmean(shares[-RECENT:])
    gained = statistics.fmean(rewards[-RECENT:]) - statistics.fmean(rewards[:RECENT])
    largest = max(map(abs, rewards)) or 1.0  # the unit of the reward is not known; its own size is
    if now < SAME or now < GROWN * start or gained > (now - start) * max(largest, 1.0):
        return ""
    return (
        f"{now:.0%} of the completions now end in the same line, whatever the prompt ({start:.0%} at the start), and "
        "the reward has not gained as much: the policy drifts to one answer; begin with a model that is right more "
        "often (lfpo sft), take easier or more prompts, lower learning_rate, or set the objective's baseline to 1"
    )


_ALL = (
    no_reward,
    empty_completions,
    groups_agree,
    no_signal,
    answers_alike,
    reward_falls,
    kl_runs_away,
    entropy_runs_away,
    threshold_slides,
    accuracy_falls,
    reward_rises_alone,
)
RULES: dict[str, Rule] = {rule.__name__: rule for rule in _ALL}  # by name, as in stop_on


def _values(history: Sequence[Metrics], key: str) -> list[float]:
    return [m[key] for m in history if _finite(m.get(key))]


def _finite(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)
