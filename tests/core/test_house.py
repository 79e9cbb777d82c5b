"""The map of one iteration in CONTRIBUTING.md is that of the code."""

import pytest

from dev.iteration_map import entered, shown, table


@pytest.mark.long
def test_the_map_of_an_iteration_is_that_of_the_code():
    """A change that moves code: python -m dev.iteration_map --write."""
    assert shown() == table(entered())
