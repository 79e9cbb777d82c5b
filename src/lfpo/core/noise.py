"""Uniform noise as a function of seeds and counters: a row's noise does not depend on the other rows of its batch."""

import torch

GOLDEN = -7046029254386353131  # 2^64 / golden ratio, as a signed 64-bit integer


def uniform(seed: torch.Tensor, *counters: torch.Tensor | int) -> torch.Tensor:
    """Float64 in [0, 1), a pure function of int64 seeds and counters (from 0), which broadcast to the result's shape;
    the same on every device. SplitMix64's finaliser (Steele et al. 2014), chained over the counters."""
    x = _mix(seed)
    for counter in counters:
        if not isinstance(counter, torch.Tensor):
            # Filled on the device: a copy from the CPU would synchronise.
            counter = torch.full((), counter, dtype=torch.long, device=seed.device)
        x = _mix(x + GOLDEN * (counter + 1))
    return _shift(x, 11).double() * 2.0**-53


def _mix(x: torch.Tensor) -> torch.Tensor:
    """SplitMix64's finaliser in int64, whose products wrap around as unsigned ones do."""
    x = (x ^ _shift(x, 30)) * -4658895280553007687
    x = (x ^ _shift(x, 27)) * -7723592293110705685
    return x ^ _shift(x, 31)


def _shift(x: torch.Tensor, bits: int) -> torch.Tensor:
    """Unsigned right shift; torch's own keeps the sign."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)
