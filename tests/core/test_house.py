"""The map of one iteration in CONTRIBUTING.md is that of the code, and what a newcomer has to read stays small."""

import pytest

from dev.iteration_map import shown, size, stays, table

MOST = {"files": 31, "returns": 50}


@pytest.mark.long
def test_the_map_of_an_iteration_is_that_of_the_code_and_small():
    """A change that moves code: python -m dev.iteration_map --write. One that exceeds a bound belongs beside the plain
    iteration, in a file that it does not enter."""
    read = stays()
    assert shown() == table(read)
    assert all(value <= MOST[name] for name, value in size(read).items()), size(read)
