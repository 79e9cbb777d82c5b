"""A check's results: one row for each thing it measured."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from cuda_stand_in import cuda_stand_in

Row = dict[str, Any]  # what, value, bar (text, "" for none), passed (None: no bar, or not run)


@dataclass(frozen=True)
class Machine:
    """Where the checks run. gpu: a CUDA device is at hand; sizes are those of 8B models then, small ones otherwise."""

    gpu: bool

    @property
    def device(self) -> torch.device:
        return torch.device("cuda" if self.gpu else "cpu")

    def size(self, full: Any, small: Any) -> Any:
        return full if self.gpu else small

    @contextlib.contextmanager
    def second_device(self) -> Iterator[str]:
        """The name of a device to compare the CPU with: the GPU, or the tests' stand-in for one."""
        with contextlib.nullcontext() if self.gpu else cuda_stand_in():
            yield "cuda"


def measured(what: str, value: float | str, unit: str = "") -> Row:
    """A number without a bar."""
    return {"what": what, "value": _text(value, unit), "bar": "", "passed": None}


def passes(what: str, passed: bool, value: float | str, bar: str) -> Row:
    return {"what": what, "value": _text(value, ""), "bar": bar, "passed": bool(passed)}


def at_most(what: str, value: float, bar: float, unit: str = "") -> Row:
    return passes(what, value <= bar, _text(value, unit), f"at most {_text(bar, unit)}")


def at_least(what: str, value: float, bar: float, unit: str = "") -> Row:
    return passes(what, value >= bar, _text(value, unit), f"at least {_text(bar, unit)}")


def not_run(what: str, why: str) -> Row:
    """A row for what this machine cannot show."""
    return {"what": what, "value": f"not run: {why}", "bar": "", "passed": None}


def _text(value: float | str, unit: str) -> str:
    number = value if isinstance(value, str) else f"{value:.4g}"
    return f"{number} {unit}".strip()
