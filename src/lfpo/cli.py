"""The command line: `lfpo COMMAND`. Each command is one function; options are the fields of its dataclass."""

from __future__ import annotations

import dataclasses
import inspect
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from .config import build, load_yaml, merge, parse_overrides, recipe_names
from .errors import LOST, ProcessLost, UserError, nearest

USAGE = """usage: lfpo COMMAND [CONFIG] [--key value ...]

  train CONFIG    reinforcement learning (LFPO or another objective)
  sft CONFIG      supervised training by the masked diffusion loss
  sample          denoise one prompt; --show-steps true shows how
  eval            accuracy, steps and forwards of a model on a task
  lm-eval         the same model in lm-evaluation-harness, whose options it takes
  compare CONFIG  objectives on the same base, rollouts and sampler; tables and figures
  report RUN      (re)write a run's report.html; --text prints it, --figures writes SVG and PDF
  watch RUN       serve a run's report, live while it trains
  plan CONFIG     memory and time of a training run before it starts
  bench NAME      measure speed and memory; NAME: rollout, update, sandbox
  demo            train the embedded model by LFPO and show before and after
  drill           faults done to real runs: what is survived, and what it costs
  doctor          what this machine has, and whether lfpo works on it

CONFIG is a YAML file or the name of a recipe that comes with lfpo: {recipes}.
Any key can be given or changed as --key value (nested: --objective.beta 0.3).
`lfpo COMMAND --help` lists a command's keys. --resume continues a run."""


def main(arguments: list[str] | None = None) -> int:
    """Run one command. Exit code 0: done; 2: a mistake in the input, told in one line on standard error; 128 + N:
    signal N ended it, training with a checkpoint; 75: another of several processes was lost, start again."""
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        return _run(arguments)
    except UserError as error:
        rank = int(os.environ.get("RANK", "0"))
        # Of several processes the first speaks for all, until they have rollouts of their own to stumble over.
        if rank == 0 or _at_work():
            print(f"error: {f'process {rank}: ' if rank else ''}{error}", file=sys.stderr)
        return 2
    except ProcessLost as lost:
        if lost.speaks:
            print(f"lost: {lost}", file=sys.stderr)
        return LOST
    except KeyboardInterrupt as stop:
        number = getattr(stop, "number", signal.SIGINT)
        if os.environ.get("RANK", "0") == "0":
            print(str(stop) or "interrupted", file=sys.stderr)
        return 128 + number  # as a shell reports a process that a signal ended


def _at_work() -> bool:
    """Whether this is one of several processes that are already at work (without importing torch to find out)."""
    module = sys.modules.get("lfpo.distributed")
    return module is not None and module.at_work


def _run(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(USAGE.format(recipes=", ".join(recipe_names())))
        return 0 if arguments else 2
    if arguments[0] == "--version":
        from . import __version__

        print(f"lfpo {__version__}")
        return 0
    name, *rest = arguments
    if name not in COMMANDS:
        raise UserError(f"unknown command {name!r}{nearest(name, COMMANDS)}")
    COMMANDS[name](rest)
    return 0


def _configure(cls: type, rest: list[str], *, takes_file: bool, command: str) -> tuple[Any, bool]:
    """A command's configuration from [CONFIG] --key value ..., and whether --resume was given."""
    if {"-h", "--help"} & set(rest):
        print(describe(cls, command, takes_file))
        raise SystemExit(0)
    values: dict[str, Any] = {}
    if takes_file and rest and not rest[0].startswith("--"):
        values, rest = load_yaml(rest[0]), rest[1:]
    overrides = parse_overrides(rest)
    resume = overrides.pop("resume", False)
    if not isinstance(resume, bool):
        raise UserError(f"--resume takes no value, found {resume!r}")
    return build(cls, merge(values, overrides), f"lfpo {command}"), resume


def describe(cls: type, command: str, takes_file: bool) -> str:
    """The help of a command: its dataclass's docstring and a line a key."""
    lines = [f"usage: lfpo {command} {'[CONFIG] ' if takes_file else ''}[--key value ...]", ""]
    lines += [inspect.cleandoc(cls.__doc__ or ""), "", "keys and defaults:"]
    for f in dataclasses.fields(cls):
        default: Any = f.default
        if default is dataclasses.MISSING:
            factory: Any = f.default_factory
            default = "(required)" if factory is dataclasses.MISSING else factory()
        if dataclasses.is_dataclass(default):
            lines += [f"  --{f.name}.{g.name} {getattr(default, g.name)}" for g in dataclasses.fields(default)]
        else:
            lines.append(f"  --{f.name} {_short(default)}")
    return "\n".join(lines)


def _short(value: Any) -> str:
    """A default for the help text: of nested settings only what differs from their own defaults."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        plain = type(value)()
        changed = {k: v for k, v in dataclasses.asdict(value).items() if v != getattr(plain, k)}
        return _short(changed)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k}: {_short(v)}" for k, v in value.items()) + "}"
    return str(value)


def train(rest: list[str]) -> None:
    from .train_config import LFPOConfig

    config, resume = _configure(LFPOConfig, rest, takes_file=True, command="train")
    from . import distributed
    from .report import write_report
    from .train import LFPOTrainer

    try:
        trainer = LFPOTrainer(args=config)
        folder = trainer.train(resume=resume)
    except (RuntimeError, MemoryError) as error:
        from .plan.command import out_of_memory

        if (explained := out_of_memory(error, config, distributed.start()[1])) is None:
            raise
        raise explained from error
    if trainer.rank == 0:
        print(f"model   {folder}\nreport  {write_report(trainer.run)}")
    distributed.stop()


def sft(rest: list[str]) -> None:
    from .sft import SFTConfig, train_sft

    config, resume = _configure(SFTConfig, rest, takes_file=True, command="sft")
    train_sft(config, resume=resume)


def sample(rest: list[str]) -> None:
    from .sample import SampleConfig, run_sample

    config, _ = _configure(SampleConfig, rest, takes_file=False, command="sample")
    run_sample(config)


def evaluate(rest: list[str]) -> None:
    from .eval.settings import EvalConfig, configure

    if {"-h", "--help"} & set(rest):
        print(describe(EvalConfig, "eval", takes_file=False))
        raise SystemExit(0)
    config = configure(parse_overrides(rest))
    from . import distributed
    from .eval.command import run_eval

    with distributed.watched():
        run_eval(config)
    distributed.stop()


def lm_eval(rest: list[str]) -> None:
    import importlib.util

    if importlib.util.find_spec("lm_eval") is None:
        raise UserError("lfpo lm-eval needs lm-evaluation-harness: pip install 'lfpo[lm-eval]'")
    from .eval.harness import main as run_harness

    run_harness(rest)


def compare(rest: list[str]) -> None:
    from .compare.command import pick_objectives, run_compare
    from .compare.settings import CompareConfig

    if {"-h", "--help"} & set(rest):
        print(describe(CompareConfig, "compare", takes_file=True))
        return
    values, rest = (load_yaml(rest[0]), rest[1:]) if rest and not rest[0].startswith("--") else ({}, rest)
    overrides = parse_overrides(rest)
    if isinstance(overrides.get("objectives"), str | list):
        values = pick_objectives(values, overrides.pop("objectives"))
    run_compare(build(CompareConfig, merge(values, overrides), "lfpo compare"))


def report(rest: list[str]) -> None:
    from .report.command import run_report

    run_report(rest)


def watch(rest: list[str]) -> None:
    from .report.watch import WatchConfig, run_watch

    if rest and not rest[0].startswith("-"):
        rest = ["--run", *rest]
    config, _ = _configure(WatchConfig, rest, takes_file=False, command="watch RUN")
    run_watch(config)


def plan(rest: list[str]) -> None:
    from .plan import PlanConfig, run_plan
    from .plan.command import configure

    if {"-h", "--help"} & set(rest):
        print(describe(PlanConfig, "plan", takes_file=True))
        return
    values, rest = (load_yaml(rest[0]), rest[1:]) if rest and not rest[0].startswith("--") else ({}, rest)
    run_plan(*configure(values, parse_overrides(rest)))


def demo(rest: list[str]) -> None:
    if {"-h", "--help"} & set(rest):
        print("usage: lfpo demo [--key value ...]\n\nTrain by the recipe `demo`; keys are those of lfpo train.")
        return
    from .demo import run_demo

    run_demo(rest)


def drill(rest: list[str]) -> None:
    from .drill.command import DrillConfig, run_drill

    config, _ = _configure(DrillConfig, rest, takes_file=False, command="drill")
    run_drill(config)


def doctor(rest: list[str]) -> None:
    if rest:
        raise UserError(f"lfpo doctor takes no arguments, found {rest[0]!r}")
    from .doctor import run_doctor

    run_doctor()


def bench(rest: list[str]) -> None:
    name = rest[0] if rest else ""
    if name == "rollout":
        from .bench.rollout import BenchRolloutConfig, run_bench_rollout

        config, _ = _configure(BenchRolloutConfig, rest[1:], takes_file=False, command="bench rollout")
        print(f"wrote {run_bench_rollout(config)}")
    elif name == "update":
        from .bench.update import BenchUpdateConfig, run_bench_update

        config, _ = _configure(BenchUpdateConfig, rest[1:], takes_file=False, command="bench update")
        print(f"wrote {run_bench_update(config)}")
    elif name == "sandbox":
        from .bench.sandbox import BenchSandboxConfig, run_bench_sandbox

        config, _ = _configure(BenchSandboxConfig, rest[1:], takes_file=False, command="bench sandbox")
        print(f"wrote {run_bench_sandbox(config)}")
    else:
        raise UserError(f"lfpo bench needs the name of a benchmark, rollout, update or sandbox, found {name!r}")


COMMANDS: dict[str, Callable[[list[str]], None]] = {
    "train": train,
    "sft": sft,
    "sample": sample,
    "eval": evaluate,
    "lm-eval": lm_eval,
    "compare": compare,
    "report": report,
    "watch": watch,
    "plan": plan,
    "bench": bench,
    "demo": demo,
    "drill": drill,
    "doctor": doctor,
}

if __name__ == "__main__":
    raise SystemExit(main())
