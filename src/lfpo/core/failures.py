"""What fails in training, and ends it after too many times in a row: reward functions, environments and updates."""

from lfpo.config.errors import CannotGoOn
from lfpo.config.json import Json
from lfpo.core.batch import Batch
from lfpo.core.observer import Observer

MAX_FAILED = 5  # batches in a row for which a reward function fails, after which training stops
MAX_SKIPPED = 5  # updates in a row with a non-finite loss or gradient, after which training stops


def count_failures(state: Json, batch: Batch, iteration: int, observer: Observer) -> None:
    """Report a reward function when it begins to fail; after MAX_FAILED batches in a row without any of its rewards
    stop. A failure on some of the ranks costs only their rewards.

    state: its `failing` holds, for each function that fails, for how many batches in a row all ranks lost its rewards.
    """
    kind = "environment" if any(turn.number for turn in batch.turns) else "reward function"
    before, failed = state["failing"], batch.failed
    lost = {name: batch.metrics[f"rewards/{name}/failed"] for name in failed}
    failing = {name: (before.get(name, 0) + 1) * (lost[name] == 1) for name in failed}
    state["failing"] = failing
    for name, times in failing.items():
        if name not in before:
            where = "" if lost[name] == 1 else f" on {lost[name]:.0%} of the ranks"
            observer.note(
                f"{kind} {name!r} failed in iteration {iteration + 1}{where}: {failed[name]}; "
                "its rewards of that batch count as None"
            )
        if times >= MAX_FAILED:
            raise CannotGoOn(f"{kind} {name!r} failed for {times} batches in a row, last with: {failed[name]}")


def count_skipped(state: Json, run_dir: str, number: int) -> None:
    """Count an optimiser step that was not taken; after MAX_SKIPPED in a row stop. state: skipped, skipped_in_a_row.
    Raises CannotGoOn, which names run_dir and the step."""
    state["skipped"] += 1
    state["skipped_in_a_row"] += 1
    if state["skipped_in_a_row"] >= MAX_SKIPPED:
        state["skipped_in_a_row"] = 0  # in the checkpoint: a resumed run may skip as often again
        raise CannotGoOn(
            f"{run_dir}: loss or gradient was not finite {MAX_SKIPPED} times in a row (optimiser step {number + 1}); "
            "lower learning_rate; if no update was applied at all, load a checkpoint whose weights are finite"
        )
