"""What tests of updates share."""

from pathlib import Path

from letter_runs import metrics, without_times
from lfpo.core.lfpo import LFPO
from lfpo.train.checkpoint import latest_checkpoint


class Whole(LFPO):
    whole_groups = True


def assert_same_bits(whole: Path, run: Path) -> None:
    """All metrics but times, and every file of the last checkpoint, are the same."""
    assert without_times(metrics(whole)) == without_times(metrics(run))
    a, b = latest_checkpoint(whole), latest_checkpoint(run)
    assert a is not None and b is not None
    for file in a.rglob("*.safetensors"):
        assert file.read_bytes() == (b / file.relative_to(a)).read_bytes()
