import dataclasses
import enum
import functools
import re
from pathlib import Path
from types import UnionType
from typing import Any, ClassVar, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np
import pytest
import torch

from benchmarks.problem import BenchRolloutConfig
from benchmarks.sandbox import BenchSandboxConfig
from benchmarks.update import BenchUpdateConfig
from drill.command import DrillConfig
from lfpo.cli.command_line import main
from lfpo.cli.list_recipes import TITLES, kind_of, row
from lfpo.config.arguments import parse_overrides, read_arguments, text_keys
from lfpo.config.build import (
    PARTS,
    RECIPES,
    build,
    load_yaml,
    merge,
    recipe_names,
    to_dict,
    typed,
    yaml_text,
)
from lfpo.config.compare import CompareConfig
from lfpo.config.dpo import DPOConfig
from lfpo.config.engine import EngineSettings
from lfpo.config.errors import UserError
from lfpo.config.eval import EvalConfig
from lfpo.config.models import LoraSettings
from lfpo.config.plan import PlanConfig
from lfpo.config.sample import SampleConfig, demo_config
from lfpo.config.sampler import SamplerConfig
from lfpo.config.sft import SFTConfig
from lfpo.config.train import LFPOConfig
from lfpo.config.watch import WatchConfig
from lfpo.objectives import make_objective
from lfpo.objectives.needs import check_rollouts
from lfpo.prompts.tasks import get_task

COMMANDS = [
    *(BenchRolloutConfig, BenchSandboxConfig, BenchUpdateConfig, CompareConfig, DrillConfig, EvalConfig, LFPOConfig),
    *(PlanConfig, SampleConfig, SFTConfig, WatchConfig),
]
NEEDED: dict[type, dict[str, Any]] = {
    CompareConfig: {"recipe": "sudoku", "output_dir": "out", "objectives": {"lfpo": {"name": "lfpo"}}},
    EvalConfig: {"task": "sudoku"},
    LFPOConfig: {"output_dir": "out"},
    SampleConfig: {"prompt": "a"},
    SFTConfig: {"output_dir": "out", "model": "embedded", "tasks": {"words": 1}},
    WatchConfig: {"run": "out"},
}


@functools.cache
def recipe(name: str) -> dict[str, Any]:
    return load_yaml(name)


@pytest.fixture
def read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading all recipes takes a second."""
    monkeypatch.setattr("lfpo.cli.list_recipes.load_yaml", recipe)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("[q_proj, v_proj]", ["q_proj", "v_proj"]),
        ("q_proj,v_proj", ["q_proj", "v_proj"]),
        ("q_proj", ["q_proj"]),
        ("[]", []),
        ("all-linear", "all-linear"),
        ("as-published", "as-published"),
    ],
)
def test_the_layers_of_an_adapter_are_words_or_a_list(text: str, value: object) -> None:
    given = parse_overrides(["--lora.target_modules", text, "--output_dir", "x"], text_keys(LFPOConfig))
    built = build(LFPOConfig, given)
    assert built.lora is not None and built.lora.target_modules == value


def test_nested_values_and_defaults() -> None:
    values = {"output_dir": "out", "model": "embedded", "learning_rate": 1, "tasks": {"words": 2}}
    config = build(SFTConfig, values)
    assert (config.learning_rate, config.tasks) == (1.0, {"words": 2.0})
    assert isinstance(config.learning_rate, float) and isinstance(config.tasks["words"], float)
    config = build(LFPOConfig, {"output_dir": "out", "sampler": {"steps": 8}})
    assert config.sampler == SamplerConfig(temperature=1.0, steps=8)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 1e-3),
        ("1E5", 1e5),
        ("-2.5e-3", -2.5e-3),
        (".5e1", 5.0),
        ("1.0e-5", 1e-5),
        ("3", 3),
        ("-1", -1),
        ("true", True),
        ("null", None),
        ("[1, 2]", [1, 2]),
        ("{a: 1e-3}", {"a": 1e-3}),
        ("word", "word"),
        ("1e", "1e"),
        ("[unclosed", "[unclosed"),
    ],
)
def test_override_values(text: str, value: Any) -> None:
    assert parse_overrides(["--key", text]) == {"key": value}
    assert parse_overrides([f"--key={text}"]) == {"key": value}
    assert type(parse_overrides(["--key", text])["key"]) is type(value)


def test_overrides_nest_and_dashes_are_underscores() -> None:
    arguments = ["--sampler.steps", "8", "--flag", "--sampler.threshold=0.9", "--learning-rate", "1e-3"]
    assert parse_overrides(arguments) == {
        "sampler": {"steps": 8, "threshold": 0.9},
        "flag": True,
        "learning_rate": 1e-3,
    }


@pytest.mark.parametrize(
    "text", ["5 apples # how many?", "12:30", "007", "a: b", "2024-05-01", "2024-13-45", "{a", "~"]
)
def test_text_is_kept_as_it_is_typed(text: str) -> None:
    class_keys = text_keys(LFPOConfig)
    assert {"output_dir", "task", "sampler.rule", "engine.name"} <= class_keys
    assert not {"max_steps", "sampler.steps", "lora", "objective", "optim"} & class_keys
    for keys in (["--output_dir", text], [f"--output-dir={text}"]):
        assert parse_overrides(keys, class_keys) == {"output_dir": text}
    assert parse_overrides(["--sampler.rule", text], class_keys) == {"sampler": {"rule": text}}
    assert parse_overrides(["--task", "null", "--model"], class_keys) == {"task": None, "model": True}


def test_octal_base_60_and_dates_are_text_and_powers_of_ten_are_numbers(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("a: 1:30\nb: -.5\nc: .inf\nd: 1e-3\ne: 1.5e+3\nf: +7\ng: 010\nh: 1.\ni: 1_000\nj: 2024-05-01\n")
    values = {"a": "1:30", "b": -0.5, "c": float("inf"), "d": 1e-3, "e": 1500.0, "f": 7, "g": "010", "h": 1.0}
    assert load_yaml(file) == values | {"i": 1000, "j": "2024-05-01"}


def test_variables_in_yaml_are_expanded_and_one_that_is_not_set_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCRATCH", str(tmp_path))
    (tmp_path / "part.yaml").write_text("model: $SCRATCH/model\n")
    file = tmp_path / "run.yaml"
    file.write_text("include: [$SCRATCH/part.yaml]\noutput_dir: ${SCRATCH}/run\nreward_funcs: [$SCRATCH.a, costs.$5]\n")
    assert load_yaml(file) == {
        "model": f"{tmp_path}/model",
        "output_dir": f"{tmp_path}/run",
        "reward_funcs": [f"{tmp_path}.a", "costs.$5"],
    }
    file.write_text("sampler: {rule: $NOT_SET/x}\n")
    with pytest.raises(UserError, match=r"run.yaml: sampler: rule: .* names the environment variable NOT_SET"):
        load_yaml(file)


class Schedule(enum.Enum):
    COSINE = "cosine"


class Name(enum.StrEnum):
    WORDS = "words"


def test_values_of_python_programs_are_taken() -> None:
    several: Any = torch.tensor([1.0, 2.0])
    given: dict[str, Any] = {
        "output_dir": Path("runs/x"),
        "task": Name.WORDS,
        "lr_scheduler_type": Schedule.COSINE,
        "dtype": torch.bfloat16,
        "learning_rate": np.float32(0.5),
        "bf16": np.bool_(True),
        "reward_weights": several,
        "stop_on": ("no_signal",),
        "objective": {"name": "lfpo", "timesteps": np.int64(2)},
    }
    nested: dict[str, Any] = {"r": np.int64(4), "target_modules": ("q_proj",), "max_staleness": np.int8(1)}
    lora = LoraSettings(r=nested["r"], target_modules=nested["target_modules"])
    sampler, engine = SamplerConfig(temperature=several[0]), EngineSettings(max_staleness=nested["max_staleness"])
    config = LFPOConfig(**given, lora=lora, sampler=sampler, engine=engine)
    assert (config.output_dir, config.task, config.lr_scheduler_type) == ("runs/x", "words", "cosine")
    assert (config.dtype, config.learning_rate, config.bf16) == ("bfloat16", 0.5, True)
    assert (config.reward_weights, config.stop_on) == ([1.0, 2.0], ["no_signal"])
    assert build(LFPOConfig, typed(yaml_text(to_dict(config)))) == config  # all of it is plain data
    assert build(CompareConfig, NEEDED[CompareConfig] | {"seeds": range(3)}).seeds == [0, 1, 2]


@pytest.mark.parametrize("given", [["--config", "sudoku"], ["--config=sudoku"]])
def test_a_file_may_be_named_as_trl_names_it(given: list[str]) -> None:
    for rest in ([*given, "--max_steps", "3"], ["--max_steps", "3", *given]):
        values, overrides = read_arguments(rest, "", LFPOConfig, recipes_of="train")
        assert values == load_yaml("sudoku") and overrides == {"max_steps": 3}


def test_a_column_keeps_its_dashes() -> None:
    found = parse_overrides(["--columns.my-answer", "solution", "--max-steps", "3"])
    assert found == {"columns": {"my-answer": "solution"}, "max_steps": 3}


def test_merge_lays_one_mapping_over_another_without_changing_either() -> None:
    base = {"a": 1, "b": {"c": 2, "d": 3}, "e": {"f": 1}}
    assert merge(base, {"b": {"c": 9}, "e": 0, "g": 1}) == {"a": 1, "b": {"c": 9, "d": 3}, "e": 0, "g": 1}
    assert base == {"a": 1, "b": {"c": 2, "d": 3}, "e": {"f": 1}}


def test_knobs_of_one_objective_never_become_anothers() -> None:
    base = {"objective": {"name": "lfpo", "beta": 0.3, "timesteps": 2}, "sampler": {"steps": 4}}
    named = merge(base, {"objective": {"name": "diffu_grpo"}, "sampler": {"temperature": 0.5}})
    assert named == {"objective": {"name": "diffu_grpo"}, "sampler": {"steps": 4, "temperature": 0.5}}
    assert merge(base, {"objective": {"name": "lfpo", "beta": 1.0}})["objective"]["timesteps"] == 2
    assert merge(base, {"objective": {"beta": 1.0}})["objective"] == {"name": "lfpo", "beta": 1.0, "timesteps": 2}


def test_shipped_recipes_are_found_by_name(read_once: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = build(SFTConfig, load_yaml("embedded-pretrain"))
    assert config.init is not None
    assert config.init["rope_theta"] == 100.0
    assert dataclasses.asdict(build(SFTConfig, load_yaml("embedded-pretrain.yaml"))) == dataclasses.asdict(config)
    for name in recipe_names():
        kinds: dict[str, type] = {"sft": SFTConfig, "compare": CompareConfig, "dpo": DPOConfig}
        build(kinds.get(kind_of(name), LFPOConfig), recipe(name))


def test_included_files_lie_under_the_file_that_names_them(tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "a.yaml").write_text("seed: 1\nsampler: {steps: 4, temperature: 0.5}\n")
    (tmp_path / "parts" / "b.yaml").write_text("include: [a.yaml]\nsampler: {steps: 8}\n")
    (tmp_path / "c.yaml").write_text("include: [parts/b.yaml, algorithms/agrpo]\nmax_steps: 3\n")
    values = load_yaml(tmp_path / "c.yaml")
    assert (values["seed"], values["max_steps"], values["objective"]["name"]) == (1, 3, "agrpo")
    assert values["sampler"]["temperature"] == 0.6 and values["sampler"]["steps"] == 128  # the later file wins
    assert "include" not in values


@pytest.mark.parametrize("model", ["llada-8b", "diffucoder-7b"])
@pytest.mark.parametrize("algorithm", sorted(p.stem for p in (RECIPES / "algorithms").glob("*.yaml")))
def test_published_settings_compose(tmp_path: Path, model: str, algorithm: str) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(f"include: [models/{model}, protocols/paper, algorithms/{algorithm}]\noutput_dir: x\n")
    config = build(LFPOConfig, load_yaml(file))
    objective = make_objective(config.objective)
    assert config.objective["name"] == algorithm.removesuffix("-paper")
    config.sampler.for_length(512)
    if config.objective["name"] != "lfpo":  # only lfpo trains with the paper's decoding protocol
        assert (config.sampler.schedule, config.sampler.early_stop) == ("llada", "none")
    for sampler in config.eval_samplers.values():
        assert sampler.for_length(512).gen_length == 512
    check_rollouts(objective, config.sampler)


def test_every_row_of_the_paper_composes() -> None:
    names = sorted(p.stem for p in (RECIPES / "paper").glob("*.yaml"))
    assert len(names) == 8
    for name in names:
        config = build(LFPOConfig, load_yaml(f"paper/{name}"), name)
        base = "apple/DiffuCoder-7B-Instruct" if name.startswith("diffucoder") else "GSAI-ML/LLaDA-8B-Instruct"
        assert (config.model, config.objective["name"]) == (base, "lfpo")
        assert config.task is not None and name.endswith(config.task) and config.bf16
        assert not config.reward_funcs or "acecode" not in name
        assert (config.sampler.gen_length, config.sampler.steps, config.sampler.temperature) == (512, 2048, 1.0)
        assert config.eval_samplers["confidence"].early_stop == "both"
        get_task(config.task)


def test_a_short_name_means_one_recipe():
    short = [name.rpartition("/")[2] for name in recipe_names()]
    assert len(set(short)) == len(short)
    assert "paper/llada-8b-gsm8k" in recipe_names()
    for name in recipe_names():
        assert load_yaml(name.rpartition("/")[2]) == recipe(name)


def test_parts_are_not_listed_as_runs():
    names = set(recipe_names())
    parts = set(recipe_names(parts=True)) - names
    assert {name.partition("/")[0] for name in parts} == set(PARTS)
    assert len(parts) + len(names) == len(list(RECIPES.rglob("*.yaml")))


def test_the_tables_hold_every_recipe_and_fit_80_columns(
    read_once: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["recipes"]) == 0
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= 80
    for name in recipe_names():
        found = re.search(rf"^ +{re.escape(name.rpartition('/')[2])} .*", printed, re.MULTILINE)
        assert found is not None, name
        assert row(name)[3] in found[0]
    for part in recipe_names(parts=True):
        assert part.rpartition("/")[2] in printed
    assert {kind_of(name) for name in recipe_names()} == set(TITLES)


def test_each_demo_has_its_own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs/demo-1").mkdir(parents=True)
    assert demo_config([]).output_dir == "runs/demo-2"
    assert demo_config(["--output_dir", "mine"]).output_dir == "mine"


def test_evaluations_of_a_recipe():
    config = build(LFPOConfig, {"output_dir": "x", "eval_steps": 4, "max_steps": 10})
    assert [step for step in range(11) if config.evaluates_after(step)] == [0, 4, 8, 10]


def test_runs_on_gpus_state_their_steps_and_evaluate_seldom(read_once: None):
    """The defaults are for small models: at 8 B, an evaluation takes as long as several iterations."""
    for name in recipe_names():
        if kind_of(name) == "gpu":
            values = recipe(name)
            assert values["max_steps"] >= 100
            config = build(LFPOConfig, values)
            assert sum(config.evaluates_after(step) for step in range(config.max_steps + 1)) == 3


@pytest.mark.parametrize("cls", COMMANDS, ids=lambda cls: cls.__name__)
def test_every_command_can_be_given_its_own_settings(cls: type, tmp_path: Path) -> None:
    """Every default is read back, and every field is of a type that a file or the command line can spell."""
    config: Any = build(cls, NEEDED.get(cls, {}))
    (tmp_path / "c.yaml").write_text(yaml_text(to_dict(config)))
    assert build(cls, load_yaml(tmp_path / "c.yaml")) == config
    for name, hint in get_type_hints(cls).items():
        if get_origin(hint) is not ClassVar:
            assert spelled(hint), name


def spelled(hint: Any) -> bool:
    """Whether `build` makes such values from plain data."""
    if get_origin(hint) in (list, dict, Union, UnionType):
        return all(spelled(part) for part in get_args(hint))
    plain = hint in (int, float, str, bool, type(None), Any)
    return plain or get_origin(hint) is Literal or dataclasses.is_dataclass(hint)
