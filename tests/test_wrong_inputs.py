"""Every mistake is one sentence with exit code 2, and leaves nothing behind."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import wrong_inputs
from lfpo.base.errors import UserError
from lfpo.cli import main


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wrong")
    wrong_inputs.write_files(folder)
    return folder


def contents(folder: Path) -> list[str]:
    return sorted(str(p) for p in folder.rglob("*") if "__pycache__" not in p.parts)


@pytest.mark.parametrize("command", wrong_inputs.COMMANDS)
def test_a_wrong_command_is_one_sentence(
    command: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    before = contents(folder)
    assert main(command.split()) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and lines[0].startswith("error: ") and wrong_inputs.COMMANDS[command] in lines[0], lines
    assert contents(folder) == before


@pytest.mark.parametrize("code", wrong_inputs.CODE)
def test_wrong_code_is_one_sentence(code: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    with pytest.raises((UserError, ValueError)) as caught:
        exec(wrong_inputs.API + code)
    assert wrong_inputs.CODE[code] in str(caught.value) and "\n" not in str(caught.value)
    assert not os.path.exists("out")
