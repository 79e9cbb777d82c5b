"""What bfloat16 leaves of a small LoRA change: python -m benchmarks.lora_rounding

A matrix of standard deviation 0.02 (as in an 8B model) in bfloat16, an adapter of rank 128 trained by Adam at 3e-6
along a noisy gradient. Kept share of a change: its projection on the exact one, 1 for all of it.

merged: the sum of base and adapter in bfloat16. separate: the adapter's products beside the base's, added to outputs in
bfloat16, as peft's layers do in training. float32: the separate products with outputs in float32.
"""

import time

import torch

SIZE, RANK, SCALE, RATE = 1024, 128, 0.5, 3e-6


def adapter(steps: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Factors A [R, D] and B [D, R] after some steps."""
    generator = torch.Generator().manual_seed(1)
    a_RD = (2 * torch.rand(RANK, SIZE, generator=generator) - 1) / SIZE**0.5
    b_DR = torch.zeros(SIZE, RANK)
    direction = torch.randn(SIZE, SIZE, generator=generator)
    optimizer = torch.optim.Adam([a_RD.requires_grad_(), b_DR.requires_grad_()], lr=RATE)
    for _ in range(steps):
        noisy = direction + torch.randn(SIZE, SIZE, generator=generator)
        a_RD.grad, b_DR.grad = SCALE * b_DR.detach().T @ noisy, SCALE * noisy @ a_RD.detach().T
        optimizer.step()
    return a_RD.detach(), b_DR.detach()


def kept(change: torch.Tensor, exact: torch.Tensor) -> float:
    return float((change.float() * exact).sum() / (exact * exact).sum())


def main() -> None:
    torch.manual_seed(0)
    base, x = (0.02 * torch.randn(SIZE, SIZE)).bfloat16(), torch.randn(256, SIZE).bfloat16()
    for steps in (1, 16, 160):
        a, b = adapter(steps)
        delta = SCALE * b @ a
        rounded = (base.float() + delta).bfloat16()
        lost = float((rounded.float() - base.float() - delta).norm() / delta.norm())
        exact, output = x.float() @ delta.T, x @ base.T
        separate = (output + SCALE * (x.float() @ a.T) @ b.T).bfloat16()
        wide = x.float() @ base.float().T
        print(
            f"{steps:>4} steps: change / weights {float(delta.norm() / base.float().norm()):.1e}; kept: "
            f"merged {kept(x @ rounded.T - output, exact):.3f}, separate {kept(separate - output, exact):.3f}, "
            f"float32 {kept(wide + SCALE * (x.float() @ a.T) @ b.T - wide, exact):.3f}; lost norm of the sum {lost:.2f}"
        )
    wide, a, b = base.float(), *adapter(1)
    times = []
    for product in (lambda: x.float() @ wide.T, lambda: x.float() @ wide.T + SCALE * (x.float() @ a.T) @ b.T):
        seconds = []
        for _ in range(9):
            start = time.perf_counter()
            product()
            seconds.append(time.perf_counter() - start)
        times.append(min(seconds))
    print(f"separate products take {times[1] / times[0]:.2f} times as long as one (float32, {SIZE} x {SIZE})")


if __name__ == "__main__":
    main()
