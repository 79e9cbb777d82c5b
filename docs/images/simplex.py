"""The gradient alignment theorem as a figure, computed by autograd: python docs/images/simplex.py FILE.svg

A masked position is one of four corners (mask, and three tokens). From the mask, the ideal velocity u points at the
right token e_y and the model's velocity v at its prediction p. The theorem: -d CE / d logits = e_y - p = u - v.
"""

from __future__ import annotations

import sys
from typing import Any

import torch

# Corners in the plane: tokens A (the right one), B, C, and the mask below. The map to the plane is linear and so keeps
# sums of vectors.
CORNERS = torch.tensor([[0.5, 3**0.5 / 2], [0.0, 0.0], [1.0, 0.0], [0.5, -0.62]], dtype=torch.float64)
MASK = 3
LOGITS = (-0.3, 1.2, -0.5)  # the prediction drawn large
GRID = 9


def velocities(logits: torch.Tensor, y: int = 0) -> dict[str, torch.Tensor]:
    """At a masked position with these logits [3] and right token y: prediction, velocities and negative gradients.

    logits [3], float. All results are float64 over the corners [4]. p: prediction. u, v: ideal and model velocity.
    ce, l2: minus the gradients of cross-entropy and of |p - e_y|^2 in the logits, by autograd; 0 for the mask, for
    which the model has no logit.
    """
    z = logits.double().clone().requires_grad_()
    p = z.softmax(-1)
    target = torch.nn.functional.one_hot(torch.tensor(y), 3).double()
    (ce,) = torch.autograd.grad(-p[y].log(), z, retain_graph=True)
    (l2,) = torch.autograd.grad(((p - target) ** 2).sum(), z)
    mask = torch.nn.functional.one_hot(torch.tensor(MASK), 4).double()
    wide = [torch.cat([t.detach(), torch.zeros(1, dtype=torch.float64)]) for t in (p, target, -ce, -l2)]
    return {"p": wide[0], "u": wide[1] - mask, "v": wide[0] - mask, "ce": wide[2], "l2": wide[3]}


def cosine(a: torch.Tensor, b: torch.Tensor) -> float:
    return float(a @ b / (a.norm() * b.norm()))


def draw_simplex() -> Any:
    """The figure: the theorem at one prediction, and the directions of both losses over the whole simplex."""
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(9.5, 4.6), width_ratios=(1, 1.05))
    at = velocities(torch.tensor(LOGITS))
    p, mask = at["p"] @ CORNERS, CORNERS[MASK]
    for axis in (left, right):
        axis.plot(*CORNERS[[0, 1, 2, 0]].T.tolist(), color="#444444", lw=1)
        axis.set_aspect("equal")
        axis.axis("off")
    for corner, name, side in zip(CORNERS, ("right token", "token B", "token C", "mask"), (1, -1, -1, -1), strict=True):
        left.annotate(name, corner.tolist(), (0, 8 * side), textcoords="offset points", ha="center", va="center")
    for start, vector, colour, name in (
        (mask, at["u"], "#009E73", "ideal velocity u"),
        (mask, at["v"], "#0072B2", "model velocity v"),
        (p, at["ce"], "#D55E00", r"$-\nabla$CE $= u - v$"),
    ):
        _arrow(left, start, vector @ CORNERS, colour, name)
    left.plot(*p.tolist(), "o", color="#0072B2", ms=5)
    left.annotate("p", p.tolist(), (-10, 2), textcoords="offset points")
    left.legend(loc="lower right", frameon=False, fontsize=9, bbox_to_anchor=(1.25, 0.02))
    apart = float((at["ce"] - (at["u"] - at["v"])).abs().max())
    left.set_title(f"at one prediction; |$-\\nabla$CE $-(u-v)$| = {apart:.0e}", fontsize=10)

    points, ce, l2, angles = _field()
    for vectors, colour, name in ((ce, "#D55E00", r"$-\nabla$CE"), (l2, "#777777", r"$-\nabla\,|p - e_y|^2$")):
        right.quiver(
            *points.T, *vectors.T, color=colour, angles="xy", scale_units="xy", scale=7.5, width=0.005, label=name
        )
    right.legend(loc="upper left", frameon=False, fontsize=9, bbox_to_anchor=(-0.08, 1.0))
    right.set_title(f"everywhere; cosine between the two from {min(angles):.2f} to {max(angles):.2f}", fontsize=10)
    figure.tight_layout()
    return figure


def _field() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, list[float]]:
    """Points in the simplex [n, 2], minus both gradients there [n, 2] each, and their cosines in logit space."""
    shares = [(i / GRID, j / GRID) for i in range(1, GRID) for j in range(1, GRID - i)]
    found = [velocities(torch.tensor([a, b, 1 - a - b], dtype=torch.float64).log()) for a, b in shares]
    planes = [torch.stack([f[name] @ CORNERS for f in found]) for name in ("p", "ce", "l2")]
    return planes[0], planes[1], planes[2], [cosine(f["ce"], f["l2"]) for f in found]


def _arrow(axis: Any, start: torch.Tensor, vector: torch.Tensor, colour: str, name: str) -> None:
    axis.quiver(
        *start.tolist(), *vector.tolist(), color=colour, angles="xy", scale_units="xy", scale=1, width=0.012, label=name
    )


if __name__ == "__main__":
    draw_simplex().savefig(sys.argv[1])
