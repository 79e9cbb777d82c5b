"""What README and docs/scaling.md say of the memory and hours of large runs is what `lfpo plan` prints for them."""

import functools
import re
import shlex
from pathlib import Path

import pytest

from lfpo.cli.list_recipes import kind_of, row
from lfpo.config.arguments import parse_overrides
from lfpo.config.build import load_yaml, recipe_names
from lfpo.config.gpus import GPUS, REACHED
from lfpo.config.plan import configure
from lfpo.models.tensor_files import GIB
from lfpo.plan.estimate import Estimate
from lfpo.plan.model import model_config
from lfpo.plan.times import duration, whole_run
from lfpo.plan.ways import ways
from tiny_gemma import need_gemma

ROOT = Path(__file__).parents[2]
# A block of one command, and the sentence below it.
STATED = re.compile(
    r"```\n((?:lfpo|torchrun) [^`]*)```\n\n`lfpo plan(?: --gpu (\w+))?`: ([^.]*\.\d[^.]*(?:\.\d[^.]*)*\.)"
)


def stated(page: str) -> list[tuple[str, str, str]]:
    return STATED.findall((ROOT / page).read_text(encoding="utf-8"))


CASES = [case for page in ("README.md", "docs/scaling.md") for case in stated(page)]


def sentence(command: str, gpu: str) -> str:
    """What the pages say of a command, by the plan for GPUs of this name."""
    words = shlex.split(command.replace("\\\n", " "))
    start = words.index("train")
    options = parse_overrides([w for w in words[1:start] if w not in ("-m", "lfpo")])
    gpus = int(options.get("nnodes", 1)) * int(options.get("nproc_per_node", 1))
    _, args = configure(load_yaml(words[start + 1]), parse_overrides(words[start + 2 :]))
    found = Estimate(args, model_config(args.model), gpus=gpus)
    assert found.peak <= GPUS[gpu].memory * GIB
    run = whole_run(found, REACHED * GPUS[gpu].bfloat16 * 1e12, None)
    training, evaluation = duration(3600 * run.training_hours), duration(3600 * run.evaluation_hours)
    return f"{found.peak / GIB:.1f} GiB a GPU, {training} of training, {evaluation} of evaluation."


def test_both_pages_state_plans():
    assert len(stated("README.md")) == 3
    assert len(stated("docs/scaling.md")) >= 2


@pytest.mark.long
@pytest.mark.parametrize(("command", "gpu", "said"), CASES, ids=[" ".join(c.split())[-60:] for c, *_ in CASES])
def test_a_stated_plan_is_the_computed_one(command: str, gpu: str, said: str):
    assert " ".join(said.split()) == sentence(command, gpu or "h100")


FAMILIES = (
    "llada-8b",
    "sdar-1.7b",
    "sdar-4b",
    "sdar-8b",
    "llada2-mini",
    "nemotron-3b",
    "nemotron-8b",
    "diffusion-gemma-26b",
)


@pytest.mark.long
@pytest.mark.parametrize("name", [*(f"{model}-gsm8k" for model in FAMILIES), "llada-8b-gsm8k-lora"])
def test_the_needs_of_a_recipe_are_the_plans(name: str):
    """What a recipe needs does not depend on its task, so GSM8K stands for all."""
    if "gemma" in name:
        need_gemma()
    (full,) = (n for n in recipe_names() if n.rpartition("/")[2] == name)
    needs = row(full)[3]
    _, args = configure(load_yaml(name), {})
    plan = functools.partial(Estimate, config=model_config(args.model))
    found = {(way.label, way.estimate.gpus) for way in ways(plan, args, 1, 80 * GIB)}
    if needs == "1 GPU":
        assert ("as it stands", 1) in found
        return
    gpus = int(needs.split()[0])
    assert needs == f"{gpus} GPUs (LoRA: 1)"
    assert {("all weights, FSDP", gpus), ("LoRA", 1)} <= found
    assert ("all weights, FSDP", gpus // 2) not in found


@pytest.mark.long
def test_models_of_one_kind_need_the_same():
    for name in recipe_names():
        if kind_of(name) == "gpu" and "gsm8k" not in name:
            model = next((m for m in FAMILIES if m in name), "llada-8b")
            (stands_for,) = (n for n in recipe_names() if n.rpartition("/")[2] == f"{model}-gsm8k")
            assert row(name)[3] in (row(stands_for)[3], "1 GPU"), name
