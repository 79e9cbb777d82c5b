"""The same algorithm, diffu-GRPO, in lfpo's trainer."""

from benchmarks.peers.turn import prompts, report, rewards, settings, wait
from lfpo.config.build import build
from lfpo.config.train import LFPOConfig
from lfpo.models import load_model, load_tokenizer
from lfpo.train.rl import LFPOTrainer


def main() -> None:
    asked = settings()
    values = {
        "output_dir": "-",
        "prompts_per_iteration": asked.prompts,
        "num_generations": asked.generations,
        "optimizer_steps_per_iteration": 1,
        "max_steps": asked.turns,
        "objective": {"name": "diffu_grpo", "num_iterations": asked.passes, "beta": 0.04 if asked.lora else 0.0},
        "sampler": {
            "gen_length": asked.tokens,
            "steps": asked.steps,
            "block_length": asked.block,
            "temperature": 0.9,
        },
        "lora": {"r": 16, "lora_alpha": 32} if asked.lora else None,
        "learning_rate": 1e-5,
        "log_completions": False,
        "threads": 1,
    }
    model, tokenizer = load_model(asked.folder / "lfpo"), load_tokenizer(asked.folder / "lfpo")
    args = build(LFPOConfig, values)
    trainer = LFPOTrainer(model, rewards, args=args, train_dataset=prompts(asked), tokenizer=tokenizer)
    for turn in range(asked.turns):
        wait()
        metrics = trainer.run_iteration(turn)
        report(metrics["time/rollout"], metrics["time/update"] + metrics.get("time/reward", 0.0))


if __name__ == "__main__":
    main()
