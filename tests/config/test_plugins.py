"""Dotted paths in a process that lives on while its user edits files, as in a notebook."""

import importlib
import sys
from pathlib import Path

import pytest

from lfpo.config.errors import UserError
from lfpo.config.plugins import resolve
from lfpo.rollout.local_engine import LocalEngine, find_rule, run_unit


def test_a_module_edited_after_it_was_read_is_refused_until_it_is_loaded_again(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "edited_rows", raising=False)
    file = tmp_path / "edited_rows.py"
    file.write_text("def first(row):\n    return 1\n")
    assert resolve("edited_rows.first", {}, kind="map_row")({}) == 1
    file.write_text("def first(row):\n    return 22\n\n\ndef second(row):\n    return 3\n")
    for name in ("first", "second"):
        with pytest.raises(UserError, match=r"edited_rows.py was edited .*importlib.reload\(edited_rows\)"):
            resolve(f"edited_rows:{name}", {}, kind="map_row")
    importlib.reload(sys.modules["edited_rows"])
    assert resolve("edited_rows.first", {}, kind="map_row")({}) == 22
    assert resolve("edited_rows.second", {}, kind="map_row")({}) == 3
    file.unlink()
    assert resolve("edited_rows.first", {}, kind="map_row")({}) == 22


def test_a_reveal_rule_is_looked_up_again_for_a_new_engine(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "edited_rule", raising=False)
    (tmp_path / "edited_rule.py").write_text("from lfpo.rollout.reveal import Rule\nmine = Rule(lambda step: 1)\n")
    assert find_rule("edited_rule.mine").schedule is not None
    (tmp_path / "edited_rule.py").write_text(
        "from lfpo.rollout.reveal import Rule\nmine = Rule(lambda step: 1, schedule=None)\n"
    )
    importlib.reload(sys.modules["edited_rule"])
    LocalEngine(run_unit, rollout_tokens=64)
    assert find_rule("edited_rule.mine").schedule is None
