"""Dotted paths in a process that lives on while its user edits files, as in a notebook."""

import importlib
import sys
from pathlib import Path

import pytest

from lfpo.config.errors import UserError
from lfpo.config.plugins import resolve


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
