"""Speed of rollouts at the size of an 8B model, and how often they wait for the device."""

import contextlib
import json
import tempfile
import warnings
from collections.abc import Iterator
from typing import Any, Literal
from unittest import mock

import torch

from benchmarks.problem import BenchRolloutConfig, random_prompts
from benchmarks.rollout import run_bench_rollout
from cuda_stand_in import cuda_stand_in
from gpu.rows import Machine, Row, at_least, at_most, measured, not_run
from gpu.shapes import SMALL
from lfpo.base.measure import matmul_peak, timed
from lfpo.config.models import LoraSettings
from lfpo.config.sampler import SamplerConfig
from lfpo.core.trajectory import Trajectory
from lfpo.models import init_model, load_model
from lfpo.models.layouts import LAYOUTS
from lfpo.models.lora import attach
from lfpo.models.placement import sampling
from lfpo.plan.flops import rollout_flops
from lfpo.rollout.sampling import rollout

Cache = Literal["none", "prefix", "dual"]


def utilisation(machine: Machine) -> list[Row]:
    """`python -m benchmarks rollout` on four layers: model FLOP/s over those of one large product."""
    shape: dict[str, Any] = machine.size(
        {"model": "llada-8b", "layers": 4, "n": 16, "prompt_length": 512, "gen_length": 256, "dtype": "bfloat16"},
        {"model": "small", "n": 4, "prompt_length": 24, "gen_length": 64},
    )
    with mock.patch.dict(LAYOUTS, small=SMALL), tempfile.TemporaryDirectory() as folder:
        shape |= {"lora": 0, "compile": machine.gpu}  # `full_size` has LoRA
        config = BenchRolloutConfig(**shape, block_length=32, tokens_per_step=[4], repeats=1, output=folder)
        results = json.loads(run_bench_rollout(config).read_text())
    rows = []
    for found in results["rows"]:
        rows.append(measured(f"{found['mode']}: speed", found["tokens_per_second"], "tokens/s"))
        share = found["share_of_peak"]
        if machine.gpu and found["mode"] in ("engine, exact", "compiled"):
            rows.append(at_least(f"{found['mode']}: share of the peak", share, 0.6))
        elif found["mode"] == "engine, exact":
            rows.append(at_least(f"{found['mode']}: tokens as the plain loop's", found["same"], 1.0))
        else:
            rows.append(measured(f"{found['mode']}: share of the peak", share))
    return rows


# Waits a forward at most, by kind of cache.
WAITS: dict[Cache, float] = {"none": 0.1, "dual": 0.1, "prefix": 0.1}


def waits(machine: Machine) -> list[Row]:
    """Synchronising operations of a forward: a rollout of 16 forwards against one of 8, so that the start does not
    count."""
    rows = []
    for cache, bar in WAITS.items():
        found = []
        with _counted(machine) as count:
            model = load_model("embedded", device="cuda")
            for length in (8, 16):
                sampler = SamplerConfig(gen_length=length, block_length=4, temperature=1.0, cache=cache)
                before = count()
                trajectory = rollout(model, [[5, 6, 7], [8, 9, 10]], sampler, [1, 2])
                found.append((count() - before, int(trajectory.nfe.max())))
        (few, short), (many, long) = found
        rows.append(at_most(f"cache {cache}: waits a forward", (many - few) / (long - short), bar))
    return rows


@contextlib.contextmanager
def _counted(machine: Machine) -> Iterator[Any]:
    """A function that returns how many synchronising operations there were."""
    if not machine.gpu:
        with cuda_stand_in() as stand_in:
            yield lambda: stand_in.waits
        return
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield lambda: sum("synchroniz" in str(w.message) for w in caught)
        finally:
            torch.cuda.set_sync_debug_mode("default")


def full_size(machine: Machine) -> Iterator[Row]:
    """All layers of LLaDA-8B, one block, a token a forward: 64 rows of 768 tokens. A block costs the same in a longer
    completion. With a cache it has 32 tokens; without one each forward costs the same, so 4 are enough."""
    config = machine.size(LAYOUTS["llada-8b"], SMALL)
    model = init_model(config, seed=0, device=machine.device, dtype=machine.size(torch.bfloat16, torch.float32))
    rows_of_batch, length = machine.size((64, 768), (3, 20))
    block: dict[Cache, int] = machine.size({"none": 4, "dual": 32}, {"none": 8, "dual": 8})
    texts = random_prompts(rows_of_batch, length, model)

    peak = matmul_peak(machine.device, model.dtype)

    def run(policy: Any, cache: Cache, compiled: bool = False) -> tuple[Trajectory, float, float]:
        """What was sampled, tokens a second, and the share of the matrix speed."""
        tokens = block[cache]
        prompts = [(p * 2)[: length - tokens] for p in texts]  # all of the same length, as the bars assume
        # With one block a cache is filled by the first forward only.
        refresh = {} if cache == "none" else {"cache_refresh": tokens}
        sampler = SamplerConfig(gen_length=tokens, block_length=tokens, cache=cache, **refresh)
        with sampling(policy, cast=policy.autocast, move_to_device=False):
            work = lambda: rollout(  # noqa: E731
                policy, prompts, sampler, range(len(prompts)), rollout_tokens=2**16, compiled=compiled
            )
            if machine.gpu:
                work()  # plans, compilation
            found, seconds = timed(work, machine.device)
        return found, rows_of_batch * tokens / seconds, rollout_flops(policy, found) / seconds / peak

    plain = {}
    bars: dict[Cache, float] = {"none": 45.0, "dual": 400.0}
    for cache, bar in bars.items():
        plain[cache], rate, share = run(model, cache)
        what = f"cache {cache}"
        yield at_least(what, rate, bar, "tokens/s") if machine.gpu else measured(what, rate, "tokens/s")
        yield measured(f"{what}: share of the matrix speed", share)
    for cache in bars:  # compiling 32 layers takes minutes
        what = f"cache {cache}, compiled"
        if not machine.gpu:
            yield not_run(what, "compiling is for GPUs")
            continue
        _, rate, share = run(model, cache, compiled=True)
        yield measured(what, rate, "tokens/s")
        what += ": share of the matrix speed"
        yield at_least(what, share, 0.55) if cache == "none" else measured(what, share)
    policy = attach(model, LoraSettings(r=16), seed=0)
    for cache in bars:
        found, rate, _ = run(policy, cache)
        yield measured(f"cache {cache}, LoRA", rate, "tokens/s")
        same = float((found.tokens == plain[cache].tokens).double().mean())
        # A new adapter adds nothing, so in float32 the tokens are the base's.
        what = f"cache {cache}, LoRA: tokens as without"
        yield measured(what, same) if machine.gpu else at_least(what, same, 1.0)
