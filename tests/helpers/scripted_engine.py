"""An engine whose completions are written down beforehand."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import torch

import games
from lfpo import LFPOConfig, SamplerConfig
from lfpo.core.batch_metrics import gathered
from lfpo.core.engine import Engine, Request
from lfpo.core.forward import left_pad
from lfpo.core.observer import Observer
from lfpo.core.rollouts import FreshRollouts
from lfpo.core.trajectory import Trajectory, of_completions
from lfpo.models import load_model, load_tokenizer
from lfpo.prompts.sources import PromptSource
from lfpo.rollout.episodes import Environment, Played

SAMPLER = SamplerConfig(temperature=1.0).for_length(3)
SCRIPTED = Environment(games.Scripted, max_turns=2, timeout=0.0)


class ScriptedEngine:
    """An engine whose completions are given: one list a call. A token is revealed at each step from the left."""

    def __init__(self, model: Any, tokenizer: Any, calls: list[list[str]]):
        self.model, self.tokenizer, self.calls, self.requests = model, tokenizer, calls, list[Request]()

    def update(self, version: Any, policy: Any) -> None:
        pass

    def sample(self, request: Request, finished: Any = None) -> Trajectory:
        self.requests.append(request)
        texts, size = self.calls.pop(0), len(request.prompts)
        length = request.sampler.gen_length or 0
        eos = self.model.eos_id
        tokens = [(self.tokenizer.encode(text, add_special_tokens=False) + [eos] * length)[:length] for text in texts]
        return of_completions(
            *left_pad(request.prompts, self.model.pad_id),
            torch.tensor(tokens),
            torch.arange(length).expand(size, -1).clone(),
            nfe=torch.full((size,), length),
            sampler=request.sampler,
            mask_id=self.model.mask_id,
            eos_id=eos,
        )

    def metrics(self) -> dict[str, float]:
        return {}


def scripted(checkpoint: Path, prompts: Sequence[Any], calls: list[list[str]], n: int = 1) -> Any:
    """A batch of scripted completions, two turns at most; the engine that gave them, and the tokenizer."""
    model, tokenizer = load_model(checkpoint), load_tokenizer(checkpoint)
    engine = ScriptedEngine(model, tokenizer, calls)
    rows = [{"prompt": prompt} for prompt in prompts]
    source = PromptSource("rows", lambda index: rows[index], [], lambda split, index: "", [], rows=rows)
    args = LFPOConfig("unused", prompts_per_iteration=len(prompts), num_generations=n, optimizer_steps_per_iteration=1)
    state = {"row_offset": 0}
    sampled = FreshRollouts(
        args, source.train_row, source.scorer, model, tokenizer, cast(Engine, engine), SAMPLER, None, state
    )
    batch = gathered(Played(SCRIPTED, sampled).roll(0, Observer()), len(prompts), n)
    return batch, engine, tokenizer
