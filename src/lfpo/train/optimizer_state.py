"""The state of AdamW in checkpoints, torch's and bitsandbytes': tensors NUMBER.FIELD; numbers count the parameters over
all groups."""

from __future__ import annotations

from pathlib import Path

import torch

from lfpo.base import distributed
from lfpo.base.errors import UserError
from lfpo.models.tensor_files import read_like, tensor_paths, write_shards

TABLES = ("qmap1", "qmap2")  # bitsandbytes' fields with the values of the 256 codes, equal for all tensors


def save_optimizer(optimizer: torch.optim.Optimizer, folder: Path) -> None:
    """Write the state of each parameter that has stepped into an existing folder. A collective."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    tensors = {
        f"{number}.{name}": torch.as_tensor(value)
        for number, p in enumerate(parameters)
        for name, value in optimizer.state.get(p, {}).items()
        if name not in TABLES
    }
    write_shards(tensors, lambda name: distributed.whole(tensors[name]), folder, "optimizer")


def load_optimizer(optimizer: torch.optim.Optimizer, checkpoint: Path) -> None:
    """Restore the state from a checkpoint; hyperparameters keep their current values. A rank reads only its rows of
    split parameters. Raises UserError for the state of another kind of optimiser."""
    groups = optimizer.param_groups
    places = [(g, i, p) for g, group in enumerate(groups) for i, p in enumerate(group["params"])]
    state: dict[int, dict[str, torch.Tensor]] = {}
    for name, file in tensor_paths(checkpoint / "optimizer").items():
        number, _, field = name.partition(".")
        state.setdefault(int(number), {})[field] = read_like(file, name, places[int(number)][2])
    another = UserError(
        f"{checkpoint}: holds the moments of another optimiser; resume with the 'optim' it was saved with"
    )
    plain = isinstance(optimizer, torch.optim.AdamW)
    known = {"step", "exp_avg", "exp_avg_sq"} if plain else {"step", "state1", "state2", "absmax1", "absmax2"}
    if any(not fields.keys() <= known for fields in state.values()):
        raise another
    if plain:
        optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
        return
    # bitsandbytes' load_state_dict would put paged moments on the GPU, so fill the buffers that init_state makes.
    for index, fields in state.items():
        g, i, p = places[index]
        optimizer.init_state(groups[g], p, g, i)  # type: ignore[attr-defined]
        mine = optimizer.state[p]
        if fields.keys() != mine.keys() - set(TABLES):
            raise another
        for name, value in fields.items():
            if name == "step":
                mine[name] = int(value)
            else:
                mine[name].copy_(value)
