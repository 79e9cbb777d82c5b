"""The completions that a run has kept, `rollouts/step-N.jsonl` and `eval/step-N.jsonl`, checked as they are read."""

import math
import sys
from pathlib import Path
from typing import Any

from lfpo.config.errors import UserError
from lfpo.config.json import Json
from lfpo.prompts.files import load_rows

Record = Json  # a line of `rollouts/` or `eval/`

# Fields that a page needs, each with its kind (see `_fits`).
COMPLETION = {"prompt": (str, [{"role": str}]), "completion": str, "tokens": [str], "reveal_step": [int]}
COMPLETION |= {"confidence": [float], "scheduled_steps": int, "nfe": float}
ROLLOUT = COMPLETION | {"rewards": dict, "reward": (float, None), "r": (float, None)}
EVALUATED = {"sampler": str, "problem": int}
OPTIONAL = {"correct": (bool, float, None), "turn": int}


class Kept:
    """The kept completions of a run's folder. left_out: a sentence for each file or line that could not be read."""

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
        the first prompt as `asked`. [] for an empty file, and for one that cannot be read, which `left_out` names."""
        try:
            empty = path.is_file() and not path.stat().st_size  # after a loss of power
            rows = [] if empty else load_rows(path)
            for record, where in rows:
                _check(record, ROLLOUT if path.parent.name == "rollouts" else EVALUATED, where)
        except UserError as error:
            self.tell(f"{path} is left out: {error}")
            return []
        episodes: list[Record] = []
        for record, _ in rows:
            continued = bool(episodes) and record.get("turn", 1) != 1
            asked = episodes.pop()["asked"] if continued else record.get("prompt")
            episodes.append({**record, "asked": asked})
        return episodes


def _check(record: Record, fields: Json, where: str) -> None:
    """Raise UserError for a record without these fields, or those of a completion if it has one. Rewards that are not
    finite become None."""
    if isinstance(record.get("rewards"), dict):
        record["rewards"] = {name: _finite(reward) for name, reward in record["rewards"].items()}
    record |= {name: _finite(record[name]) for name in ("reward", "r") if name in record}
    fields = fields | {name: kind for name, kind in OPTIONAL.items() if name in record}
    for name, kind in (fields | COMPLETION if "completion" in record else fields).items():
        if not (name in record and _fits(record[name], kind)):
            found = f"found {record[name]!r:.40}" if name in record else "it is missing"
            raise UserError(f"{where}: field {name!r} does not hold what lfpo writes there ({found})")
    edits = record.get("edits", {})
    held = list(edits.values()) if isinstance(edits, dict) and all(map(str.isdecimal, edits)) else None
    whole = _fits(held, [[[(int, str, float)]]]) and all(len(token) == 4 for tokens in held or [] for token in tokens)
    lengths = [len(record.get(name, [])) for name in ("tokens", "reveal_step", "confidence")]
    if not whole or min(lengths) < lengths[0]:
        raise UserError(f"{where}: fields 'tokens', 'reveal_step', 'confidence' and 'edits' do not fit together")


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _fits(value: Any, kind: Any) -> bool:
    """Whether a value is of a kind: a type (float: any finite number), one of a tuple of kinds, None, [kind of the
    items], or {key: kind}."""
    if isinstance(kind, tuple):
        return any(_fits(value, option) for option in kind)
    if isinstance(kind, list):
        if isinstance(value, list) and kind[0] in (str, int, float):  # thousands of items
            kinds, large = {*map(type, value)}, sys.float_info.max
            if kind[0] is float:
                return kinds <= {int, float} and all(abs(item) <= large for item in value)
            return kinds <= {kind[0]}
        return isinstance(value, list) and all(_fits(item, kind[0]) for item in value)
    if isinstance(kind, dict):
        return isinstance(value, dict) and all(_fits(value.get(key), inner) for key, inner in kind.items())
    if kind is float:
        return type(value) in (int, float) and abs(value) <= sys.float_info.max
    return value is None if kind is None else type(value) is kind
