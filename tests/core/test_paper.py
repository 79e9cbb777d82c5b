"""What the LFPO paper (arXiv 2603.01563) prints, checked where this project says that it holds or that it does not."""

import pytest
import torch
from torch.nn import functional as F

from lfpo.core.rectified import mix

Z = torch.tensor([2.0, 0.5, 1.5, -1.0], dtype=torch.float64)
Y = 1


def gradient(loss_of, z: torch.Tensor = Z) -> torch.Tensor:
    z = z.clone().requires_grad_()
    return torch.autograd.grad(loss_of(z), z)[0]


def cross_entropy(p: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    """CE(P, pi) of the paper: -sum P log pi over the vocabulary."""
    return -(p * z.log_softmax(-1)).sum()


def test_the_gradient_of_cross_entropy_is_the_error_of_the_velocity():
    """Eq. 7, Theorem 3.1: with any origin m, v - u = (p - m) - (e_y - m) = p - e_y."""
    one_hot, m = F.one_hot(torch.tensor(Y), 4), torch.full((4,), 0.25, dtype=torch.float64)
    found = gradient(lambda z: F.cross_entropy(z, torch.tensor(Y)))
    torch.testing.assert_close(found, (Z.softmax(-1) - m) - (one_hot - m))


def test_the_squared_flow_loss_has_another_direction():
    """The remark after the theorem says that both objectives share the direction of the gradient (Eq. 5 and 6)."""
    one_hot = F.one_hot(torch.tensor(Y), 4)
    squared = gradient(lambda z: ((z.softmax(-1) - one_hot) ** 2).sum())
    p = Z.softmax(-1)
    torch.testing.assert_close(squared, 2 * (p.diag() - p[:, None] * p) @ (p - one_hot))
    assert F.cosine_similarity(squared, p - one_hot, dim=0) < 0.95


@pytest.mark.parametrize("r", [0.0, 0.3, 1.0])
def test_the_printed_loss_with_fixed_targets_cannot_start(r: float):
    """Eq. 10 at theta = theta_old: pi+ and pi- equal pi, so both cross-entropies have gradient zero."""
    plus, minus = (mix(Z, Z, sign * 0.5).softmax(-1) for sign in (1, -1))
    found = gradient(lambda z: r * cross_entropy(plus, z) + (1 - r) * cross_entropy(minus, z))
    torch.testing.assert_close(found, torch.zeros_like(Z))


@pytest.mark.parametrize("r", [0.0, 0.3, 1.0])
def test_the_printed_loss_with_moving_targets_only_changes_the_entropy(r: float):
    """Eq. 10 at theta = theta_old with the gradient through the targets is beta (2 r - 1) grad H(pi): no token of the
    rollout is in it."""
    beta = 0.5
    found = gradient(
        lambda z: (
            r * cross_entropy(mix(z, Z, beta).softmax(-1), z) + (1 - r) * cross_entropy(mix(z, Z, -beta).softmax(-1), z)
        )
    )
    entropy = gradient(lambda z: cross_entropy(z.softmax(-1), z))
    torch.testing.assert_close(found, beta * (2 * r - 1) * entropy)
