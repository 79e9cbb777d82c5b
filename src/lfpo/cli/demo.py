"""`lfpo demo`: train the embedded model with LFPO in a few minutes and print results before and after."""

from lfpo.base.terminal import Terminal, fitted
from lfpo.config.train import LFPOConfig
from lfpo.report import write_report
from lfpo.report.data import evaluation_pairs
from lfpo.report.text import evaluation_table
from lfpo.train.rl import LFPOTrainer


def run_demo(config: LFPOConfig) -> None:
    """Train and print held-out results before and after."""
    trainer = LFPOTrainer(args=config)
    console = Terminal()
    console.print(
        f"LFPO trains the embedded model on {trainer.source.name}: {trainer.total_steps} iterations of "
        f"{config.prompts_per_iteration} prompts x {config.num_generations} rollouts. The base model was trained on "
        "flawed demonstrations. LFPO sees only a reward of 1 or 0 for each rollout.\n"
    )
    trainer.train()
    evaluated = evaluation_table(evaluation_pairs(trainer.run.read_metrics()))
    console.print(fitted(evaluated, console))
    for name, sampler in trainer.eval_samplers.items():
        if sampler == trainer.sampler:
            console.print(
                f"{name}: decoded as the rollouts are (temperature {sampler.temperature:g}, {sampler.rule_name} "
                "remasking), on held-out problems; `reward` above is on training problems."
            )
    minutes = trainer.run.read_metrics()[-1]["time/total"] / 60
    console.print(f"\n{minutes:.1f} minutes of training. Report: {write_report(trainer.run)}")
    console.print(
        f"Watch it solve a puzzle: lfpo sample --task sudoku --show_steps --model {trainer.run.dir}/model",
        soft_wrap=True,
    )
