"""The completions that a run has kept, `rollouts/step-N.jsonl` and `eval/step-N.jsonl`."""

import json
import math
from pathlib import Path
from typing import Any

from lfpo.config.json import Json

Record = Json  # a line of `rollouts/` or `eval/`


class Kept:
    """The kept completions of a run's folder. left_out: a sentence for each file that could not be read."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.left_out: list[str] = []
        self.evaluations: dict[Path, list[Record]] = {}  # those that were read: several parts of a page need them

    def tell(self, sentence: str) -> None:
        """Add a sentence, in which paths begin in the run's folder."""
        text = sentence.replace(f"{self.folder}/", "")
        self.left_out += [text] if text not in self.left_out else []

    def numbered(self, name: str, last: int) -> list[tuple[int, Path]]:
        """(N, path) of each `name/step-N.jsonl` with N <= last, ascending."""
        steps = [(path.stem.removeprefix("step-"), path) for path in self.folder.glob(f"{name}/step-*.jsonl")]
        return sorted((int(number), path) for number, path in steps if number.isdecimal() and int(number) <= last)

    def read(self, path: Path) -> list[Record]:
        """The records of a file, as `_read` gives them; one of `eval/` is read once."""
        if path.parent.name == "rollouts":
            return self._read(path)
        if path not in self.evaluations:
            self.evaluations[path] = self._read(path)
        return self.evaluations[path]

    def _read(self, path: Path) -> list[Record]:
        """The objects of a file; of an episode's turns only the last, whose prompt is the conversation before it, with
        the first prompt as `asked`. [] for a file that cannot be read (a disk may lose the newest one when the power
        fails); `left_out` names it."""
        try:
            rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        except (OSError, ValueError) as error:
            self.tell(f"{path} is left out: {error}")
            return []
        episodes: list[Record] = []
        for record in rows:
            continued = bool(episodes) and record.get("turn", 1) != 1
            asked = episodes.pop()["asked"] if continued else record.get("prompt")
            episodes.append({**record, "asked": asked, **_finite_rewards(record)})
        return episodes


def _finite_rewards(record: Record) -> Record:
    """The rewards of a record, None where one is not finite, which a page's JSON cannot hold."""
    found: Record = {name: _finite(record[name]) for name in ("reward", "r") if name in record}
    if "rewards" in record:
        found["rewards"] = {name: _finite(value) for name, value in record["rewards"].items()}
    return found


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
