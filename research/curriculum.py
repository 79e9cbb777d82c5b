"""Which prompt comes next: uniform draws beside draws by success so far and beside easy prompts first.

    python -m research.curriculum words countdown --workers 2

A fixed set of rows is seen several times in a run, as a data set is. Per task and way of drawing: area under the
frontier on tuning problems, per seed. Everything else is the comparison's setting (research/best-lfpo.yaml).
"""

import argparse
import json
import multiprocessing
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from lfpo.core.batch import Batch
from lfpo.core.rng import python_rng
from lfpo.prompts.sources import in_epochs
from lfpo.prompts.tasks import Row, Task, get_task
from research.study import measured, training_config

WAYS = ("uniform", "success", "unsolved", "easy")
EASE = {"words": lambda row: len(row["steps"]), "countdown": lambda row: sum(row["numbers"]) != row["target"]}


class Draws:
    """The stream of training rows of a run: `way` decides which rows an iteration has.

    success: with probability proportional to p (1 - p) + 0.05, p the share of right completions when the row was last
    drawn, 1/2 before. unsolved: rows in epochs, without those whose last completions were all right. easy: sorted by
    EASE once, then in epochs.
    """

    def __init__(self, way: str, task: str, rows: list[Row], n_prompts: int, seed: int):
        self.way, self.rows, self.n, self.seed = way, rows, n_prompts, seed
        self.rate = [0.5] * len(rows)
        self.in_epochs = in_epochs(range(len(rows)), seed)
        self.sorted = sorted(range(len(rows)), key=lambda i: EASE[task](rows[i]))  # stable
        self.drawn: dict[int, list[int]] = {}
        self.next = 0

    def train_row(self, index: int) -> Row:
        iteration, place = divmod(index, self.n)
        if iteration not in self.drawn:
            self.drawn[iteration] = self.draw(iteration)
        return self.rows[self.drawn[iteration][place]]

    def draw(self, iteration: int) -> list[int]:
        chosen: list[int] = []
        if self.way == "success":
            rng, left = python_rng("curriculum", self.seed, iteration), list(range(len(self.rows)))
            while len(chosen) < self.n:
                weights = [self.rate[i] * (1 - self.rate[i]) + 0.05 for i in left]
                chosen.append(left.pop(rng.choices(range(len(left)), weights)[0]))
            return chosen
        if self.way == "easy" and (iteration + 1) * self.n <= len(self.rows):
            return self.sorted[iteration * self.n : (iteration + 1) * self.n]
        begin = self.next
        while len(chosen) < self.n:
            i, self.next = self.in_epochs(self.next), self.next + 1
            if self.way != "unsolved" or self.rate[i] < 1 or self.next - begin > len(self.rows):  # all are solved
                chosen.append(i)
        return chosen

    def learn(self, iteration: int, batch: Batch) -> None:
        for i, rewards in zip(self.drawn[iteration], batch.reward_R.view(self.n, -1), strict=True):
            self.rate[i] = float(rewards.mean())


def run(job: tuple[str, str, int, int, dict[str, Any]]) -> dict[str, Any]:
    import torch

    from lfpo.compare.cell import frontier
    from lfpo.compare.statistics import frontier_area
    from lfpo.train.rl import LFPOTrainer

    name, way, seed, n_rows, study = job
    torch.set_num_threads(1)
    task = get_task(name)
    assert isinstance(task, Task)
    own = {"learning_rate": 2e-4, "objective": {"name": "lfpo"}}
    cell = {"task": name, "label": way, "config": own, "seed": seed, "tuning": True}
    with tempfile.TemporaryDirectory() as folder:
        trainer = LFPOTrainer(args=training_config(cell, study, folder))
        rows = [task.row("train", i, seed) for i in range(n_rows)]
        draws = Draws(way, name, rows, trainer.args.prompts_per_iteration, seed)
        trainer.source = replace(trainer.source, train_row=draws.train_row)
        trainer.log_rollouts = lambda iteration, batch, *_: draws.learn(iteration, batch)  # type: ignore[method-assign]
        trainer.train()
        reward = json.loads((Path(folder) / "metrics.jsonl").read_text().splitlines()[-1]).get("reward")
    points = frontier(trainer.model, trainer.tokenizer, trainer.args, measured(cell, study, trainer.args))
    area = 100 * frontier_area(points, task.gen_length)
    return {"task": name, "way": way, "seed": seed, "area": round(area, 1), "last reward": reward}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="+", choices=list(EASE))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--rows", type=int, default=96)
    parser.add_argument("--workers", type=int, default=1)
    args = parser.parse_args()
    study = yaml.safe_load(Path("research/best-lfpo.yaml").read_text())
    jobs = [(task, way, seed, args.rows, study) for seed in args.seeds for task in args.tasks for way in WAYS]
    with multiprocessing.get_context("spawn").Pool(args.workers, maxtasksperchild=1) as pool:
        for found in pool.imap_unordered(run, jobs):
            print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
