"""Benchmark `precision`: the error of logits, loss and gradients for each precision of products with the head."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import torch

from benchmarks.measure import write_results
from benchmarks.table import markdown
from lfpo.base.environment import use_threads
from lfpo.config.checks import Count, CountOrZero, check_ranges
from lfpo.core.fused import rectified_sum
from lfpo.core.head import Precision, product


@dataclass
class BenchPrecisionConfig:
    """Configuration of `python -m benchmarks precision`.

    tokens, vocabulary, width: of a random problem. States have length sqrt(width), as after a final norm, and the head
        is scaled so that logits have standard deviation `spread`.
    threads: CPU threads. output: folder for precision.json.
    """

    tokens: Count = 128
    vocabulary: Count = 126464
    width: Count = 512
    spread: float = 3.0
    threads: CountOrZero = 1
    output: str = "runs/bench"

    def __post_init__(self) -> None:
        check_ranges(self)


def run_bench_precision(config: BenchPrecisionConfig) -> Path:
    """Measure, print and write; returns the path of the JSON."""
    use_threads(config.threads)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    problem = random_problem(config, device)
    exact = results(problem, torch.float64, "float32")
    rows = []
    for precision in get_args(Precision):
        found = results(problem, torch.float32, precision)
        rows.append({"precision": precision} | {name: error(found[name], exact[name]) for name in exact})
    columns = ("", "logits", "loss", "gradient of states", "gradient of head")
    cells = [(f"{device.type}", [row["precision"], *(f"{row[name]:.1e}" for name in exact)]) for row in rows]
    print("RMS of the error over RMS of the float64 value\n")
    print(markdown(columns, cells))
    return write_results(config, "precision", rows)


def random_problem(config: BenchPrecisionConfig, device: torch.device) -> list[torch.Tensor]:
    """hidden, hidden_old [T, D], head [V, D], tokens y [T] and rewards r [T]; tokens are drawn from the model."""
    rng = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=rng)

    hidden_old = normal(config.tokens, config.width)
    hidden = hidden_old + 0.01 * normal(config.tokens, config.width)
    head = normal(config.vocabulary, config.width) * (config.spread / config.width**0.5)
    y = (hidden_old @ head.T).softmax(-1).multinomial(1, generator=rng).squeeze(1)
    r = torch.rand(config.tokens, generator=rng)
    return [x.to(device) for x in (hidden, hidden_old, head, y, r)]


def results(problem: list[torch.Tensor], dtype: torch.dtype, precision: Precision) -> dict[str, torch.Tensor]:
    """The logits, and the rectified loss (beta 0.3, reward in [0, 1]) and its gradients."""
    hidden, hidden_old, head = (x.detach().to(dtype, copy=True) for x in problem[:3])
    y, r = problem[3], problem[4].to(dtype)
    hidden.requires_grad_(), head.requires_grad_()
    loss = rectified_sum(hidden, hidden_old, head, head.detach().clone(), y, r, beta=0.3, precision=precision)
    loss.backward()
    assert hidden.grad is not None
    assert head.grad is not None
    with torch.no_grad():
        logits = product(hidden, head.T, precision)
    return {"logits": logits, "loss": loss.detach(), "states": hidden.grad, "head": head.grad}


def error(found: torch.Tensor, exact: torch.Tensor) -> float:
    """Root mean square of the difference over that of the exact value."""
    values: Any = (found.double() - exact).square().mean().sqrt() / exact.square().mean().sqrt()
    return float(values)
