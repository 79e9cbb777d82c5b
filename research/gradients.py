"""Compares the gradients of objectives with the policy gradient, on rollouts of the untrained model.

    python -m research.gradients sudoku words

Rollouts draw one token a step in random order, so the likelihood of a rollout is exact: the product of its tokens'
probabilities at their own steps. The reference is the gradient of the expected reward from such likelihoods (AGRPO with
a sample for every step, or --samples of them, advantages over the group's mean), on rollouts of other prompts.
successor@successor64 stands for the recipe successor with the task successor64.

cosine: between the expectations of an objective's gradient and of the reference, over all weights. Each inner product
joins gradients of different prompts, so noise does not bias it. gradient noise: variance of one batch's gradient over
the square of its mean. undetermined: share of the sum of |2 r - 1| w (1 - p(y)), the size of a target's gradient in its
own logit, that stands on targets with p_old(y) below 1/2 (LFPO and DTM).
"""

import argparse
from collections.abc import Iterator
from typing import Any

import torch

from lfpo.config.build import build, load_yaml, merge
from lfpo.config.train import LFPOConfig
from lfpo.core.learner import accumulate_gradients
from lfpo.core.model import BASE, OLD
from lfpo.core.observer import Observer
from lfpo.core.predictions import Predictions
from lfpo.objectives import make_objective
from lfpo.train.rl import LFPOTrainer

PUBLISHED = {"name": "lfpo", "timesteps": 4, "num_iterations": 1, "states": "stratified", "target_weight": "equal"}
PUBLISHED |= {"baseline": 1.0, "deviation": "batch", "clip": 2.0}
NOISED, P_OLD = {"states": "noised"}, {"target_weight": "p_old"}
LOWER = {"baseline": 0.8, "deviation": "range", "clip": 0.8}
OBJECTIVES: dict[str, dict[str, Any]] = {
    "LFPO, replayed": PUBLISHED,
    "LFPO, replayed, p_old": PUBLISHED | P_OLD,
    "LFPO, noised": PUBLISHED | NOISED,
    "LFPO, noised, p_old": PUBLISHED | NOISED | P_OLD,
    "LFPO, noised, baseline 0.8": PUBLISHED | NOISED | LOWER,
    "LFPO": PUBLISHED | NOISED | LOWER | P_OLD,
    "DTM": {"name": "dtm"},
    "UniGRPO": {"name": "unigrpo", "num_iterations": 4},
    "coupled-GRPO": {"name": "coupled_grpo"},
    "AGRPO, 4 samples": {"name": "agrpo", "mc_samples": 4},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="+")
    parser.add_argument("--batches", type=int, default=12)
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--objectives", default=";".join(OBJECTIVES), help="names of the table, separated by ;")
    parser.add_argument("--samples", type=int, default=0, help="of each rollout in the reference; 0: every step")
    args = parser.parse_args()
    for task in args.tasks:
        print(f"{task}: {args.batches} batches of {args.prompts} prompts x 8 rollouts", flush=True)
        print("| objective | cosine | gradient noise | undetermined |\n| --- | ---: | ---: | ---: |")
        chosen = {name: OBJECTIVES[name] for name in args.objectives.split(";")}
        for row in compare(task, chosen, args.batches, args.prompts, args.samples):
            print("| " + " | ".join(row) + " |", flush=True)


def compare(
    task: str, objectives: dict[str, dict[str, Any]], batches: int, prompts: int, samples: int
) -> Iterator[list[str]]:
    recipe, _, length = task.partition("@")
    values = merge(load_yaml(recipe), {"task": length} if length else {})
    values = merge(values, {"prompts_per_iteration": prompts, "num_generations": 8, "threads": 1, "seed": 5})
    values = merge(
        values, {"sampler": {"temperature": 1.0, "remasking": "random", "threshold": None}, "output_dir": "-"}
    )
    trainer = LFPOTrainer(args=build(LFPOConfig, values))
    trainer.policies.setdefault(BASE, trainer.reference)
    sampled = [trainer.algorithm.sample_and_score(i, Observer()) for i in range(batches)]
    steps = samples or int(max(b.trajectory.scheduled_steps.max() for b in sampled))
    reference = gradients(trainer, sampled, {"name": "agrpo", "mc_samples": steps, "step_distribution": "uniform"})
    for label, settings in objectives.items():
        own = gradients(trainer, sampled, settings)
        square, noise = norms(own)
        cosine = cross(own, reference) / (square * norms(reference)[0]) ** 0.5
        share = f"{undetermined(trainer, sampled[0], settings):.2f}" if settings["name"] in ("lfpo", "dtm") else ""
        yield [label, f"{cosine:.2f}", f"{noise:.1f}", share]


def gradients(trainer: Any, sampled: list[Any], settings: dict[str, Any]) -> torch.Tensor:
    """The gradient on each batch at theta = theta_old, [batches, parameters], passes joined."""
    objective, found = make_objective(settings), []
    for batch in sampled:
        signal = objective.signal(batch.reward_R, batch.group_R)
        trainer.model.train()
        trainer.model.zero_grad()
        for inner in range(objective.num_iterations):
            views = objective.views(batch.trajectory, signal, [turn.seed for turn in batch.turns], inner)
            accumulate_gradients(objective, trainer.policies, views, signal, update_tokens=4096)
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in trainer.model.parameters()]
        found.append(torch.cat([g.flatten() for g in grads]))
    trainer.model.zero_grad()
    return torch.stack(found)


def cross(a: torch.Tensor, b: torch.Tensor) -> float:
    """The inner product of two mean gradients, over pairs of different batches."""
    inner = a.double() @ b.double().T
    n = len(a)
    return float(inner.sum() - inner.diagonal().sum()) / (n * (n - 1))


def norms(a: torch.Tensor) -> tuple[float, float]:
    """|E g|^2, and the variance of one batch's gradient over it."""
    square = cross(a, a)
    return square, float(a.double().square().sum(-1).mean()) / square - 1


@torch.no_grad()
def undetermined(trainer: Any, batch: Any, settings: dict[str, Any]) -> float:
    """See the module's docstring."""
    objective = make_objective(settings)
    signal = objective.signal(batch.reward_R, batch.group_R)
    low = total = 0.0
    for inner in range(objective.num_iterations):
        predictions = Predictions(
            objective.views(batch.trajectory, signal, [turn.seed for turn in batch.turns], inner), trainer.policies
        )
        p_T = predictions.logp(OLD).exp()
        signal_T = predictions.at_targets(signal)
        size_T = (signal_T if settings["name"] == "dtm" else 2 * signal_T - 1).abs() * predictions.weight_T * (1 - p_T)
        if settings.get("target_weight") == "p_old":
            size_T = size_T * p_T
        low += float(size_T[p_T < 0.5].sum())
        total += float(size_T.sum())
    return low / total


if __name__ == "__main__":
    main()
