"""Settings are checked without torch: in a process that cannot import it, and as the objectives themselves would."""

from __future__ import annotations

import dataclasses
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from lfpo.base.config import build
from lfpo.base.errors import UserError
from lfpo.objectives import OBJECTIVES, all_settings, make_objective, settings
from lfpo.train.config import LFPOConfig

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
    "train sudoku --output_dir out --sampler.block_length 5",
    "eval --task sudoku --sampler.block_length 5",
    "sample --task sudoku --sampler.block_length 5",
    "export no-such-folder",
    "push no-such-folder a/b",
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
def test_the_knobs_that_are_checked_are_those_of_the_objective(name: str) -> None:
    module, _, attribute = OBJECTIVES[name].partition(":")
    real = getattr(importlib.import_module(module), attribute)
    assert issubclass(real, getattr(settings, attribute))
    assert dataclasses.fields(real) == dataclasses.fields(getattr(settings, attribute))
    assert "__post_init__" not in vars(real)


def test_an_own_objective_is_checked_when_it_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_knobs.py").write_text(
        "from dataclasses import dataclass\n"
        "@dataclass(frozen=True)\n"
        "class Mine:\n"
        "    scale: float = 1.0\n"
        "    needs_base = True\n"
    )
    monkeypatch.chdir(tmp_path)
    all_settings({"name": "own_knobs:Mine", "scal": 3})
    made = make_objective({"name": "own_knobs:Mine", "scale": 3})
    # What it leaves out has the values of every objective.
    assert made.needs_base and made.reads_old and made.needs == set() and made.at_progress(0.5) is made
    assert type(made).__name__ == "Mine"
    with pytest.raises(UserError, match="did you mean 'scale'"):
        make_objective({"name": "own_knobs:Mine", "scal": 1})
    with pytest.raises(UserError, match=r"there is no module 'nobodys'; put nobodys\.py into this folder"):
        all_settings({"name": "nobodys:Mine"})
    for check in (all_settings, make_objective):
        with pytest.raises(UserError, match="unknown objective 'lfop'; did you mean 'lfpo'"):
            check({"name": "lfop"})
        with pytest.raises(UserError, match=r"'dtree_rpo' was moved out of the package, to examples/objectives"):
            check({"name": "dtree_rpo"})


def test_settings_of_earlier_versions_are_told_or_left_out() -> None:
    old = {"output_dir": "x", "refill": 0, "tree": [], "objective": {"name": "lfpo"}}
    assert build(LFPOConfig, old) == LFPOConfig("x")
    with pytest.raises(UserError, match="config: 'refill: 2' was removed, because it gained nothing"):
        build(LFPOConfig, {**old, "refill": 2})
    with pytest.raises(UserError, match=r"'tree: \[4, 4\]' was removed; give it as a knob"):
        build(LFPOConfig, {**old, "tree": [4, 4]})
