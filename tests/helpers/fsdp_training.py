"""A sharded model trains as a whole one."""

from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist
from torch.distributed.tensor import DTensor

from lfpo.base import distributed
from lfpo.config.models import LoraSettings
from lfpo.config.sampler import SamplerConfig
from lfpo.core import collectives, optim, rank_tensors
from lfpo.core.learner import accumulate_gradients
from lfpo.core.model import CURRENT, OLD
from lfpo.core.optim import ema_update
from lfpo.core.passes import fully_masked
from lfpo.models import MaskedDiffusionLM, load_model
from lfpo.models.fsdp import frozen_copy, gathered, gathered_by_layer
from lfpo.models.lora import attach, inject
from lfpo.models.policies import checkpoint_layers
from lfpo.objectives import make_objective
from lfpo.rollout.sampling import rollout
from lfpo.train.adamw import build_adamw
from tiny import optimiser_settings

PROMPTS = [[5, 6, 7], [8], [9, 10, 11, 12, 13], [14, 15]]
SEEDS = [1, 2, 3, 4]
SAMPLER = SamplerConfig(gen_length=8, temperature=1.0, steps=4)
STEPS = 2


class Training:
    """Optimiser steps on the same rollouts, in the whole group or in a process alone."""

    def __init__(
        self, folder: Path, mesh: Any, *, lora: LoraSettings | None, checkpointing: bool, cast: bool | None = None
    ):
        """cast: under autocast, whether layers are gathered in bfloat16. None: float64."""
        if cast is None:
            model = load_model(folder, dtype=torch.float64, mesh=mesh)
        else:
            model = load_model(folder, mesh=mesh, cast=cast)
            model.autocast = cast
        if lora:
            self.policies = {CURRENT: model, OLD: attach(model, lora)}
            for unsplit in model.unsplit:
                inject(unsplit, lora)
        else:
            self.policies = {CURRENT: model, OLD: frozen_copy(model) if mesh else model.frozen_copy()}
        for policy in self.policies.values():
            policy.autocast = cast is not None
        if checkpointing:
            checkpoint_layers(model)
        model.train()
        self.optimizer = build_adamw(model, optimiser_settings(1e-2, 0.1, 0.99))

    def step(self, trajectory: Any, rows: list[int]) -> dict[str, torch.Tensor]:
        """One step on some rows of all; loss, norm and gradients summed over ranks."""
        objective = make_objective({"name": "lfpo", "timesteps": 3})
        signal = torch.tensor([1.0, 0.0, 0.7, 0.5], dtype=torch.float64)[rows]
        own = trajectory.rows(torch.tensor(rows))
        views = objective.views(own, signal, [SEEDS[r] for r in rows], 0)
        dummy = fully_masked(trajectory.rows(torch.tensor([0])))
        loss, _ = accumulate_gradients(objective, self.policies, views, signal, update_tokens=20, dummy=dummy)
        parameters = dict(self.policies[CURRENT].backbone.named_parameters())
        if dist.is_initialized():
            rank_tensors.sum_gradients(parameters.values())
        found = {n: rank_tensors.whole(p.grad).clone() for n, p in parameters.items() if p.grad is not None}
        found["loss"] = torch.tensor(collectives.sum_number(loss))
        found["norm"] = torch.tensor(optim.clip_gradients(parameters.values(), 1.0))
        self.optimizer.step()
        self.optimizer.zero_grad()
        ema_update(self.policies[OLD], self.policies[CURRENT], 0.5)
        return found


def forwards_of_rank(model: MaskedDiffusionLM, rank: int) -> list[list[int]]:
    """Rollouts of as many rows as the rank's number, and a row: ranks run different numbers of forwards."""
    rows = list(range(min(rank + 1, 4)))
    sampler = SamplerConfig(gen_length=8, temperature=1.0, steps=1 + rank)
    found = rollout(model, [PROMPTS[r] for r in rows], sampler, [SEEDS[r] for r in rows])
    return found.tokens.tolist()


def trains_as_one(folder: Path, shards: int, lora: LoraSettings | None, checkpointing: bool, trajectory: Any) -> None:
    settings: dict[str, Any] = {"lora": lora, "checkpointing": checkpointing}
    alone = Training(folder, None, **settings)
    expected = [alone.step(trajectory, [0, 1, 2, 3]) for _ in range(STEPS)]
    distributed.start()
    rank = collectives.rank()
    split = Training(folder, distributed.mesh(shards), **settings)
    for n in range(STEPS):
        found = split.step(trajectory, collectives.own_indices(4))
        assert found.keys() == expected[n].keys()
        for name, value in found.items():
            rtol, atol = (1e-5, 1e-7) if lora else (1e-9, 1e-12)  # factors are float32
            torch.testing.assert_close(value, expected[n][name], rtol=rtol, atol=atol, msg=f"step {n}: {name}")
        assert found["norm"] > 1e-3
        # Between the updates ranks sample, each at its own pace: with whole weights, and with one layer at a time.
        for ready in (gathered(split.policies[OLD], cast=False), gathered_by_layer(split.policies[OLD])):
            with ready as policy, torch.no_grad():
                sampled = forwards_of_rank(policy, rank)
            if n == STEPS - 1:
                assert sampled == forwards_of_rank(alone.policies[OLD], rank)
    body = [p for name, p in split.policies[CURRENT].backbone.named_parameters() if "lora_" not in name]
    matrices = [p for p in body if p.ndim > 1]
    assert all(isinstance(p, DTensor) == (p.ndim > 1) for p in body)
    parts = shards or collectives.world()
    one_row = sum(p.numel() // len(p) for p in matrices)
    assert sum(p.to_local().numel() for p in matrices) <= sum(p.numel() for p in matrices) / parts + one_row
