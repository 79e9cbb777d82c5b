"""What a trainer gets from the run that it is part of."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from lfpo.base.errors import UserError
from lfpo.base.progress import Progress
from lfpo.runs.directory import Run
from lfpo.runs.stopping import StopRequests


@dataclass(frozen=True)
class Context:
    """Without a run, as these defaults are, nothing is written and nobody can ask to stop.

    folder: the run directory, silent on all ranks but 0. stop: requests to stop. progress: where the iteration stands.
    note(text): shows a line to the user.
    """

    folder: Run = field(default_factory=lambda: Run(Path(), silent=True))
    stop: StopRequests = field(default_factory=StopRequests)
    progress: Progress = field(default_factory=Progress)
    note: Callable[[str], None] = print


class CannotGoOn(UserError):
    """An iteration cannot be finished. The run saves what was learned before, and adds how to go on."""
