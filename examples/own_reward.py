"""Train the embedded model on your own prompts with your own reward: `python examples/own_reward.py`."""

from pathlib import Path

from lfpo import LFPOConfig, LFPOTrainer, SamplerConfig


def plain_sum(prompts, completions, numbers, **columns):
    """1 where the answer is the row's numbers joined by +, in any order, else 0. `numbers` is a column of the file."""
    return [float(sorted(text.split("+")) == sorted(given)) for text, given in zip(completions, numbers, strict=True)]


args = LFPOConfig(
    output_dir="runs/own-reward",
    model="embedded",
    data_file=str(Path(__file__).with_name("prompts.jsonl")),
    sampler=SamplerConfig(gen_length=8, temperature=1.0),
    objective={"name": "lfpo", "timesteps": 2},
    prompts_per_iteration=8,
    max_steps=12,
)
trainer = LFPOTrainer(reward_funcs=plain_sum, args=args)
folder = trainer.train()
rewards = [row["reward"] for row in trainer.run.read_metrics() if "reward" in row]
print(f"mean reward {sum(rewards[:3]) / 3:.2f} at the start, {sum(rewards[-3:]) / 3:.2f} at the end; model in {folder}")
