"""`python -m benchmarks NAME`."""

import importlib
import sys

from lfpo.base.environment import before_torch
from lfpo.config.arguments import configure
from lfpo.config.errors import UserError

USAGE = """usage: python -m benchmarks NAME [--key value ...]

  rollout   sampling: the plain loop, then each technique added in turn
  update    the fused loss and training iterations
  bfloat16  training steps in float32 and under bfloat16 autocast
  precision the error of logits, loss and gradients for each head precision
  sandbox   verdicts on model-written code

`python -m benchmarks NAME --help` lists the keys of one."""


# name -> (configuration, function), in the module of that name
BENCHES = {
    "rollout": ("BenchRolloutConfig", "run_bench_rollout"),
    "update": ("BenchUpdateConfig", "run_bench_update"),
    "bfloat16": ("BenchBfloat16Config", "run_bench_bfloat16"),
    "precision": ("BenchPrecisionConfig", "run_bench_precision"),
    "sandbox": ("BenchSandboxConfig", "run_bench_sandbox"),
}


def main(arguments: list[str]) -> int:
    """Run the benchmark named by the first argument. Returns 2 for another name or wrong settings."""
    before_torch()  # as the command `lfpo` does
    name = arguments[0] if arguments else ""
    if name in ("-h", "--help"):
        print(USAGE)
        return 0
    try:
        if name not in BENCHES:
            raise UserError(f"benchmarks: expected one of {', '.join(BENCHES)}, found {name!r}")
        config, run = BENCHES[name]
        module = importlib.import_module(f"benchmarks.{name}")
        settings, _ = configure(getattr(module, config), arguments[1:], takes_file=False, command=f"bench {name}")
        print(f"wrote {getattr(module, run)(settings)}")
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
