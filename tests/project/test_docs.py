"""What README and docs tell people to type works: every command is configured, and run at smoke size, in the order of
the page. What takes long even so is marked `long`: `make test-long`."""

import importlib.util
import itertools
import json
import re
import runpy
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import tiny
from drill.command import FAULTS, DrillConfig
from drill.command import main as drill
from lfpo.cli import main
from lfpo.cli.commands import COMMANDS
from lfpo.config.build import build, load_yaml
from lfpo.config.train import LFPOConfig

ROOT = Path(__file__).parents[2]
ROWS = ROOT / "tests" / "data"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
SMOKE = {
    "train": "--max_steps 1 --prompts_per_iteration 2 --num_generations 2 --optimizer_steps_per_iteration 1 "
    "--eval_size 2 --threads 1",
    "sft": "--steps 1 --batch_size 2",
    "dpo": "--max_steps 1 --batch_size 2 --eval_size 2",
    "eval": "--n 2",
    "sample": "",
    "report": "",
    "doctor": "",
    "export": "",
    "plan": "",
    "recipes": "",
    "schema": "",
    "compare": "--objectives agrpo --seeds '[1]' --problems 2 --thresholds '[0.9]' "
    "--overrides.max_steps 1 --overrides.prompts_per_iteration 2 --overrides.num_generations 2 "
    "--overrides.eval_steps 1 --overrides.optimizer_steps_per_iteration 1",
}
OURS = "--eval_samplers '{greedy: {threshold: 0.5}}'"  # added to train
TINY = "--sampler.gen_length 8 --sampler.steps 8 --sampler.block_length 8"  # for models of the hub
PAPER = f"{TINY} --sampler.early_stop none " + " ".join(
    f"--eval_samplers.{name}.gen_length 8 --eval_samplers.{name}.block_length 8"
    for name in ("greedy", "threshold", "confidence")
)
PAPER += " --eval_samplers.greedy.steps 8 --eval_samplers.confidence.steps 8"
LONG = re.compile(r"^(?:plan|compare)\b")
AWAY = re.compile(r"GSAI-ML|models/|/data/|gsm8k|embedded-pretrain|sft embedded-causal|--task all|--n_samples")
# Tests of their own start these: convert, torchrun, Ray, servers, LoRA runs, lm-evaluation-harness on data at hand, and
# families whose layout no stand-in has.
ELSEWHERE = re.compile(
    r"^(?:convert|lm-eval|watch|push) |--report_to|--fsdp|--adapter|name: ray|train nemotron-|rule canvas"
)
# What a page takes from the hub or from somebody's folders, and what stands for it here.
STAND_INS = {
    r"((?:paper/)?llada-8b-gsm8k(?:-lora)?|qwen3-0.6b-gsm8k)(?= |$)(?! --model)": r"\1 --model tiny",
    r"((?:paper/)?llada-8b-gsm8k(?:-lora)?|qwen3-0.6b-gsm8k)(?= |$)": rf"\1 --task gsm8k@{ROWS}/gsm8k",
    r"paged_(?=adamw_8bit)": "",  # which needs a GPU
    r"GSAI-ML/[\w.-]+|/?models/[\w.-]+|runs/gsm8k/model": "tiny",
    r"(?<=^train )my.yaml(?= --task)": "my.yaml --model tiny",
    r"(?<=^sft )embedded-causal": "embedded-causal --model embedded-causal",
    r"/data/gsm8k/(train|test)\.jsonl": rf"{ROWS}/gsm8k/\1.jsonl",
    r"/data/math500": f"{ROWS}/math500",
    r"(?<=task )gsm8k,math500": f"gsm8k@{ROWS}/gsm8k,math500@{ROWS}/math500",
    r"(?<=task )gsm8k(?=$| )": f"gsm8k@{ROWS}/gsm8k",
}


def typed_lines(page: Path) -> Iterator[str]:
    """The lines of a page's blocks of code, continued lines joined."""
    for block in re.findall(r"^```\w*\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE):
        yield from block.replace("\\\n", " ").splitlines()


def commands(page: Path) -> list[list[str]]:
    """The lfpo commands in a page's blocks of code, as arguments."""
    matches = (re.match(r"(?:lfpo|torchrun .*-m lfpo) (?=[a-z])(.*)", line) for line in typed_lines(page))
    return [shlex.split(match[1].partition(" > ")[0], comments=True) for match in matches if match]


RECIPES = [
    pytest.param(block, id=p.stem)
    for p in PAGES
    for block in re.findall(r"^```yaml\n(include:.*?)^```", p.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
]


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_on_a_page_is_a_configuration(recipe: str, tmp_path: Path):
    (tmp_path / "my.yaml").write_text(recipe)
    build(LFPOConfig, load_yaml(tmp_path / "my.yaml"))


def drills() -> list[str]:
    """The options of `make drill` in all pages' blocks of code."""
    words = [shlex.split(line, comments=True) for p in PAGES for line in typed_lines(p) if "make drill" in line]
    return ["".join(line[2:]).removeprefix("ARGS=") for line in words]


ALL = [pytest.param(c, id=f"{p.stem}: {' '.join(c)[:60]}") for p in PAGES for c in commands(p)]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with the files that the pages speak of."""
    monkeypatch.chdir(tmp_path)
    row = {"prompt": "choice\na b\n", "completion": "a", "answer": "a"}
    for name in ("rows.jsonl", "demonstrations.jsonl"):
        (tmp_path / name).write_text(json.dumps(row) + "\n")
    (tmp_path / "qa.csv").write_text("question,answer\nchoice a b,1\n")
    (tmp_path / "my.yaml").write_text(
        "include: [choice]\noutput_dir: runs/my\nsampler: {threshold: null, remasking: random}\n"
    )
    (tmp_path / "my-sft.yaml").write_text("output_dir: runs/my-sft\nmodel: embedded\ndata_file: demonstrations.jsonl\n")
    (tmp_path / "my-dpo.yaml").write_text("output_dir: runs/my-dpo\ndata_file: pairs.jsonl\ngen_length: 8\n")
    pair = json.dumps({"prompt": row["prompt"], "chosen": "a", "rejected": "b"})
    for name in ("pairs.jsonl", "held-out.jsonl"):
        (tmp_path / name).write_text(pair + "\n")
    (tmp_path / "my_rewards.py").write_text(
        "def ends_with(prompts, completions, **columns):\n    return [1.0] * len(prompts)\n\nshort = sums = ends_with\n"
    )
    page = (ROOT / "docs" / "own-reward-and-data.md").read_text(encoding="utf-8")
    game = re.search(r"^```python\n(# my_game.py\n.*?)^```", page, re.DOTALL | re.MULTILINE)
    assert game is not None
    (tmp_path / "my_game.py").write_text(game[1])
    monkeypatch.syspath_prepend(str(tmp_path))
    tutorial = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
    for name, text in re.findall(r"^```\w+\n# (\w+\.\w+)\n(.*?)^```", tutorial, re.DOTALL | re.MULTILINE):
        (tmp_path / name).write_text(text)
    runpy.run_path(str(tmp_path / "make_data.py"))  # train.csv and test.csv
    runpy.run_path(str(tmp_path / "make_sort.py"))
    for file in tmp_path.glob("*.py"):  # an earlier test imported its own, from a folder that may be gone
        monkeypatch.delitem(sys.modules, file.stem, raising=False)
    return tmp_path


@pytest.fixture
def nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands stop where their configuration is complete."""
    importlib.import_module("lfpo.compare.cell")  # or its first import, here, would keep the trainer below
    if importlib.util.find_spec("lm_eval"):
        monkeypatch.setattr("lfpo.eval.harness.main", lambda *args, **kwargs: None)
    trainer = SimpleNamespace(train=lambda resume: Path(), run=None, about="")
    monkeypatch.setattr("lfpo.report.write_report", lambda run: Path())
    monkeypatch.setattr("lfpo.train.rl.LFPOTrainer", lambda args: trainer)
    for place in (
        "lfpo.config.models.check_model_name",
        "lfpo.config.convert.check_paths",
        "lfpo.models.convert.run_convert",
        "lfpo.train.inputs.check_run",
        "lfpo.train.sft.train_sft",
        "lfpo.train.dpo.train_dpo",
        "lfpo.eval.command.run_each",
        "lfpo.cli.sample.run_sample",
        "lfpo.compare.grid.run_compare",
        "lfpo.plan.command.run_plan",
        "lfpo.cli.doctor.run_doctor",
        "lfpo.train.export.run_export",
        "lfpo.train.export.run_push",
        "lfpo.cli.demo.run_demo",
        "lfpo.cli.list_recipes.run_recipes",
    ):
        monkeypatch.setattr(place, lambda *args, **kwargs: None)


def test_pages_have_commands_and_all_are_known():
    assert len(ALL) > 40
    assert {param.values[0][0] for param in ALL} <= set(COMMANDS)  # type: ignore[index]


def test_links_lead_to_files():
    """mkdocs does not check links to files that are no pages."""
    texts = [*PAGES, *(ROOT / "dev").glob("*.md"), *(ROOT / "research").rglob("*.md")]
    links = [(p, x) for p in texts for x in re.findall(r"\]\((?!https?:|#)([^)#\s]+)", p.read_text(encoding="utf-8"))]
    assert len(links) > 100
    assert not [(str(p), link) for p, link in links if not (p.parent / link).exists()]


def test_the_paper_s_map_names_functions_and_tests_that_exist():
    """docs/reproducing.md: `file`: `name` is a definition in that file, `file::test` is a test."""
    page = (ROOT / "docs" / "reproducing.md").read_text(encoding="utf-8")
    named = re.findall(r"`([\w./-]+\.py)`: `(\w+)`", page) + re.findall(r"`([\w./-]+\.py)::(\w+)`", page)
    assert len(named) > 30
    for file, name in set(named):
        text = (ROOT / file).read_text(encoding="utf-8")
        assert re.search(rf"^(?:def|class) {name}\b", text, re.MULTILINE), (file, name)
    equations = ", ".join(re.findall(r"^\| Eq\. ([\d, ]+) \|", page, re.MULTILINE)).split(", ")
    assert [int(number) for number in equations] == list(range(1, 13))


@pytest.mark.usefixtures("nothing_runs", "folder")
@pytest.mark.parametrize("arguments", [p for p in ALL if p.values[0][0] not in ("report", "watch")])  # type: ignore[index]
def test_every_command_is_one_that_lfpo_takes(arguments: list[str], capsys: pytest.CaptureFixture[str]):
    if arguments[0] == "lm-eval":
        pytest.importorskip("lm_eval")
    assert main(arguments) == 0, capsys.readouterr().err


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small run, which pages call runs/mine or runs/sudoku."""
    run = tmp_path_factory.mktemp("docs") / "run"
    assert main(["train", "sudoku", "--output_dir", str(run), *shlex.split(f"{SMOKE['train']} {OURS}")]) == 0
    return run


QUICK_PAGES = {"README"}  # the others are typed in `make test-long`


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(p, id=p.stem, marks=[] if p.stem in QUICK_PAGES else [pytest.mark.long])
        for p in PAGES
        if commands(p)
    ],
)
def test_a_page_typed_from_top_to_bottom(page: Path, folder: Path, trained: Path, capsys: pytest.CaptureFixture[str]):
    for name in ("mine", "sudoku", "demo-1"):
        shutil.copytree(trained, folder / "runs" / name)
    for arguments in commands(page):
        line = " ".join(arguments)
        if not (LONG.search(line) or AWAY.search(line) or ELSEWHERE.search(line)):
            typed(f"{shlex.join(arguments)} {OURS if arguments[0] == 'train' else ''}", folder, capsys)


def those(pattern: re.Pattern[str], but: re.Pattern[str]) -> list[Any]:
    lines = [(param, " ".join(param.values[0])) for param in ALL]  # type: ignore[arg-type]
    return [param for param, line in lines if pattern.search(line) and not but.search(line)]


@pytest.mark.long
@pytest.mark.parametrize("arguments", those(LONG, ELSEWHERE))
def test_a_long_command(arguments: list[str], folder: Path, trained: Path, capsys: pytest.CaptureFixture[str]):
    shutil.copytree(trained, folder / "runs/sft")  # the tutorial's fine-tuned model
    typed(shlex.join(arguments), folder, capsys)


def test_documented_drills_name_every_group_of_faults(monkeypatch: pytest.MonkeyPatch):
    asked: list[DrillConfig] = []
    monkeypatch.setattr("drill.command.run_drill", asked.append)
    assert [drill(options.split()) for options in drills()] == [0] * len(asked)
    assert {name for config in asked for name in config.chosen} == set(FAULTS)


@pytest.mark.long
@pytest.mark.parametrize("arguments", those(AWAY, re.compile(f"{ELSEWHERE.pattern}|{LONG.pattern}")))
def test_a_command_with_models_and_data_from_elsewhere(
    arguments: list[str], folder: Path, capsys: pytest.CaptureFixture[str]
):
    tiny.with_chat_template(tiny.write_llada(folder / "tiny", max_sequence_length=4096))
    if "adamw_8bit" in " ".join(arguments):
        pytest.importorskip("bitsandbytes")
    line = shlex.join(arguments)
    for pattern, stand_in in STAND_INS.items():
        line = re.sub(pattern, stand_in, line)
    sizes = (
        PAPER if "llada-8b-gsm8k" in line else TINY if "tiny" in line and arguments[0] not in ("export", "sft") else ""
    )
    if "--protocol" in arguments:  # among several are rules without a schedule, for which `steps` is an error
        sizes = sizes.replace("--sampler.steps 8", "")
    typed(f"{line} {sizes}", folder, capsys)


def typed(line: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Run a command in the folder, at smoke size; one that trains does so from the beginning."""
    arguments = shlex.split(line)
    if arguments[0] in ("train", "sft", "dpo") and "--resume" not in arguments:
        clear(arguments, folder)
    small = f"{SMOKE[arguments[0]]} {'--n_samples 2' if '--n_samples' in arguments else ''}"
    assert main([*arguments, *shlex.split(small)]) == 0, (arguments, capsys.readouterr().err)


def clear(arguments: list[str], folder: Path) -> None:
    """A page may train the same recipe twice; the second is meant instead of the first."""
    given: dict[str, Any] = dict(itertools.pairwise(arguments))
    recipe = Path(arguments[1]).stem if not arguments[1].startswith("--") else ""
    shutil.rmtree(folder / given.get("--output_dir", f"runs/{recipe}"), ignore_errors=True)
