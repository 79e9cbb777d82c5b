"""The state of AdamW in checkpoints, torch's and bitsandbytes'."""

from __future__ import annotations

import torch

from lfpo.base.errors import UserError

TABLES = ("qmap1", "qmap2")  # bitsandbytes' fields with the values of the 256 codes, equal for all tensors


def state_of(optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """The state to save: NUMBER.FIELD -> tensor, for each parameter that has stepped, numbered over all groups."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    return {
        f"{number}.{name}": torch.as_tensor(value)
        for number, p in enumerate(parameters)
        for name, value in optimizer.state.get(p, {}).items()
        if name not in TABLES
    }


def restore(optimizer: torch.optim.Optimizer, state: dict[int, dict[str, torch.Tensor]], where: object) -> None:
    """Load saved state, parameter number -> field -> tensor; hyperparameters keep their current values.

    where: the file, for the message. Raises UserError when another kind of optimiser saved the state.
    """
    groups = optimizer.param_groups
    plain = isinstance(optimizer, torch.optim.AdamW)
    known = {"step", "exp_avg", "exp_avg_sq"} if plain else {"step", "state1", "state2", "absmax1", "absmax2"}
    if any(not fields.keys() <= known for fields in state.values()):
        raise _another(where)
    if plain:
        optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
        return
    # bitsandbytes' load_state_dict would put paged moments on the GPU, so fill the buffers that init_state makes.
    places = [(g, i, p) for g, group in enumerate(groups) for i, p in enumerate(group["params"])]
    for number, fields in state.items():
        g, i, p = places[number]
        optimizer.init_state(groups[g], p, g, i)  # type: ignore[attr-defined]
        mine = optimizer.state[p]
        if fields.keys() != mine.keys() - set(TABLES):
            raise _another(where)
        for name, value in fields.items():
            if name == "step":
                mine[name] = int(value)
            else:
                mine[name].copy_(value)


def _another(where: object) -> UserError:
    return UserError(f"{where}: holds the moments of another optimiser; resume with the 'optim' it was saved with")
