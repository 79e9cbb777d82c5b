"""Dotted paths in a process that lives on while its user edits files, as in a notebook."""

import importlib
import sys
from pathlib import Path

from lfpo.rollout.local_engine import LocalEngine, find_rule, run_unit


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
