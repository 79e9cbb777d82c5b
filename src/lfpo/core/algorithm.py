"""Algorithm 1 of the LFPO paper (arXiv 2603.01563): an iteration samples and scores, learns, and moves theta_old."""

import time
from dataclasses import dataclass

import torch

from lfpo.config.json import Json
from lfpo.core.batch import Batch, RolloutSource
from lfpo.core.batch_metrics import gathered
from lfpo.core.failures import count_failures
from lfpo.core.learner import Learner
from lfpo.core.observer import Observer


@dataclass(frozen=True)
class Algorithm:
    """What an iteration is made of. lfpo.train.rl.LFPOTrainer makes the parts, and runs the iterations.

    rollouts: gives scored rollouts: `generations` for each of `prompts` prompts an iteration, on all ranks together.
    learner: of theta.
    state: counters that checkpoints hold, changed in place: seconds, skipped, failing (see count_failures).
    """

    rollouts: RolloutSource
    prompts: int
    generations: int
    learner: Learner
    state: Json

    def iterate(self, iteration: int, observer: Observer) -> tuple[Batch, torch.Tensor, Json]:
        """One iteration of Algorithm 1. theta changes in phase 2 only, theta_old in phase 3 only.

        Returns the batch, what the loss took in place of its rewards (signal_R), and metrics.
        """
        learner, started = self.learner, time.perf_counter()
        # Phase 1: each rank samples N rollouts for each of its prompts from theta_old, and scores them.
        batch = self.sample_and_score(iteration, observer)
        signal_R = learner.signal(batch, iteration)
        # Phase 2: theta learns from them, against theta_old.
        update_started = time.perf_counter()
        learned = learner.update(batch, signal_R, iteration, observer)
        # Phase 3: theta_old follows theta.
        learner.move_old()
        if torch.cuda.is_available():
            torch.cuda.synchronize()  # the clock must not stop while the GPU still works
        now = time.perf_counter()
        self.state["seconds"] += now - started
        times = {"time/update": now - update_started, "time/total": self.state["seconds"]}
        return batch, signal_R, {**batch.metrics, **learned, "skipped_updates": self.state["skipped"], **times}

    def sample_and_score(self, iteration: int, observer: Observer) -> Batch:
        """Phase 1: scored rollouts of theta_old, with max_staleness of an earlier one, for the iteration's prompts."""
        with observer.interruptible_work():  # nothing is lost if a request to stop ends it
            batch = gathered(self.rollouts.roll(iteration, observer), self.prompts, self.generations)
            if batch.failed or self.state["failing"]:
                count_failures(self.state, batch, iteration, observer)
        return batch
