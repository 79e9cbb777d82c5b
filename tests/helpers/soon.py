"""A test's cases, of which `make test` runs a few."""

from collections.abc import Iterable
from typing import Any

import pytest


def soon(cases: Iterable[Any], *indices: int) -> list[Any]:
    """The cases, for `parametrize`. Only those at `indices` run in `make test`; `make test-long` runs the others."""
    whole = [case if isinstance(case, tuple) else (case,) for case in cases]
    return [pytest.param(*case, marks=[] if i in indices else pytest.mark.long) for i, case in enumerate(whole)]
