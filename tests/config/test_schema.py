"""The JSON schemas: one says of a value what the reader of settings says of it."""

import dataclasses
import functools
import json
import re
import typing
from pathlib import Path
from typing import Any, ClassVar

import pytest
from jsonschema import Draft7Validator

from lfpo.cli.command_line import main
from lfpo.config.build import RECIPES, build, command_of, load_yaml, read_value, typed
from lfpo.config.checks import OneOf, limits, options
from lfpo.config.engine import EngineSettings
from lfpo.config.errors import UserError
from lfpo.config.help import meanings
from lfpo.config.models import LoraSettings
from lfpo.config.objectives import OBJECTIVES, OfObjective, knobs_class
from lfpo.config.peers import VRPO
from lfpo.config.sampler import SamplerConfig
from lfpo.config.schema import CONFIGS, schema, value_schema
from lfpo.config.train import LFPOConfig
from lfpo.prompts.tasks import get_task
from lfpo.runs import health, trackers

DOCS = Path(__file__).parents[2] / "docs"
NESTED = (SamplerConfig, EngineSettings, LoraSettings, VRPO, *map(knobs_class, OBJECTIVES))
CLASSES = list(dict.fromkeys([*(cls for classes in CONFIGS.values() for cls in classes), *NESTED]))
# The types of all keys, each once, with the first key that has it.
FIELDS: dict[Any, str] = {}
for _class in CLASSES:
    for _name, _hint in typing.get_type_hints(_class, include_extras=True).items():
        if typing.get_origin(_hint) is not ClassVar:
            FIELDS.setdefault(_hint, f"{_class.__name__}.{_name}")
PROBES: list[Any] = [
    None,
    True,
    "name",
    "a",
    -1,
    0,
    0.5,
    1,
    1.5,
    2,
    70000,
    0.999,
    "",
    [],
    [1],
    ["a"],
    [None],
    {},
    {"a": 1},
]
PROBES += [{"a": {}}, {"a": "b"}, {"steps": 0}, {"steps": 4}, {"r": 2}, {"name": "espo"}, {"name": "my.Engine"}]
PROBES += ["tensorboard", ["reward_falls"], "llada", "constant", "bfloat16", "uniform", "my_module:my_thing"]


@functools.cache
def editor(command: str) -> Draft7Validator:
    """What an editor does with a command's schema."""
    return Draft7Validator(schema(command))


def complaints(values: dict[str, Any], command: str = "train") -> list[str]:
    """The keys that an editor marks, and why."""
    errors = editor(command).iter_errors(values)
    return [f"{'.'.join(map(str, error.path))}: {error.message}" for error in errors]


@pytest.mark.parametrize("command", CONFIGS)
def test_a_schema_is_one_and_the_command_prints_it(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    Draft7Validator.check_schema(schema(command))
    assert main(["schema", command]) == 0
    assert json.loads(capsys.readouterr().out) == schema(command)


@pytest.mark.parametrize("path", sorted(RECIPES.rglob("*.yaml")), ids=lambda p: p.stem)
def test_shipped_recipes_keep_to_their_schema(path: Path) -> None:
    whole = load_yaml(path)
    command = "eval" if path.parent.name == "protocols" else command_of(whole)
    whole.pop("eval_samplers") if command == "eval" else None  # for evaluation during training
    assert not complaints(whole, command)
    if command != "eval":
        assert not complaints(typed(path.read_text()), command)  # with its `include`


PAGES = [*sorted(DOCS.glob("*.md")), DOCS.parent / "README.md"]
ON_PAGES = [
    pytest.param(block, id=page.stem)
    for page in PAGES
    for block in re.findall(r"^```yaml\n(include:.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
]


@pytest.mark.parametrize("recipe", ON_PAGES)
def test_recipes_on_pages_keep_to_their_schema(recipe: str) -> None:
    assert not complaints(typed(recipe))


@pytest.mark.parametrize("hint", FIELDS, ids=FIELDS.values())
def test_schema_and_reader_agree_on_every_key(hint: Any) -> None:
    """But for text in place of a list, whose parts an editor does not see, and for a number in place of a name."""
    definitions: dict[str, Any] = {}
    validator = Draft7Validator({**value_schema(hint, definitions), "definitions": definitions})
    is_list = any(typing.get_origin(option) is list for option in options(hint))
    is_name = any(isinstance(mark, OneOf) for option in options(hint) for mark in getattr(option, "__metadata__", ()))
    plain = typing.get_type_hints(dataclasses.make_dataclass("One", [("key", hint)]))["key"]
    for value in PROBES:
        if (is_list and isinstance(value, str)) or (is_name and isinstance(value, int | float)):
            assert validator.is_valid(value) or not taken(hint, plain, value), value
        else:
            assert validator.is_valid(value) == taken(hint, plain, value), value


def taken(hint: Any, plain: Any, value: Any) -> bool:
    """Whether the reader takes a value for a field of this type (plain: without marks), and finds what it names."""
    try:
        read = read_value(value, plain, "key")
    except UserError:
        return False
    return all(read is None or limit.holds(read) for limit in limits(hint)) and named(hint, read)


def named(hint: Any, value: Any) -> bool:
    """Whether a text is a name that its field takes, and key: value pairs are knobs of the objective they name."""
    for mark in (mark for option in options(hint) for mark in getattr(option, "__metadata__", ())):
        if isinstance(mark, OneOf) and isinstance(value, str):
            return value in mark.names or (mark.others is not None and re.search(mark.others, value) is not None)
        if isinstance(mark, OfObjective):
            name = value.get("name", "lfpo")
            knobs = {f.name for f in dataclasses.fields(knobs_class(name))} if name in OBJECTIVES else set(value)
            return set(value) <= {"name", *mark.other_keys, *knobs}
    if typing.get_origin(hint) is dict:
        return all(named(typing.get_args(hint)[1], part) for part in value.values())
    return True


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_every_key_says_what_it_means(cls: type) -> None:
    texts = meanings(cls)
    for field in dataclasses.fields(cls):
        assert len(texts.get(field.name, "")) > 5, field.name
    assert set(texts) <= {field.name for field in dataclasses.fields(cls)}


@pytest.mark.parametrize(
    ("values", "key", "why"),
    [
        ({"max_step": 3}, "", "'max_step' was unexpected"),
        ({"optim": "adamw"}, "optim", "'adamw' is not one of"),
        ({"max_steps": 0}, "max_steps", "should not be valid"),
        ({"eval_size": -1}, "eval_size", "less than the minimum of 0"),
        ({"ema_decay": 1}, "ema_decay", "greater than or equal to the maximum of 1"),
        ({"sampler": {"top_p": 0}}, "sampler.top_p", "less than or equal to the minimum of 0"),
        ({"sampler": {"stesp": 4}}, "sampler", "'stesp' was unexpected"),
        ({"eval_samplers": {"greedy": {"steps": "x"}}}, "eval_samplers.greedy.steps", "is not of type"),
        ({"objective": {"name": "espo", "nodes": 3}}, "objective", "'nodes' was unexpected"),
        ({"objective": {"clip": -1.0}}, "objective.clip", "less than or equal to the minimum of 0"),
        ({"engine": {"name": "rya"}}, "engine.name", "not valid under any"),
        ({"lora": {"r": "all"}}, "lora", "not valid under any"),
        ({"stop_on": ["reward_fall"]}, "stop_on.0", "is not one of"),
    ],
)
def test_an_editor_marks_the_wrong_key_and_so_does_the_reader(values: dict[str, Any], key: str, why: str) -> None:
    (text,) = complaints(values)
    assert text.startswith(f"{key}: ") and why in text
    with pytest.raises((UserError, ModuleNotFoundError)):
        build(LFPOConfig, {"output_dir": "out", **values})


def test_other_names_of_keys_and_own_objectives_are_taken() -> None:
    assert not complaints({"lr": 1e-3, "dataset": "a.jsonl", "sampler": {"block_size": 4, "max_completion_length": 8}})
    assert not complaints({"objective": {"name": "my_objective:Mine", "anything": 3}})
    labels = {"a": {"name": "espo", "mc_samples": 1, "config": {"learning_rate": 1e-4}}}
    assert not complaints({"recipe": "words", "objectives": labels}, "compare")


def test_the_defaults_of_a_schema_are_read_as_the_defaults() -> None:
    properties = schema("train")["properties"]
    names = [f.name for f in dataclasses.fields(LFPOConfig) if f.name != "output_dir"]
    values = {name: properties[name]["default"] for name in names}
    assert build(LFPOConfig, {**values, "output_dir": "out"}) == build(LFPOConfig, {"output_dir": "out"})


def test_names_are_those_of_what_is_looked_up() -> None:
    stops = schema("train")["properties"]["stop_on"]["items"]["enum"]
    assert stops == list(health.RULES)
    assert schema("train")["properties"]["report_to"]["items"]["enum"] == list(trackers.TRACKERS)
    names = schema("train")["properties"]["task"]["anyOf"][0]["enum"]
    assert {"sudoku", "successor32", "gsm8k"} <= set(names) and all(get_task(name) for name in names)


def test_the_page_names_the_line_for_editors() -> None:
    page = (DOCS / "quickstart.md").read_text(encoding="utf-8")
    assert "lfpo schema train > " in page and "# yaml-language-server: $schema=" in page
