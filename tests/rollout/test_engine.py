"""Engines: units of work, what an engine must give, and Ray workers that sample what the local engine samples."""

import contextlib
import dataclasses
import importlib.util
import json
import os
import re
import shutil
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil  # type: ignore[import-untyped]
import pytest
import torch

import lfpo.ray.cluster
import lfpo.ray.engine
import lfpo.ray.rewards
import tiny
from lfpo.base import distributed
from lfpo.config.build import build
from lfpo.config.engine import EngineSettings
from lfpo.config.errors import UserError
from lfpo.config.sampler import SamplerConfig
from lfpo.config.train import LFPOConfig
from lfpo.core import collectives
from lfpo.core.engine import Request
from lfpo.core.model import CURRENT, OLD
from lfpo.models import MaskedDiffusionLM, load_model
from lfpo.models.policies import load_policies
from lfpo.objectives import make_objective
from lfpo.objectives.needs import check_rollouts
from lfpo.prompts.tasks import get_task
from lfpo.ray.cluster import connect, wait_for_start
from lfpo.ray.engine import Dispatcher, RayEngine, SamplingJob, set_weights, weights_of
from lfpo.ray.rewards import by_tasks
from lfpo.rewards import Rewards, in_child
from lfpo.rollout.local_engine import LocalEngine
from lfpo.rollout.sampling import as_it_is, rollout
from lfpo.train.rl import LFPOTrainer
from lfpo.train.setup import make_engine
from processes import run_ranks
from scores import score
from small_runs import choice_config, same
from task_rewards import dies, exits, length, places, raises, right, sleeps, wrong
from told_worker import DEADLY, Told

SAMPLER = SamplerConfig(temperature=1.0, steps=8).for_length(8)
PROMPTS = [ids for ids in ([5, 6, 7], [8], [9, 10, 11, 12, 13], [14, 15]) for _ in range(3)]
REQUEST = Request(PROMPTS, list(range(12)), SAMPLER, generations=3)


def config(model: Path, **changes: Any) -> LFPOConfig:
    return build(
        LFPOConfig, {"output_dir": "unused", "model": str(model), "threads": 1, "num_generations": 3, **changes}, "test"
    )


def local(model: MaskedDiffusionLM, rows_per_unit: int) -> LocalEngine:
    engine = as_it_is(model)
    engine.rows_per_unit = rows_per_unit
    return engine


def test_a_unit_is_sampled_as_if_it_were_alone(llada: Path):
    model, told = load_model(llada), list[int]()
    whole = local(model, 3).sample(REQUEST, lambda index, t: told.extend(index))
    assert sorted(told) == list(range(12))
    assert whole.tokens.shape == (12, 8)
    for i in range(0, 12, 3):
        alone = rollout(model, PROMPTS[i : i + 3], SAMPLER, REQUEST.seeds[i : i + 3])
        part = whole.rows(torch.arange(i, i + 3))
        assert torch.equal(part.tokens, alone.tokens)
        assert torch.equal(part.confidence, alone.confidence)
        assert torch.equal(part.prompt_ids[:, -alone.prompt_ids.shape[1] :], alone.prompt_ids)
    # All at once is what `rollout` does.
    assert same(local(model, 0).sample(REQUEST), rollout(model, PROMPTS, SAMPLER, REQUEST.seeds))


class TokensOnly:
    """An engine from outside the package that says only which tokens it sampled."""

    gives = frozenset[str]()

    def __init__(self, args: LFPOConfig):
        self.args = args


def test_an_engine_of_ones_own_and_what_it_lacks(llada: Path):
    engine: Any = make_engine(config(llada, engine={"name": "test_engine:TokensOnly"}))
    assert isinstance(engine, TokensOnly)
    check_rollouts(make_objective({"name": "espo"}), SAMPLER, engine.gives)
    with pytest.raises(UserError, match=r"AGRPO needs the entropy .* which this engine does not give"):
        check_rollouts(make_objective({"name": "agrpo"}), SAMPLER, engine.gives)


@pytest.mark.parametrize(
    ("engine", "said"),
    [
        ({"name": "rays"}, "unknown engine 'rays'; did you mean 'ray'"),
        ({"workers": 2}, "'workers' is for the engine 'ray'"),
        ({"name": "ray", "workers": 0}, "workers 0 must be at least 1"),
        ({"reward_workers": -1}, "reward_workers -1 must not be negative"),
        ({"address": "auto"}, "'address' is for the engine 'ray'"),
        ({"name": "ray", "unit_timeout": -1.0}, "unit_timeout -1.0 must be seconds"),
        ({"name": "ray", "wrokers": 2}, "wrokers"),
    ],
)
def test_wrong_settings_are_one_sentence(engine: dict[str, Any], said: str, llada: Path):
    with pytest.raises(UserError) as caught:
        config(llada, engine=engine)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_without_ray_installed(llada: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="Ray is not installed; pip install ray"):
        RayEngine(config(llada, engine={"name": "ray"}))


@pytest.mark.parametrize("form", ["{}", "ray://{}"])
def test_an_address_where_nothing_listens_is_one_sentence(form: str, monkeypatch: pytest.MonkeyPatch):
    fake = SimpleNamespace(
        is_initialized=lambda: False, cluster_resources=lambda: {"CPU": 1}, init=lambda **_: asked.append(1)
    )
    asked: list[int] = []
    monkeypatch.setattr(lfpo.ray.cluster, "import_ray", lambda: fake)
    monkeypatch.setattr(lfpo.ray.cluster, "HEAD", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server:
        place = f"127.0.0.1:{server.getsockname()[1]}"
        settings = EngineSettings(name="ray", address=form.format(place))
        assert connect(settings) and asked == [1]
    with pytest.raises(UserError, match=rf"nothing answers at '.*{place}' \(Connection refused\); give engine.address"):
        connect(settings)
    assert connect(dataclasses.replace(settings, address="auto")) and asked == [1, 1]


@pytest.mark.parametrize("lora", [False, True])
def test_weights_arrive_as_they_were(lora: bool, llada: Path):
    changes: dict[str, Any] = {"lora": {"r": 2, "lora_alpha": 4}} if lora else {}
    sent, found = (load_policies(config(llada, **changes), None, None, needs_base=False)[0] for _ in range(2))
    policy, other = sent[OLD if lora else CURRENT], found[OLD if lora else CURRENT]
    changed = [p for _, p in policy.factors()] if lora else list(policy.backbone.parameters())
    with torch.no_grad():
        for p in changed:
            p.add_(torch.randn(p.shape))
    weights = weights_of(policy)
    assert sum(value.nbytes for value, _ in weights.values()) == 4 * sum(p.numel() for p in changed)
    set_weights(other, weights)
    assert same(rollout(policy, PROMPTS, SAMPLER, REQUEST.seeds), rollout(other, PROMPTS, SAMPLER, REQUEST.seeds))


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    """Ray on this machine, with cores for three workers."""
    ray = pytest.importorskip("ray")
    # Workers unpickle what this module defines.
    here = Path(__file__).parent
    folders = [here, here.parent / "helpers", *os.environ.get("PYTHONPATH", "").split(":")]
    paths = os.pathsep.join(dict.fromkeys(map(str, folders)))
    environment = {"env_vars": {"PYTHONPATH": paths, "TORCHDYNAMO_DISABLE": "1"}}
    ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False, runtime_env=environment)
    yield ray
    ray.shutdown()


@contextlib.contextmanager
def engine_of(args: LFPOConfig) -> Iterator[tuple[RayEngine, MaskedDiffusionLM]]:
    """A Ray engine and theta_old, whose weights are no longer those of the checkpoint."""
    policies, _ = load_policies(args, None, None, needs_base=False)
    with torch.no_grad():
        for name, p in policies[OLD].backbone.named_parameters():
            if args.lora is None or ".old." in name:
                p.add_(0.05 * torch.randn(p.shape, generator=torch.Generator().manual_seed(0)))
    engine = RayEngine(args)
    try:
        yield engine, policies[OLD]
    finally:
        engine.close()


@pytest.fixture(scope="module")
def pair(ray: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RayEngine, MaskedDiffusionLM]]:
    """An engine of two workers (Told), and theta_old."""
    model = tiny.write_llada(tmp_path_factory.mktemp("engine") / "llada")
    settings = {"name": "ray", "workers": 2, "max_staleness": 2, "unit_timeout": 600.0}
    with contextlib.ExitStack() as closing:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(lfpo.ray.engine, "Worker", Told)
            made = closing.enter_context(engine_of(config(model, engine=settings)))
        yield made


def ready(engine: RayEngine, job: SamplingJob) -> bool:
    """Whether all units of a job are sampled within 30 s, without anybody asking for them."""
    until = time.monotonic() + 30
    while len(job.done) < len(job.units) and time.monotonic() < until:
        time.sleep(0.02)
    return len(job.done) == len(job.units) and job.weights is None


@pytest.mark.long
def test_requests_are_sampled_beside_training_with_the_weights_they_came_with(pair: tuple[RayEngine, Any]):
    (engine, policy), told = pair, list[int]()
    tickets, expected = [], []
    for version in range(3):
        engine.update(version, policy)
        tickets.append(engine.submit(REQUEST))
        expected.append(local(policy, 3).sample(REQUEST))
        with torch.no_grad():
            for p in policy.backbone.parameters():
                p.mul_(1.1)
    assert [ticket.version for ticket in tickets] == [0, 1, 2]
    assert all(ready(engine, ticket.work) for ticket in tickets)
    for number in (1, 0, 2):  # in any order
        assert same(engine.result(tickets[number], lambda index, t: told.extend(index)), expected[number])
    assert sorted(told) == sorted(3 * list(range(12)))
    assert engine.metrics()["engine/units_open"] == 0


def run_with(folder: Path, model: Path, **engine: Any) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Train with staleness 2, all but the first checkpoint lost on the way; metrics without times and the engine's, and
    the records of evaluations."""
    settings: dict[str, Any] = {"max_steps": 4, "save_total_limit": 4, "eval_steps": 2, "eval_size": 7}
    settings["eval_samplers"] = {"greedy": {"gen_length": 8}, "hot": {"gen_length": 8, "temperature": 1.0}}
    for resume in (False, True):
        args = choice_config(folder, model, engine=engine, **settings)
        LFPOTrainer(args=args).train(resume=resume)
        if not resume:
            for step in (2, 3, 4):
                shutil.rmtree(folder / "checkpoints" / f"step-{step}")
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    kept = ("engine/staleness", "engine/queue")
    metrics = [{k: v for k, v in m.items() if k in kept or not k.startswith(("time/", "engine/"))} for m in rows]
    return metrics, {file.name: file.read_text() for file in (folder / "eval").iterdir()}


@pytest.mark.long
def test_training_ahead_and_evaluations_are_those_of_the_local_engine(llada: Path, tmp_path: Path, ray: Any):
    mine, records = run_with(tmp_path / "local", llada, max_staleness=2, prompts_per_unit=1)
    assert [m.get("engine/staleness") for m in mine] == [None, 0, 1, 2, 2]  # an evaluation first
    assert records.keys() == {"step-0.jsonl", "step-2.jsonl", "step-4.jsonl"} and all(records.values())
    assert mine[-1].keys() >= {"eval/hot/accuracy", "eval/greedy/nfe"}
    assert run_with(tmp_path / "ray", llada, max_staleness=2, name="ray") == (mine, records)


def sampling() -> Iterator[int]:
    """Ids of the workers that sample, in the Ray cluster that this process started."""
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if "ray::Told.sample" in " ".join(process.cmdline()):
                yield process.pid


@pytest.mark.long
def test_a_killed_worker_changes_nothing(pair: tuple[RayEngine, MaskedDiffusionLM]):
    """One of two workers is killed once a unit is sampled."""
    request = Request(PROMPTS * 8, list(range(96)), SAMPLER, generations=3)
    (engine, policy), killed = pair, list[int]()

    def kill(*_: Any) -> None:
        if not killed and (pid := next(sampling(), None)):
            killed.append(pid)
            os.kill(pid, signal.SIGKILL)

    engine.update(9, policy)
    assert same(engine.sample(request, kill), local(policy, 3).sample(request))
    assert engine.metrics()["engine/lost"] > 0


@pytest.mark.long
def test_workers_that_cannot_work_are_one_sentence(llada: Path, ray: Any):
    with pytest.raises(UserError, match="2 workers and 0 reward workers need 2 GPUs, and the cluster has 0"):
        RayEngine(config(llada, engine={"name": "ray", "workers": 2, "gpus_per_worker": 1.0}))
    with pytest.raises(UserError, match=r"a worker has {'lfpo': '0'}, the trainer has .*; install the same"):
        wait_for_start([ray.put({"lfpo": "0"})])
    with pytest.raises(UserError, match="no such folder"):
        RayEngine(config(Path("/does/not/exist"), engine={"name": "ray"}))


@pytest.mark.long
def test_a_worker_that_is_lost_with_its_prompts_is_one_sentence(
    pair: tuple[RayEngine, MaskedDiffusionLM], monkeypatch: pytest.MonkeyPatch
):
    """It must be the last test of `pair`: both workers are lost in it, and the engine is closed."""
    engine, policy = pair
    engine.update(10, policy)
    assert engine.dispatcher.limit == 600.0

    def said(seed: int, timeout: float, lost: int) -> str:
        """What is said of one unit with this seed. lost: how many workers may be."""
        monkeypatch.setattr(lfpo.ray.engine, "MAX_LOST", lost)
        wait_for_start([actor.start.remote() for actor in engine.actors])
        engine.dispatcher.close()
        engine.dispatcher = Dispatcher(engine.actors, timeout)
        with pytest.raises(UserError) as caught:
            engine.sample(Request(PROMPTS[:3], [seed] * 3, SAMPLER, generations=3))
        assert "\n" not in str(caught.value)
        return str(caught.value)

    assert re.match(r"engine ray: 1 workers were lost with the same prompts.*unit_timeout", said(0, 1e-9, 1))
    assert re.match(
        r"engine ray: 2 workers were lost with the same prompts.*memory ran out, lower rollout_tokens",
        said(DEADLY, 0.0, 2),
    )
    engine.close()


def scored(functions: Any, completions: list[str], timeout: float = 0.0) -> Rewards:
    n = len(completions)
    prompts = [f"prompt {i // 3}" for i in range(n)]
    columns: dict[str, list[Any]] = {
        "answer": [c if i % 2 else "" for i, c in enumerate(completions)],
        "unused": [None] * n,
    }
    return score(functions, [1.0] * len(functions), prompts, completions, [[1]] * n, columns, timeout)


COMPLETIONS = ["a", "none", "ccc", "dddd", "e", "ff", "g", "h", "i"]


@pytest.mark.long
def test_reward_tasks_return_what_the_functions_return(ray: Any, monkeypatch: pytest.MonkeyPatch):
    offset = 3.0
    functions: list[Any] = [
        length,
        right,
        raises,
        lambda completions, **_: [offset] * len(completions),
        *get_task("gsm8k").reward_functions,
    ]
    functions += [in_child("task_rewards:length"), sleeps, dies]
    with contextlib.ExitStack() as closing:
        monkeypatch.setattr(lfpo.ray.rewards, "RETRIES", 0)
        sent = by_tasks(functions, EngineSettings(reward_workers=2), closing)
        ours, theirs = scored(functions, COMPLETIONS), scored(sent, COMPLETIONS)
        assert theirs == dataclasses.replace(ours, reward_B=theirs.reward_B)
        assert torch.equal(theirs.reward_B, ours.reward_B)
        assert "raises" in theirs.failed and "float division" in theirs.failed["raises"]
        # Each of the two tasks has whole prompts of three completions.
        (cut,) = by_tasks([places], EngineSettings(reward_workers=2), closing)
        assert scored([cut], COMPLETIONS).parts["places"] == [0, 1, 2, 0, 1, 2, 3, 4, 5]
        (several,) = by_tasks([wrong], EngineSettings(reward_workers=2), closing)
        with pytest.raises(UserError, match="'wrong': returned 4 rewards for 3 completions"):
            scored([several], COMPLETIONS)
        # A limit ends the task, a process that dies fails its batch; the next batch is scored again.
        late = scored(sent[-2:-1], ["slow", *COMPLETIONS], timeout=3.0)
        assert late.failed == {"sleeps": "it ran for more than 3 s"}
        dead = scored(sent[-2:], [*COMPLETIONS, "deadly"])
        assert dead.failed.keys() == {"dies"} and dead.failed["dies"].startswith("its Ray task was lost (")
        assert not scored(sent[-2:], COMPLETIONS).failed


@pytest.mark.long
def test_an_exit_of_a_reward_function_ends_its_batch(ray: Any):
    with contextlib.ExitStack() as closing:
        sent = by_tasks([exits], EngineSettings(reward_workers=1), closing)
        (said,) = scored(sent, ["a", "leave"]).failed.values()
        assert re.fullmatch(r"SystemExit: 3 \(task_rewards.py:\d+\)", said)
        assert scored(sent, ["a"]).failed == {}


def two_ranks(folder: Path) -> None:
    distributed.start()
    lora = {"r": 2, "lora_alpha": 4}
    args = config(folder, engine={"name": "ray", "workers": 1, "reward_workers": 2}, lora=lora)
    rank, told = collectives.rank(), list[int]()
    mine = Request(PROMPTS[6 * rank :][:6], list(range(6 * rank, 6 * rank + 6)), SAMPLER, generations=3)
    with engine_of(args) as (engine, policy):
        for version in range(2):
            engine.update(version, policy)
            found = engine.sample(mine, lambda index, t: told.extend(index))
            assert same(found, local(policy, 3).sample(mine))
            with torch.no_grad():
                for _, p in policy.factors():
                    p.mul_(1.1)
        assert sorted(told) == sorted(2 * list(range(6)))
        metrics = engine.metrics()
        if rank == 0:
            assert sum(v for k, v in metrics.items() if k.endswith("/rollouts")) == 24
            assert metrics["engine/units"] == 8
        with contextlib.ExitStack() as closing:
            sent = by_tasks([length], args.engine, closing)
            own = COMPLETIONS[rank:]
            assert scored(sent, own).parts == scored([length], own).parts
            distributed.barrier()
            time.sleep(5 * rank)  # rank 0, which began the cluster, leaves first
    distributed.stop()


@pytest.mark.long
def test_each_rank_gets_its_own_from_a_worker_with_an_adapter(llada: Path):
    pytest.importorskip("ray")
    ranks = run_ranks(2, two_ranks, llada)
    assert [rank.returncode for rank in ranks] == [0, 0], "".join(rank.stderr for rank in ranks)
