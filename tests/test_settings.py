"""Settings are checked without torch: in a process that cannot import it, and as the objectives themselves would."""

from __future__ import annotations

import dataclasses
import importlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lfpo.base.errors import UserError
from lfpo.objectives import OBJECTIVES, make_objective
from lfpo.objectives.settings import check_settings, settings_class

# Each is one mistake; the sentence that names it is on standard error.
WITHOUT_TORCH = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "transformers", "safetensors", "tokenizers", "numpy"):
            raise ImportError(f"{name} is not needed to find a wrong key")

sys.meta_path.insert(0, Blocked())
from lfpo.cli import main

for arguments in (
    "train demo --lr_ 3",
    "train no-such-recipe",
    "train sudoku --output_dir out --task sudoko",
    "train sudoku --output_dir out --task gsm8k@no-such-folder",
    "train sudoku --output_dir out --objective.bta 3",
    "train sudoku --output_dir out --objective.beta -3",
    "train sudoku --output_dir out --objective.name egspo --objective.epsilon_ 3",
    "train sudoku --output_dir out --objective.name lfop",
    "train sudoku --output_dir out --sampler.step 3",
    "train sudoku --output_dir out --sampler.alg entropi",
    "train sudoku --output_dir out --sampler.rule nothing",
    "train sudoku --output_dir out --lora.rank 3",
    "train sudoku --output_dir out --model ./no-such-folder",
    "train --output_dir out --data_file no-such-file.jsonl --reward_funcs no_such_module.reward",
    "demo --max_steps many",
    "sft --output_dir out --model embedded --tasks.wrods 1",
    "eval --task sudoku --sampler.steps x",
    "sample --task sudoku --index -1",
    "compare compare --objectives lfop",
    "plan sudoku --gpuss 2",
    "plan sudoku --objective.bta 2",
    "report no-such-folder",
    "watch no-such-folder --prot 3",
    "plan sudoku --update_token 3",
):
    assert main(arguments.split()) == 2, arguments
"""


def test_a_mistake_in_any_key_is_found_without_torch(tmp_path: Path) -> None:
    ended = subprocess.run([sys.executable, "-c", WITHOUT_TORCH], cwd=tmp_path, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    lines = ended.stderr.splitlines()
    assert len(lines) == WITHOUT_TORCH.count('\n    "') and all(line.startswith("error: ") for line in lines), (
        ended.stderr
    )
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", OBJECTIVES)
def test_settings_read_from_the_file_are_those_of_the_objective(name: str) -> None:
    module, _, attribute = OBJECTIVES[name].partition(":")
    imported = importlib.import_module(module)
    real: Any = getattr(imported, attribute)
    read: Any = settings_class(Path(str(imported.__file__)), attribute)
    assert [(f.name, f.default) for f in dataclasses.fields(read)] == [
        (f.name, f.default) for f in dataclasses.fields(real)
    ]
    for field in dataclasses.fields(real):
        for wrong in (-7, 0, "nonsense"):
            assert complaint(read, field.name, wrong) == complaint(real, field.name, wrong)


def complaint(cls: Any, field: str, value: object) -> str:
    try:
        cls(**{field: value})
    except (ValueError, TypeError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def test_an_own_objective_is_checked_before_its_imports_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text(
        "from __future__ import annotations\n"
        "from dataclasses import dataclass\n"
        "from typing import Literal\n"
        "import a_module_that_takes_seconds\n"
        "LEAST = 2\n"
        "Kind = Literal['a', 'b']\n"
        "@dataclass(frozen=True)\n"
        "class Mine:\n"
        "    scale: float = 1.0\n"
        "    kind: Kind = 'a'\n"
        "    def __post_init__(self):\n"
        "        if self.scale < LEAST:\n"
        "            raise ValueError(f'scale {self.scale} must be at least {LEAST}')\n"
        "    def loss(self):\n"
        "        return a_module_that_takes_seconds.f()\n"
    )
    monkeypatch.chdir(tmp_path)
    check_settings({"name": "mine:Mine", "scale": 3})
    for settings, named in (
        ({"scale": 1}, "objective: scale 1.0 must be at least 2"),
        ({"kind": "c"}, "objective: kind: 'c' is not valid; valid: a, b"),
        ({"scal": 1}, "did you mean 'scale'"),
    ):
        with pytest.raises(UserError, match=named):
            check_settings({"name": "mine:Mine", **settings})
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts/limits.py").write_text("LEAST = 2\n")
    (tmp_path / "parts/theirs.py").write_text(
        "from dataclasses import dataclass\n"
        "from .limits import LEAST\n"
        "@dataclass\n"
        "class Theirs:\n"
        "    scale: float = 1.0\n"
        "    def __post_init__(self):\n"
        "        if self.scale < LEAST:\n"
        "            raise ValueError('too small')\n"
        "@dataclass\n"
        "class Checked:\n"
        "    scale: float = 1.0\n"
        "    def __post_init__(self):\n"
        "        self.check()\n"
        "    def check(self): ...\n"
    )
    with pytest.raises(UserError, match="objective: too small"):
        check_settings({"name": "parts.theirs:Theirs"})
    check_settings({"name": "parts.theirs:Checked"})  # is checked when it is made
    with pytest.raises(UserError, match=r"there is no module 'nobodys'; put nobodys\.py into this folder"):
        check_settings({"name": "nobodys:Mine"})
    with pytest.raises(UserError, match="unknown objective 'lfop'; did you mean 'lfpo'"):
        make_objective({"name": "lfop"})
