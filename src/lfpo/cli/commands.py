"""The commands, one function each. Each imports what it needs when it runs, so that `lfpo --help` loads no torch."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

from lfpo.config.arguments import called, configure, read_arguments, split_file
from lfpo.config.build import build, merge
from lfpo.config.errors import UserError
from lfpo.config.help import describe


def launched_rank() -> int:
    """This process's rank; 0 outside torchrun, whatever RANK says there."""
    launched = os.environ.get("WORLD_SIZE", "1") != "1"
    return int(os.environ.get("RANK", "0")) if launched else 0


def _trained(cls: type, rest: list[str], command: str, *flags: str) -> tuple[Any, set[str]]:
    """The checked configuration of a training command, and the flags that were given of `flags` and --resume."""
    config, set_flags = configure(cls, rest, takes_file=True, command=command, flags=("resume", *flags))
    _begin(config, command, resume="resume" in set_flags)
    return config, set_flags


def _begin(config: Any, command: str, *, resume: bool = False) -> None:
    """Check the inputs of a training command and print its first line. The imports after it take seconds."""
    from lfpo.runs.display import Output
    from lfpo.train.inputs import check_run

    check_run(config, command, resume=resume)
    if launched_rank() == 0:
        Output(width=200, highlight=False).print(f"loading  torch, transformers and {config.model or 'a fresh model'}")


def train(rest: list[str]) -> None:
    from lfpo.config.train import LFPOConfig

    config, flags = _trained(LFPOConfig, rest, "train", "dry_run")
    from lfpo.base import distributed
    from lfpo.core import collectives
    from lfpo.report import write_report
    from lfpo.train.rl import LFPOTrainer

    with _memory_explained(config):
        trainer = LFPOTrainer(args=config)
        if "dry_run" in flags:
            if collectives.rank() == 0:
                print(f"{trainer.about}\nNothing was written. Without --dry_run the training begins.")
            distributed.stop()
            return
        folder = trainer.train(resume="resume" in flags)
    if collectives.rank() == 0:
        print(f"model   {folder}\nreport  {write_report(trainer.run)}")
    distributed.stop()


@contextlib.contextmanager
def _memory_explained(config: object) -> Iterator[None]:
    """Turn a lack of memory in this block into one sentence that says what to lower."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        from lfpo.plan.command import out_of_memory

        if (explained := out_of_memory(error, config)) is None:
            raise
        raise explained from error


def sft(rest: list[str]) -> None:
    from lfpo.config.sft import SFTConfig

    config, flags = _trained(SFTConfig, rest, "sft")
    from lfpo.train.sft import train_sft

    with _memory_explained(config):
        train_sft(config, resume="resume" in flags)


def dpo(rest: list[str]) -> None:
    from lfpo.config.dpo import DPOConfig

    config, flags = _trained(DPOConfig, rest, "dpo")
    from lfpo.train.dpo import train_dpo

    with _memory_explained(config):
        train_dpo(config, resume="resume" in flags)


def sample(rest: list[str]) -> None:
    from lfpo.config.sample import SampleConfig

    config, _ = configure(SampleConfig, rest, takes_file=False, command="sample")
    from lfpo.cli.sample import run_sample

    run_sample(config)


def eval_(rest: list[str]) -> None:
    from lfpo.config.eval import EvalConfig, configure_each

    about = describe(EvalConfig, "eval", takes_file=False)
    _, overrides = read_arguments(rest, about, EvalConfig)
    configs = configure_each(overrides)
    from lfpo.base import distributed
    from lfpo.eval.command import run_each

    with distributed.watched():
        run_each(configs)
    distributed.stop()


def lm_eval(rest: list[str]) -> None:
    import importlib.util

    if importlib.util.find_spec("lm_eval") is None:
        raise UserError("lfpo lm-eval needs lm-evaluation-harness: pip install 'lfpo[lm-eval]'")
    from lfpo.eval.harness import main as run_harness

    run_harness(rest)


def compare(rest: list[str]) -> None:
    from lfpo.config.compare import CompareConfig, check_folder, pick_objectives

    about = describe(CompareConfig, "compare", takes_file=True)
    values, overrides = read_arguments(rest, about, CompareConfig, recipes_of="compare")
    if isinstance(overrides.get("objectives"), str | list):
        values = pick_objectives(values, overrides.pop("objectives"))
    config = build(CompareConfig, merge(values, overrides), called("compare", rest))
    check_folder(config)
    from lfpo.compare.grid import run_compare

    run_compare(config)


def report(rest: list[str]) -> None:
    from lfpo.report.command import run_report

    run_report(rest)


def watch(rest: list[str]) -> None:
    from lfpo.config.watch import WatchConfig
    from lfpo.report.watch import run_watch

    config, _ = configure(WatchConfig, _named(rest, "run"), takes_file=False, command="watch RUN")
    run_watch(config)


def export(rest: list[str]) -> None:
    from lfpo.config.export import ExportConfig

    config, _ = configure(ExportConfig, _named(rest, "run"), takes_file=False, command="export RUN")
    from lfpo.train.export import run_export

    run_export(config)


def convert(rest: list[str]) -> None:
    from lfpo.config.convert import ConvertConfig, check_paths

    config, _ = configure(
        ConvertConfig, _named(rest, "source", "folder"), takes_file=False, command="convert SOURCE FOLDER"
    )
    check_paths(config)
    from lfpo.models.convert import run_convert

    run_convert(config)


def push(rest: list[str]) -> None:
    from lfpo.config.export import PushConfig

    config, _ = configure(PushConfig, _named(rest, "run", "repo"), takes_file=False, command="push RUN USER/NAME")
    from lfpo.train.export import run_push

    run_push(config)


def _named(rest: list[str], *names: str) -> list[str]:
    """Arguments whose first ones, given without a key, are the values of the keys `names`."""
    for i, name in enumerate(names):
        if len(rest) <= 2 * i or rest[2 * i].startswith("-"):
            return rest
        rest = [*rest[: 2 * i], f"--{name}", *rest[2 * i :]]
    return rest


def plan(rest: list[str]) -> None:
    from lfpo.config.plan import PlanConfig, configure
    from lfpo.config.train import LFPOConfig

    about = describe(PlanConfig, "plan", takes_file=True)
    values, overrides = read_arguments(rest, about, PlanConfig, LFPOConfig, recipes_of="train")
    config, args = configure(values, overrides, called("plan", rest))
    from lfpo.plan.command import run_plan

    run_plan(config, args, recipe=split_file(rest)[0], overrides=overrides)


def schema(rest: list[str]) -> None:
    import json

    from lfpo.config.schema import CONFIGS
    from lfpo.config.schema import schema as schema_of

    names = ", ".join(CONFIGS)
    if {"-h", "--help"} & set(rest):
        about = "Print the JSON schema of a command's settings, by which editors complete and check YAML files."
        print(f"usage: lfpo schema COMMAND\n\n{about}\nCOMMAND is one of {names}.")
        return
    if len(rest) != 1:
        raise UserError(f"lfpo schema takes one command, found {' '.join(rest) or 'none'}; give one of {names}")
    print(json.dumps(schema_of(rest[0]), indent=2))


def recipes(rest: list[str]) -> None:
    read_arguments(rest, "usage: lfpo recipes\n\nList the shipped recipes.")
    from lfpo.cli.list_recipes import run_recipes

    run_recipes()


def demo(rest: list[str]) -> None:
    from lfpo.config.sample import demo_config

    config = demo_config(rest)
    _begin(config, "train")
    from lfpo.cli.demo import run_demo

    run_demo(config)


def doctor(rest: list[str]) -> None:
    about = "Show versions, devices and sandbox rungs, and check that lfpo works."
    read_arguments(rest, f"usage: lfpo doctor\n\n{about}")
    from lfpo.cli.doctor import run_doctor

    run_doctor()


_ALL = [
    train,
    sft,
    dpo,
    convert,
    sample,
    eval_,
    lm_eval,
    compare,
    report,
    watch,
    export,
    push,
    plan,
    recipes,
    schema,
    demo,
    doctor,
]
COMMANDS = {command.__name__.rstrip("_").replace("_", "-"): command for command in _ALL}
COLLECTIVE = {"train", "sft", "dpo", "eval", "lm-eval", "demo"}  # whose ranks share the work
