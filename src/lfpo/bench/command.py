"""`lfpo bench NAME`."""

from __future__ import annotations

import importlib

from lfpo.base.errors import UserError
from lfpo.base.options import configure

USAGE = """usage: lfpo bench NAME [--key value ...]

  rollout   sampling: the plain loop, then each technique added in turn
  update    the fused loss and training iterations
  precision the error of logits, loss and gradients for each head precision
  sandbox   verdicts on model-written code

`lfpo bench NAME --help` lists the keys of one."""


# name -> (module, configuration, function)
BENCHES = {
    "rollout": ("rollout", "BenchRolloutConfig", "run_bench_rollout"),
    "update": ("update", "BenchUpdateConfig", "run_bench_update"),
    "precision": ("precision", "BenchPrecisionConfig", "run_bench_precision"),
    "sandbox": ("sandbox", "BenchSandboxConfig", "run_bench_sandbox"),
}


def run_bench(rest: list[str]) -> None:
    """Run the benchmark named by the first argument. Raises UserError for another name or wrong settings."""
    name = rest[0] if rest else ""
    if name in ("-h", "--help"):
        print(USAGE)
        return
    if name not in BENCHES:
        raise UserError(f"lfpo bench: expected one of {', '.join(BENCHES)}, found {name!r}")
    file, config, run = BENCHES[name]
    module = importlib.import_module(f"lfpo.bench.{file}")
    settings, _ = configure(getattr(module, config), rest[1:], takes_file=False, command=f"bench {name}")
    print(f"wrote {getattr(module, run)(settings)}")
