"""Hints for prompts that no rollout solves (IGPO, arXiv 2509.10396).

A group whose rollouts are all wrong teaches nothing. It is sampled once more, with parts of a reference solution shown
in the completion from the start; right rollouts among these replace some of the group's wrong ones. A masked model
fills in around such parts, and its prompt is not changed.
"""

import dataclasses
import time
from dataclasses import dataclass
from functools import partial

import torch

from lfpo.config.sampler import SamplerConfig
from lfpo.core import collectives
from lfpo.core.batch import ScoredRollouts, Turn
from lfpo.core.completions import decode_completions
from lfpo.core.engine import Request
from lfpo.core.model import OLD
from lfpo.core.observer import Observer
from lfpo.core.predictions import Predictions, one_pass
from lfpo.core.reveal import draw, ranked
from lfpo.core.rng import key, python_rng
from lfpo.core.rollouts import FreshRollouts
from lfpo.core.scoring import Rewards, Row
from lfpo.core.trajectory import Trajectory, join
from lfpo.core.views import noised


@dataclass(frozen=True)
class Hinted:
    """A source of rollouts that samples unsolved groups of `sampled` again, with hints."""

    sampled: FreshRollouts

    def roll(self, iteration: int, observer: Observer) -> ScoredRollouts:
        plain, args = self.sampled.roll(iteration, observer), self.sampled.args
        n, hints = args.num_generations, args.hints
        unsolved = ~(plain.rewards.reward_B >= hints.min_reward).view(-1, n).any(1)
        rows = unsolved.repeat_interleave(n).nonzero().flatten().tolist()
        sums = {"hints/unsolved": (float(unsolved.sum()), len(unsolved)), "hints/replaced": (0.0, len(plain.turns))}
        if collectives.sum_number(len(rows)):  # on any rank
            started = time.perf_counter()
            plain, replaced = self.with_hinted(plain, rows, observer)
            sums["hints/replaced"] = (float(replaced), len(plain.turns))
            plain.times["time/hints"] = time.perf_counter() - started
        return dataclasses.replace(plain, sums=plain.sums | sums)

    def with_hinted(self, plain: ScoredRollouts, rows: list[int], observer: Observer) -> tuple[ScoredRollouts, int]:
        """The rollouts, those of unsolved groups replaced by right ones with hints, and how many were. A collective.

        rows: this rank's rows of unsolved groups; may be none.
        """
        source, hints, n = self.sampled, self.sampled.args.hints, self.sampled.args.num_generations
        observer.begin("sampling with hints", len(rows), "rollouts")
        if not rows:
            source.engine.idle()
            collectives.raise_on_all(lambda: None)
            return plain, 0
        t, seeds = plain.trajectory, [key(plain.turns[row].seed, "hint") for row in rows]
        data = [plain.turns[row].row for row in rows]
        shown = [self.shown(*pair) for pair in zip(data, seeds, strict=True)]
        prompts = [t.prompt_ids[row][t.prompt_mask[row].bool()].tolist() for row in rows]
        sampled = source.engine.sample(Request(prompts, seeds, source.sampler, n, shown=shown), observer.finished)
        texts = decode_completions(source.tokenizer, sampled.tokens, source.policy.eos_id)
        rewards = collectives.raise_on_all(partial(source.scorer.score, data, texts, sampled.for_rewards()))
        # The rollouts of these groups are all wrong, so it does not matter which ones go.
        right, most = (rewards.reward_B >= hints.min_reward).view(-1, n), int(hints.replaced * n)
        kept = (right & (right.cumsum(1) <= most)).flatten().nonzero().flatten().tolist()
        turns, order = list(plain.turns), list(range(len(plain.turns)))
        for i in kept:
            turns[rows[i]] = Turn(rows[i], data[i], seeds[i], texts[i])
            order[rows[i]] = len(plain.turns) + i
        every = join([t, sampled], source.policy.pad_id)
        rest = sorted(set(range(len(every))) - set(order))
        trajectory, discarded = (every.rows(torch.tensor(at, device=t.tokens.device)) for at in (order, rest))
        hinted = torch.tensor(shown, device=t.tokens.device) >= 0
        unscored = torch.zeros_like(trajectory.tokens, dtype=torch.bool)
        if kept:
            at = torch.tensor(kept, device=t.tokens.device)
            unscored[[rows[i] for i in kept]] = self.unscored(sampled.rows(at), hinted[at])
        both = [plain.rewards, rewards]
        parts = {name: [v for r in both for v in r.parts[name]] for name in plain.rewards.parts}
        own = Rewards(
            torch.cat([r.reward_B for r in both])[order],
            {name: [values[i] for i in order] for name, values in parts.items()},
            plain.rewards.failed | rewards.failed,
        )
        hinted_rollouts = dataclasses.replace(
            plain, turns=turns, trajectory=trajectory, discarded=discarded, unscored=unscored, rewards=own
        )
        return hinted_rollouts, len(kept)

    @torch.no_grad()
    def unscored(self, t: Trajectory, hinted_BC: torch.Tensor) -> torch.Tensor:
        """The hinted positions that the loss leaves out, [B, C] bool: all but the share `scored` of each row with the
        highest entropy where the whole completion is masked."""
        policy, args = self.sampled.policy, self.sampled.args
        entropy_BC = torch.full(t.tokens.shape, -torch.inf, dtype=torch.float64, device=t.tokens.device)
        length = t.prompt_ids.shape[1] + t.tokens.shape[1]
        for row_N in torch.arange(len(t), device=t.tokens.device).split(max(1, args.update_tokens // length)):
            target = hinted_BC[row_N]
            views = noised(t, row_N, torch.ones_like(target), target)
            with one_pass([policy]):
                hidden_TD = Predictions(views, {OLD: policy}).hidden(OLD)
                drawn = draw(policy, [hidden_TD], SamplerConfig(), entropy_BC.new_zeros(len(hidden_TD)))
            part = entropy_BC[row_N]
            part[target] = drawn.entropy.double()
            entropy_BC[row_N] = part
        count_B = (args.hints.scored * hinted_BC.sum(-1, keepdim=True)).ceil()
        return hinted_BC & (ranked(entropy_BC, hinted_BC)[1] >= count_B)

    def shown(self, row: Row, seed: int) -> list[int]:
        """The tokens of a completion that a rollout is shown, and -1 at the others, gen_length in all."""
        rng, hints, length = python_rng("hint", seed), self.sampled.args.hints, self.sampled.sampler.gen_length
        ids = self.sampled.tokenizer.encode(row[str(hints.column)], add_special_tokens=False)[:length]
        pieces, start = list[range](), 0
        while start < len(ids):
            end = min(len(ids), start + rng.randint(*hints.piece))
            pieces.append(range(start, end))
            start = end
        given = rng.sample(pieces, int(rng.uniform(*hints.share) * len(pieces)))
        places = {place for piece in given for place in piece}
        return [ids[place] if place in places else -1 for place in range(length)]
