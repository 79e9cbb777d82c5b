"""Arguments of a short `lfpo train`."""

from pathlib import Path


def train_arguments(folder: Path, **changes: str) -> list[str]:
    settings = {"output_dir": str(folder / "run"), "model": "embedded", "task": "choice"}
    settings |= {"max_steps": "1", "prompts_per_iteration": "2", "num_generations": "2"}
    settings |= {"optimizer_steps_per_iteration": "1", "eval_size": "4"}
    settings |= {"objective.num_iterations": "1"}
    return ["train", *(x for k, v in {**settings, **changes}.items() for x in (f"--{k}", v))]
