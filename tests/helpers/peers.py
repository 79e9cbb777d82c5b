"""The golden batch of the peers' own codes: a closed-form model and the trajectory their inputs came from."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from letters import LogitsAsStates
from lfpo.config.sampler import Sampler
from lfpo.core.learner import accumulate_gradients
from lfpo.core.trajectory import Trajectory, of_completions

FOLDER = Path(__file__).parents[1] / "goldens"
GOLDEN = json.loads((FOLDER / "peers.json").read_text())
NEWER = json.loads((FOLDER / "peers2.json").read_text())  # the same model and batch
MASK, EOS, VOCAB = GOLDEN["mask_id"], GOLDEN["eos_id"], GOLDEN["vocab"]


class ClosedFormModel(LogitsAsStates):
    """logits[b, i, v] = s (sin(.37 (v+1) (i+1)) + mean_j cos(.11 x_j (v+1) + .07 |i-j|)) + a[v], float64."""

    vocab_size = VOCAB

    def __init__(self, ds: float = 0.0, da: float = 0.0, *, shift: bool = False):
        super().__init__()
        self.s = nn.Parameter(torch.tensor(1.5 + ds, dtype=torch.float64))
        self.a = nn.Parameter(da * torch.sin(torch.arange(VOCAB, dtype=torch.float64)))
        self.shift = shift

    def hidden(self, ids: torch.Tensor, attention: torch.Tensor | None = None) -> torch.Tensor:
        length = ids.shape[1]
        i, v = torch.arange(length, dtype=torch.float64), torch.arange(1, VOCAB + 1, dtype=torch.float64)
        distance = 0.07 * (i[:, None] - i).abs()
        phase = 0.11 * ids.double()[:, None, :, None] * v + distance[..., None]
        logits = self.s * (torch.sin(0.37 * v * (i[:, None] + 1)) + phase.cos().mean(2)) + self.a
        return torch.cat([logits[:, :1], logits[:, :-1]], dim=1) if self.shift else logits


def policies(model: type[ClosedFormModel] = ClosedFormModel, *, shift: bool = False) -> dict[str, Any]:
    """Current, old and base policy of the golden file."""
    params = GOLDEN["params"]
    return {
        name: model(*params[key], shift=shift) for name, key in (("current", "cur"), ("old", "old"), ("base", "ref"))
    }


def trajectory(completion_ids: Any = None, reveal_step: Any = None, **sampler: Any) -> Trajectory:
    """The golden batch as rollouts; each position was revealed at a step of its own unless given."""
    batch = GOLDEN["batch"]
    tokens = torch.tensor(batch["completion_ids"] if completion_ids is None else completion_ids)
    size, length = tokens.shape
    steps = torch.arange(length).repeat(size, 1) if reveal_step is None else torch.tensor(reveal_step)
    prompt_ids, prompt_mask = torch.tensor(batch["prompt_ids"]), torch.tensor(batch["prompt_mask"])
    settings = Sampler(**{"gen_length": length, "block_length": length} | sampler)
    return of_completions(prompt_ids, prompt_mask, tokens, steps, sampler=settings, mask_id=MASK, eos_id=EOS)


def masks(case: dict[str, Any]) -> torch.Tensor:
    """Which positions the peer hid, one entry a forward [F, S, L]."""
    return torch.tensor(case["noised_inputs_cur"]) == MASK


def advantages() -> torch.Tensor:
    return torch.tensor(GOLDEN["batch"]["advantages"], dtype=torch.float64)


def check(objective: Any, models: dict[str, Any], views: Any, signal: torch.Tensor, golden: Any, tokens: int) -> None:
    """Loss and gradients of one optimiser step in passes of so many tokens are the recorded ones, to 1e-5."""
    loss = accumulate_gradients(objective, models, views, signal, update_tokens=tokens)[0]
    assert loss == pytest.approx(golden["loss"], rel=1e-5)
    assert float(models["current"].s.grad) == pytest.approx(golden["grad_s"], rel=1e-5)
    expected = torch.tensor(golden["grad_a"], dtype=torch.float64)
    torch.testing.assert_close(models["current"].a.grad, expected, rtol=1e-5, atol=1e-6)
    assert models["old"].s.grad is None and models["base"].s.grad is None
