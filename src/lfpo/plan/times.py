"""How long an iteration and a whole run take, at least, and what a run costs."""

from dataclasses import dataclass

from lfpo.config.train import LFPOConfig
from lfpo.plan.estimate import Estimate

EFFICIENCY = 0.5  # speed of a whole iteration, relative to one large matrix product
# A layer's forward launches at least 30 kernels, and a launch takes 5 microseconds: a small model waits for them. An
# iteration of a model of 135 M parameters with 20 TFLOP took 0.6 s on an H200, where its products alone take 0.05.
LAYER_SECONDS = 30 * 5e-6


def seconds(estimate: Estimate, flop_rate: float) -> tuple[float, float, float]:
    """Seconds of an iteration's rollouts, of its update, and of both, at least, on GPUs of `flop_rate` FLOP/s each: the
    time of the arithmetic, or of launching the kernels where that is longer. An optimiser step takes as long as on its
    fullest rank. Ray workers sample on GPUs like these beside them, with max_staleness while the trainer updates."""
    workers = worker_gpus(estimate.args)
    rollout = estimate.rollout_flops / flop_rate / (workers or estimate.gpus)
    rollout = max(rollout, _launching(estimate, estimate.rollout_layers))
    update = estimate.update_flops / flop_rate / estimate.gpus * estimate.fullest
    update = max(update, _launching(estimate, estimate.update_layers))
    beside = bool(workers and estimate.args.engine.max_staleness)
    return rollout, update, max(rollout, update) if beside else rollout + update


def _launching(estimate: Estimate, layers: int) -> float:
    """Seconds that the kernels of so many layers take to launch. Not counted for a compiled forward, which launches
    fewer, and on a CPU, which calls them directly."""
    return 0.0 if estimate.device == "cpu" or estimate.args.rollout_compile else layers * LAYER_SECONDS


def worker_gpus(args: LFPOConfig) -> float:
    """GPUs of all Ray workers; one for each where they have none. 0 for another engine."""
    return args.engine.workers * (args.engine.gpus_per_worker or 1.0) if args.engine.name == "ray" else 0.0


@dataclass(frozen=True)
class WholeRun:
    """tokens: that are sampled in training, at most. cost: in the currency of the price, None without one."""

    training_hours: float
    evaluation_hours: float
    tokens: int
    cost: float | None


def whole_run(estimate: Estimate, flop_rate: float, price_per_hour: float | None) -> WholeRun:
    """A run from its first to its last iteration, at `flop_rate` FLOP/s of one GPU and a price of one GPU's hour. All
    forwards that the schedules allow are counted; loading, rewards, checkpoints and traffic between GPUs are not, so a
    run that does not stop its rollouts early takes this long at least."""
    args = estimate.args
    training = args.max_steps * seconds(estimate, flop_rate)[2] / 3600
    evaluation = estimate.evaluation_flops / flop_rate / estimate.gpus
    evaluation = max(evaluation, _launching(estimate, estimate.evaluation_layers)) / 3600
    gpus = estimate.gpus + worker_gpus(args)
    cost = None if price_per_hour is None else (training + evaluation) * gpus * price_per_hour
    return WholeRun(training, evaluation, args.max_steps * estimate.rollouts * estimate.completion, cost)


def duration(seconds: float) -> str:
    """Two digits or so, in the unit that suits."""
    if seconds < 99:
        return f"{seconds:.2g} s"
    return f"{seconds / 60:.0f} min" if seconds < 3570 else f"{seconds / 3600:.1f} h"
