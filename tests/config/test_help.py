"""`lfpo COMMAND --help`: printed from the strings below the fields."""

import ast
import dataclasses
from dataclasses import dataclass
from pathlib import Path

import pytest

import lfpo.config
from lfpo.cli.command_line import main
from lfpo.config.dpo import DPOConfig
from lfpo.config.help import describe, meanings
from lfpo.config.lfpo import LFPO
from lfpo.config.schema import CONFIGS
from lfpo.config.train import LFPOConfig

FILES = sorted(Path(lfpo.config.__file__).parent.glob("*.py"))


@dataclass
class Base:
    steps: int = 3
    """How often."""

    name: str | None = None
    """
    What it is
    called.
    """


@dataclass
class Derived(Base):
    """What it is for."""

    steps: int = 4
    name: str | None = None
    """Another name."""

    silent: bool = False


def test_the_string_below_a_field_is_its_meaning_also_where_it_is_inherited() -> None:
    assert meanings(Base) == {"steps": "How often.", "name": "What it is called."}
    assert meanings(Derived) == {"steps": "How often.", "name": "Another name."}


def test_help_lists_each_key_with_default_and_meaning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert describe(Derived, "derive", takes_file=True, flags=("resume",)).splitlines() == [
        "usage: lfpo derive [CONFIG] [--key value ...] [--resume]",
        "",
        "What it is for.",
        "",
        "keys, their defaults and what they mean:",
        "  --steps 4",
        "      How often.",
        "  --name None",
        "      Another name.",
        "  --silent False",
    ]


@pytest.mark.parametrize("command", [name for name in CONFIGS if name != "demo"])
def test_help_names_every_key(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([command, "--help"])
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 120
    for field in dataclasses.fields(CONFIGS[command][-1]):
        (at,) = [i for i, line in enumerate(lines) if line.split()[:1] == [f"--{field.name}"]]
        assert lines[at + 1].startswith("      ")


def test_nested_keys_are_listed_with_the_defaults_of_the_command() -> None:
    lines = describe(LFPOConfig, "train", takes_file=True).splitlines()
    assert "  --sampler.temperature 1.0" in lines and "  --engine.name local" in lines and "  --lora.r 128" in lines


def test_a_command_has_its_own_words_where_it_differs() -> None:
    assert meanings(DPOConfig)["update_tokens"] != meanings(LFPOConfig)["update_tokens"]
    assert meanings(DPOConfig)["fsdp"] == meanings(LFPOConfig)["fsdp"]
    assert meanings(LFPO)["num_iterations"].startswith("Passes through each batch of rollouts, each with new draws.")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_settings_import_nothing_late_and_nothing_for_types_only(path: Path) -> None:
    """The import contracts say what may be imported; here, that all of it stands at the top."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    late = [n.lineno for n in ast.walk(tree) if isinstance(n, ast.Import | ast.ImportFrom) and n not in tree.body]
    assert not late and "TYPE_CHECKING" not in path.read_text(encoding="utf-8")
