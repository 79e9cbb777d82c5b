"""The completions that a run has kept, `rollouts/step-N.jsonl` and `eval/step-N.jsonl`."""

import json
from pathlib import Path

from lfpo.config.json import Json

CompletionRecord = Json  # a line of `rollouts/` or `eval/`


def numbered(folder: Path, last: int) -> list[tuple[int, Path]]:
    """(N, path) of each `step-N.jsonl` of a folder with N <= last, ascending."""
    files = [(int(path.stem.removeprefix("step-")), path) for path in folder.glob("step-*.jsonl")]
    return sorted((number, path) for number, path in files if number <= last)


def read_records(path: Path) -> list[CompletionRecord]:
    """The objects of a file; of an episode's turns only the last, whose prompt is the conversation before it, with the
    first prompt as `asked`."""
    episodes: list[CompletionRecord] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        continued = bool(episodes) and record.get("turn", 1) != 1
        asked = episodes.pop()["asked"] if continued else record.get("prompt")
        episodes.append({**record, "asked": asked})
    return episodes
