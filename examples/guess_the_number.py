"""An environment with turns: guess a number from 1 to 3; a hint says larger or smaller; guess again.

`python examples/guess_the_number.py [SEED]` takes a minute of one core. Demonstrations of random guesses that agree
with the hints teach the embedded model to play. Training has to find out that 2 comes first, the only way to be always
right. With 3 TURNS the number is from 1 to 7, and the way is binary search.
"""

import json
import random
import sys
from pathlib import Path

from lfpo import LFPOConfig, LFPOTrainer, SamplerConfig
from lfpo.config.sft import SFTConfig
from lfpo.train.sft import train_sft

SEED = int(sys.argv[1]) if len(sys.argv) > 1 else 0
TURNS = 2
HIGHEST = 2**TURNS - 1
PROMPT = f"Guess 1 to {HIGHEST}\n"
GUESSES = [str(number) for number in range(1, HIGHEST + 1)]


class Guess:
    """The reward of an episode is 1 if a guess is right, else 0."""

    def reset(self, row, seed):
        """row: of the data, with its columns. seed: for an environment that draws something; this one does not."""
        self.secret = row["secret"]

    def step(self, text):
        """The reply that the model reads next, the reward, and whether the episode is over."""
        if text not in GUESSES:
            return "\nno guess\n", 0.0, True
        if int(text) == self.secret:
            return "\nright\n", 1.0, True
        return f"\n{'larger' if self.secret > int(text) else 'smaller'}\n", 0.0, False


def demonstration(rng):
    """A conversation that breaks off before a guess, and this guess: random, but as the hints allow."""
    game, prompt, left = Guess(), PROMPT, GUESSES
    game.reset({"secret": rng.randint(1, HIGHEST)}, seed=0)
    for _ in range(rng.randrange(TURNS)):
        guess = rng.choice(left)
        reply, _, done = game.step(guess)
        if not done:
            prompt += guess + reply
            left = [number for number in left if (number > guess) == ("larger" in reply) and number != guess]
    return {"prompt": prompt, "completion": rng.choice(left)}


folder = Path(f"runs/guess-{SEED}")
rng = random.Random(SEED)
folder.mkdir(parents=True, exist_ok=True)
lines = [json.dumps(demonstration(rng)) for _ in range(2000)]
(folder / "demonstrations.jsonl").write_text("\n".join(lines))
base = train_sft(
    SFTConfig(
        output_dir=str(folder / "sft"),
        model="embedded",
        data_file=str(folder / "demonstrations.jsonl"),
        gen_length=2,
        steps=60,
        learning_rate=5e-4,
        seed=SEED,
        threads=1,
    )
)

rows = [{"prompt": PROMPT, "secret": secret} for secret in range(1, HIGHEST + 1)]
args = LFPOConfig(
    output_dir=str(folder / "rl"),
    model=str(base),
    environment=f"{__name__}:Guess",
    max_turns=TURNS,
    sampler=SamplerConfig(gen_length=2, temperature=1.0),
    eval_samplers={"greedy": SamplerConfig()},
    # The first guess is settled by small differences, so learn slowly, and do not imitate what is right by luck.
    objective={"name": "lfpo", "num_iterations": 2, "baseline": 1.0},
    learning_rate=1e-4,
    prompts_per_iteration=HIGHEST,
    num_generations=16,
    max_steps=20,
    eval_steps=10,
    seed=SEED,
    threads=1,
)
trainer = LFPOTrainer(args=args, train_dataset=rows, eval_dataset=rows)
trainer.train()
metrics = trainer.run.read_metrics()
sampled = [row["reward"] for row in metrics if "reward" in row]
greedy = [row["eval/greedy/reward"] for row in metrics if "eval/greedy/reward" in row]
print(
    f"sampled episodes: {sampled[0]:.2f} at first, {sampled[-1]:.2f} at last; greedy: {greedy[0]:.2f}, {greedy[-1]:.2f}"
)
