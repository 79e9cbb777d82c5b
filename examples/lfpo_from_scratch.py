"""LFPO (arXiv 2603.01563, Algorithm 1) from prompts to the averaged weights, on one page of plain torch.

    python examples/lfpo_from_scratch.py

It trains the embedded masked diffusion model, 1.4 M parameters, on 4x4 Sudoku in a minute or two on one CPU thread.
Model, tokenizer and task come from lfpo. `lfpo train` computes the same losses (tests/core/test_from_scratch.py), for
large models, several GPUs and completions of any length.

Letters of shapes: R rollouts, P prompt tokens, C completion tokens, V tokens of the vocabulary, T targets of the loss.
"""

import argparse
import copy
import math
import random

import torch
from torch.nn import functional as F

from lfpo import load_model, load_tokenizer
from lfpo.prompts.tasks import get_task

ITERATIONS, PROMPTS, ROLLOUTS = 12, 16, 8  # each iteration: 16 prompts, 8 rollouts of each
PASSES, BLOCKS = 4, 4  # passes through an iteration's rollouts, and optimiser steps in each pass
LEARNING_RATE, MAX_GRAD_NORM, AVERAGE_DECAY = 2e-4, 1.0, 0.8
BETA = 0.5  # how far the implicit policies pi+ and pi- stand from theta_old
BASELINE, CLIP = 0.8, 0.8  # share of the group's mean reward that is subtracted; bound of the advantage
THRESHOLD, CAREFUL = 0.9, 0.98  # a forward reveals all tokens that are at least so probable; CAREFUL in evaluation only


@torch.no_grad()
def denoise(model, prompts_RP, length, temperature, threshold=THRESHOLD):
    """Complete prompts from all masks, several tokens a forward. Returns tokens [R, C] and forwards [R]."""
    rows, width = prompts_RP.shape
    tokens_RC = torch.full((rows, length), model.mask_id)
    forwards_R = torch.zeros(rows)
    while (masked_RC := tokens_RC == model.mask_id).any():
        z_RCV = model(torch.cat([prompts_RP, tokens_RC], dim=1))[:, width:].clone()
        z_RCV[..., model.mask_id] = -torch.inf  # a mask is never drawn
        p_RCV = z_RCV.softmax(-1)
        drawn_RC = p_RCV.argmax(-1)
        if temperature:
            sharpened = (z_RCV / temperature).softmax(-1).flatten(0, 1)
            drawn_RC = torch.multinomial(sharpened, 1).view(rows, length)
        confidence_RC = p_RCV.gather(-1, drawn_RC[..., None]).squeeze(-1).masked_fill(~masked_RC, -1.0)
        surest_RC = F.one_hot(confidence_RC.argmax(-1), length).bool()  # at least one token a forward
        reveal_RC = masked_RC & (surest_RC | (confidence_RC >= threshold))
        tokens_RC = torch.where(reveal_RC, drawn_RC, tokens_RC)
        forwards_R += masked_RC.any(-1)
    return tokens_RC, forwards_R


def signals(reward_R):
    """Rewards of rollouts, those of a prompt side by side, as r in [0, 1]: above 1/2 pulls, below it pushes away."""
    reward_GN = reward_R.view(-1, ROLLOUTS)
    advantage_GN = reward_GN - BASELINE * reward_GN.mean(1, keepdim=True)
    return (0.5 + advantage_GN.clamp(-CLIP, CLIP) / (2 * CLIP)).flatten()


def random_masks(tokens_RC, eos_id, rng):
    """A noised state of each rollout: masks at 1 to C positions, drawn anew in each pass. Returns where masks are and
    which of them are targets, up to the first end-of-sequence token; bool [R, C]."""
    rows, length = tokens_RC.shape
    size_R = torch.randint(1, length + 1, (rows, 1), generator=rng)
    order_RC = torch.rand(rows, length, generator=rng).argsort(-1).argsort(-1)
    masked_RC = order_RC < size_R
    is_eos_RC = tokens_RC == eos_id
    return masked_RC, masked_RC & (is_eos_RC.cumsum(-1) - is_eos_RC.long() == 0)


def rectified_loss(z_TV, z_old_TV, y_T, r_T):
    """The losses [T] of Eq. 8 to 10 with the sampled token as target, weighted by theta_old's probability of it:

    -p_old(y) [r log pi+(y) + (1 - r) log pi-(y)] / beta
    pi+ = softmax(z_old + beta (z - z_old)), pi- = softmax(z_old - beta (z - z_old))
    """

    def of_target(values_TV):
        return values_TV.gather(1, y_T[:, None]).squeeze(1)

    plus_T = of_target((z_old_TV + BETA * (z_TV - z_old_TV)).log_softmax(-1))
    minus_T = of_target((z_old_TV - BETA * (z_TV - z_old_TV)).log_softmax(-1))
    weight_T = of_target(z_old_TV.softmax(-1))
    return -weight_T * (r_T * plus_T + (1 - r_T) * minus_T) / BETA


def block_loss(model, reference, prompts_RP, tokens_RC, r_R, masked_RC, target_RC):
    """The loss of one optimiser step: the mean over all targets of a block of rollouts."""
    inputs = torch.cat([prompts_RP, tokens_RC.masked_fill(masked_RC, model.mask_id)], dim=1)
    target = F.pad(target_RC, (prompts_RP.shape[1], 0))
    with torch.no_grad():
        z_old_TV = reference(inputs)[target]
    z_TV = model(inputs)[target]
    r_T = r_R[:, None].expand(tokens_RC.shape)[target_RC]
    return rectified_loss(z_TV, z_old_TV, tokens_RC[target_RC], r_T).mean()


def update(model, reference, optimizer, average, rollouts, iteration, rng):
    """Phase 2: an optimiser step after each block of rollouts, in several passes with new masks."""
    prompts_RP, tokens_RC, r_R = rollouts
    for inner in range(PASSES):
        masked_RC, target_RC = random_masks(tokens_RC, model.eos_id, rng)
        for number, block in enumerate(torch.randperm(len(r_R), generator=rng).tensor_split(BLOCKS)):
            done = ((iteration * PASSES + inner) * BLOCKS + number) / (ITERATIONS * PASSES * BLOCKS)
            for group in optimizer.param_groups:
                group["lr"] = LEARNING_RATE * 0.5 * (1 + math.cos(math.pi * done))
            rows = (prompts_RP[block], tokens_RC[block], r_R[block], masked_RC[block], target_RC[block])
            block_loss(model, reference, *rows).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_GRAD_NORM)
            optimizer.step()
            optimizer.zero_grad()
            average.update()


class Average:
    """The average of the trained weights that is evaluated; its first updates weigh more."""

    def __init__(self, model):
        self.model, self.source, self.updates = copy.deepcopy(model), model, 0

    @torch.no_grad()
    def update(self):
        self.updates += 1
        decay = min(AVERAGE_DECAY, (1 + self.updates) / (10 + self.updates))
        for mine, theirs in zip(self.model.parameters(), self.source.parameters(), strict=True):
            mine.lerp_(theirs, 1 - decay)


def evaluate(model, encode, task, when):
    """Print and return accuracy on 200 held-out puzzles, decoded greedily, and the mean number of forwards."""
    rows = [task.row("test", i) for i in range(200)]
    tokens_RC, forwards_R = denoise(model, encode(rows), task.gen_length, temperature=0.0, threshold=CAREFUL)
    accuracy = sum(map(bool, task.correct_all(rows, encode.decode(tokens_RC)))) / len(rows)
    print(f"{when}: {accuracy:.1%} right in {forwards_R.mean():.1f} forwards")
    return accuracy, float(forwards_R.mean())


class Encoding:
    """Rows of a task to token ids [R, P]; 4x4 Sudokus all have the same length. Completions to text."""

    def __init__(self, tokenizer, eos_id):
        self.tokenizer, self.eos_id = tokenizer, eos_id

    def __call__(self, rows):
        return torch.tensor([self.tokenizer.encode(row["prompt"], add_special_tokens=False) for row in rows])

    def decode(self, tokens_RC):
        ids = [row[: row.index(self.eos_id)] if self.eos_id in row else row for row in tokens_RC.tolist()]
        return [self.tokenizer.decode(row) for row in ids]


def train(seed=0, iterations=ITERATIONS):
    """Algorithm 1. Returns accuracy and forwards before and after."""
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    rng = torch.Generator().manual_seed(seed)
    model, tokenizer, task = load_model("embedded"), load_tokenizer("embedded"), get_task("sudoku")
    encode, average = Encoding(tokenizer, model.eos_id), Average(model)
    reference = copy.deepcopy(model).requires_grad_(False)  # theta_old, which samples
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.0)
    before = evaluate(model, encode, task, "before")
    for iteration in range(iterations):
        # Phase 1: theta_old denoises several completions of each prompt, and a verifier scores them.
        drawn = random.Random(f"{seed} {iteration}")
        rows = [task.row("train", drawn.randrange(10**6)) for _ in range(PROMPTS)]
        rows = [row for row in rows for _ in range(ROLLOUTS)]
        prompts_RP = encode(rows)
        tokens_RC, forwards_R = denoise(reference, prompts_RP, task.gen_length, temperature=1.0)
        reward_R = torch.tensor([float(bool(x)) for x in task.correct_all(rows, encode.decode(tokens_RC))])
        # Phase 2: theta learns from them.
        update(model, reference, optimizer, average, (prompts_RP, tokens_RC, signals(reward_R)), iteration, rng)
        # Phase 3: theta_old becomes theta.
        reference.load_state_dict(model.state_dict())
        print(f"iteration {iteration + 1}: reward {reward_R.mean():.3f}, {forwards_R.mean():.1f} forwards")
    return before, evaluate(average.model, encode, task, "after")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    train(parser.parse_args().seed)
