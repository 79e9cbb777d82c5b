"""Writes the embedded model with noise on its matrices: a base that is seldom right (research/DESIGN.md, regime b).

    python -m research.weaken runs/rare/model --scale 0.42
"""

import argparse
from pathlib import Path

import torch

from lfpo.models import load_model, save_model


def write_weakened(folder: Path, scale: float, seed: int = 0) -> None:
    """Write the model into `folder`. Each matrix has normal noise of `scale` times its own standard deviation added."""
    model, rng = load_model("embedded"), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.own_parameters():
            if parameter.dim() > 1:
                parameter += scale * parameter.std() * torch.randn(parameter.shape, generator=rng)
    save_model(model, folder)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=write_weakened.__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--scale", type=float, default=0.42)
    args = parser.parse_args()
    write_weakened(args.folder, args.scale)
