"""Finished cells in one compressed JSON file, which may be committed, so that nothing is computed twice."""

from __future__ import annotations

import dataclasses
import fcntl
import gzip
import hashlib
import json
from pathlib import Path
from typing import Any

from lfpo.base.config import to_dict
from lfpo.base.errors import UserError
from lfpo.compare.settings import BASE, Cell, CompareConfig
from lfpo.objectives import make_objective
from lfpo.train.config import LFPOConfig

# Keys of a training configuration that do not change a result beyond rounding.
NO_EFFECT = {"output_dir", "threads", "update_tokens", "rollout_tokens", "padding_free", "gradient_checkpointing"}
NO_EFFECT |= {"save_steps", "save_total_limit", "log_completions", "report_to", "rank_timeout", "progress_timeout"}
OF_BASE = {"model", "task", "eval_samplers", "eval_size", "head_precision"}  # what decides an untrained model's result


class Store:
    """Key -> result of a finished cell. The file is rewritten after each cell, so a stopped grid loses only those that
    ran. Grids that run at the same time may share it. Raises UserError where the file cannot be read."""

    def __init__(self, path: Path):
        self.path = path
        self.results = self._read()

    def add(self, key: str, result: dict[str, Any]) -> None:
        """Keep a result, on disk too, beside those that other grids added since."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.with_name(f".{self.path.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self.results = {**self._read(), key: result}
            text = json.dumps(dict(sorted(self.results.items())), separators=(",", ":"))
            partial = self.path.with_name(f".{self.path.name}.partial")
            partial.write_bytes(gzip.compress(text.encode(), mtime=0))  # without a time, equal cells are an equal file
            partial.replace(self.path)

    def _read(self) -> dict[str, dict[str, Any]]:
        if not self.path.exists():
            return {}
        try:
            found = json.loads(gzip.decompress(self.path.read_bytes()))
        except (OSError, EOFError, ValueError) as error:
            raise UserError(f"{self.path}: not readable as compressed JSON ({error}); restore or delete it") from error
        if not isinstance(found, dict):
            raise UserError(f"{self.path}: expected a JSON object of finished cells, found {type(found).__name__}")
        return found


def cell_key(config: CompareConfig, settings: LFPOConfig, cell: Cell, fingerprint: str) -> str:
    """What a cell's numbers depend on, as 16 hexadecimal digits: its configuration and what the code computes.

    Keys and knobs at their default are left out, so that a new key does not change the keys of old cells; a changed
    default does through the fingerprint (see lfpo.compare.probe).
    """
    default = to_dict(LFPOConfig(output_dir="-"))
    values = {
        name: value
        for name, value in to_dict(settings).items()
        if name not in NO_EFFECT and value != default[name] and (cell.objective != BASE or name in OF_BASE)
    }
    if "objective" in values:
        values["objective"] = {
            k: v for k, v in values["objective"].items() if v != _defaults(settings.objective).get(k)
        }
        values["objective"]["name"] = settings.objective["name"]
    if cell.objective == BASE:
        values["block_length"] = settings.sampler.block_length
    evaluated = config.validation if cell.tuning else config.problems
    asked = {"problems": evaluated, "tuning": cell.tuning, "curve": config.curve_sampler, "to": config.thresholds}
    text = json.dumps([values, asked, fingerprint], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _defaults(objective: dict[str, Any]) -> dict[str, Any]:
    """The default of each knob of an objective."""
    return {f.name: f.default for f in dataclasses.fields(type(make_objective(objective)))}  # type: ignore[arg-type]


def pack(correct: list[bool]) -> str:
    """Verdicts as hexadecimal digits, four problems each, the first in the highest bit."""
    bits = "".join("1" if c else "0" for c in correct)
    bits += "0" * (-len(bits) % 4)
    return "".join(f"{int(bits[i : i + 4], 2):x}" for i in range(0, len(bits), 4))


def unpack(digits: str, n: int) -> list[int]:
    """The n verdicts, 1 or 0, that `pack` wrote."""
    return [int(bit) for digit in digits for bit in f"{int(digit, 16):04b}"][:n]
