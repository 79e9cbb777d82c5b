"""`lfpo bench NAME`."""

from __future__ import annotations

from lfpo.base.errors import UserError
from lfpo.base.options import configure

USAGE = """usage: lfpo bench NAME [--key value ...]

  rollout   sampling: the plain loop, then each technique added in turn
  update    the fused loss and training iterations
  precision the error of logits, loss and gradients for each head precision
  sandbox   verdicts on model-written code

`lfpo bench NAME --help` lists the keys of one."""


def run_bench(rest: list[str]) -> None:
    """Run the benchmark named by the first argument. Raises UserError for another name or wrong settings."""
    name = rest[0] if rest else ""
    if name in ("-h", "--help"):
        print(USAGE)
        return
    if name == "rollout":
        from lfpo.bench.problem import BenchRolloutConfig
        from lfpo.bench.rollout import run_bench_rollout

        config, _ = configure(BenchRolloutConfig, rest[1:], takes_file=False, command="bench rollout")
        print(f"wrote {run_bench_rollout(config)}")
    elif name == "update":
        from lfpo.bench.update import BenchUpdateConfig, run_bench_update

        config, _ = configure(BenchUpdateConfig, rest[1:], takes_file=False, command="bench update")
        print(f"wrote {run_bench_update(config)}")
    elif name == "sandbox":
        from lfpo.bench.sandbox import BenchSandboxConfig, run_bench_sandbox

        config, _ = configure(BenchSandboxConfig, rest[1:], takes_file=False, command="bench sandbox")
        print(f"wrote {run_bench_sandbox(config)}")
    elif name == "precision":
        from lfpo.bench.precision import BenchPrecisionConfig, run_bench_precision

        config, _ = configure(BenchPrecisionConfig, rest[1:], takes_file=False, command="bench precision")
        print(f"wrote {run_bench_precision(config)}")
    else:
        raise UserError(f"lfpo bench: expected rollout, update, precision or sandbox, found {name!r}")
