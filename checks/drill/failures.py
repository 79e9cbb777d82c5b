"""Numbers that are not finite, reward functions that fail, machines that allow little, and files that carry code."""

import contextlib
import json
import math
import os
import pickle
import shlex
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import psutil  # type: ignore[import-untyped]

import lfpo
from drill.harness import EVERY, ITERATIONS, Child, Drill, Row, difference, not_possible, same_weights, train_arguments
from drill.inside import LEAK, Fault
from drill.stops import no_sandbox
from lfpo.core.failures import MAX_FAILED, MAX_SKIPPED
from lfpo.models.loading import EMBEDDED
from lfpo.runs.directory import Run
from lfpo.sandbox import Job, Limits, Sandbox
from lfpo.train.preflight import STAND_IN
from processes import environment

STEPS, ROLLOUTS = 2, 8  # of an iteration, as in train_arguments
STAND_INS = 4  # completions that functions score before the first iteration (lfpo.train.preflight)
TIMEOUT = 2.0
MEMORY, SLOW = 1.0, 8.0  # GiB for a reward function in a child process; seconds, which hold the start of one
AGAIN = "same end once fixed"


def nonfinite(drill: Drill) -> list[Row]:
    """A NaN or infinite gradient, once and in every step; a spike."""
    first = EVERY * STEPS + 1  # the first step after the first checkpoint
    rows = []
    for name, do, times in (("a NaN gradient", "nan", 1), ("an infinite gradient, three times", "inf", 3)):
        folder, child = drill.run("nonfinite", Fault(f"{do}_gradient", "gradient", first, times))
        wrong = child.wrong_end(0) or _length(folder)
        counted = "" if wrong else Run(folder).read_metrics()[-1]["skipped_updates"]
        row = Row(name, f"{times} skipped and counted, training went on")
        rows.append(row.add(wrong or ("" if counted == times else f"{counted} counted")))
    # All updates after the first checkpoint fail: the second holds the same weights, then training stops.
    always = Row("a NaN gradient in every step", f"stopped after {MAX_SKIPPED}; weights unchanged")
    folder, child = drill.run("nonfinite", Fault("nan_gradient", "gradient", first, 10_000))
    wrong = child.wrong_end(2, f"not finite {MAX_SKIPPED} times in a row")
    models = [folder / "checkpoints" / f"step-{step}" / "model" for step in (EVERY, 2 * EVERY)]
    if not wrong and not same_weights(*models):
        wrong = "a NaN update reached the weights"
    always.add(wrong or drill.resume(folder).wrong_end(0))
    spike = Row("a gradient a million times too large", "clipped, logged, training went on")
    folder, child = drill.run("spike", Fault("spike", "gradient", first))
    wrong, lines = child.wrong_end(0), Run(folder).read_metrics()
    logged = [line.get("grad_norm", 0.0) for line in lines]
    finite = all(math.isfinite(line.get("loss", 0.0)) for line in lines)
    if not finite or max(logged) < 1e3 or not difference(drill.unbroken, folder):
        wrong = wrong or f"the spike did not show, or the loss is not finite: gradient norms {logged}"
    return [*rows, always, spike.add(wrong)]


def rewards(drill: Drill) -> list[Row]:
    """Functions that raise, hang, return garbage, leak or never return; sandbox workers that are killed."""
    rows = []
    third = STAND_INS + 2 * ROLLOUTS + 1  # the first reward of the third batch
    for do, said in (("raise", "ConnectionError: the judge"), ("hang", f"it ran for more than {TIMEOUT:g} s")):
        row = Row(f"a reward function {do}s", "counted, named in the log, the run went on")
        folder, child = drill.run("rewards", Fault(do, "reward", third), reward_timeout=TIMEOUT)
        rows.append(row.add(_cost_one_batch(child, folder, 3, said)))
    rows.append(always_raises(drill))
    for do, name in (("nan", "NaN"), ("text", "text")):  # a bug of the function: reported at once
        folder, child = drill.run("rewards", Fault(do, "reward", third))
        wrong = child.wrong_end(2, "reward function 'reward'")
        row = Row(f"a reward is {name}", f"stopped at once with one error line; {AGAIN}")
        rows.append(row.add(wrong, None if wrong else drill.recover(folder)))
    rows.append(_leaks(drill))
    for do, name, said in (
        ("grab", "takes all memory", f"more than {MEMORY:.2f} GiB"),
        ("endless", "calls C code that never returns", "it ran for more than"),
    ):
        row = Row(f"a reward function {name}", "its child process killed, counted, named in the log, the run went on")
        folder, child, _ = _contained(drill, do)
        rows.append(row.add(_cost_one_batch(child, folder, 1, said)))
    return [*rows, _workers_killed()]


def always_raises(drill: Drill) -> Row:
    """Raises from the second batch on: training stops with a checkpoint, and resumes once the function is fixed."""
    row = Row("a reward function always raises", f"stopped after {MAX_FAILED} batches, with a checkpoint")
    folder, child = drill.run("rewards", Fault("raise", "reward", STAND_INS + ROLLOUTS + 1, 10_000))
    wrong = child.wrong_end(2, f"failed for {MAX_FAILED} batches in a row")
    if not (folder / "checkpoints" / "step-5" / "manifest.json").exists():
        wrong = wrong or "there is no checkpoint"
    return row.add(wrong or drill.resume(folder).wrong_end(0))


def _length(folder: Path) -> str:
    lines = len(Run(folder).read_metrics())
    return "" if lines == ITERATIONS + 1 else f"metrics.jsonl has {lines} lines"


def _cost_one_batch(child: Child, folder: Path, iteration: int, said: str) -> str:
    """'' if the run reached its end with one failure, counted in that iteration and named once in the log."""
    code, log, lines = child.wait(), child.said(), Run(folder).read_metrics()
    failed = [line["step"] for line in lines if line.get("rewards/reward/failed")]
    right = code == 0 and not _length(folder) and failed == [iteration] and log.count(said) == 1
    return "" if right else f"exit code {code}, failures counted in {failed}: {log}"


def _contained(drill: Drill, do: str) -> tuple[Path, Child, Path]:
    """A run whose reward function does this in a child process: its folder, the run, the function's mark."""
    folder = drill.folder("rewards")
    mark = folder.with_name(f"{folder.name}.mark")
    arguments = train_arguments(folder, reward_memory=MEMORY, reward_timeout=SLOW)
    variables = {"LFPO_DRILL": do, "LFPO_DRILL_MARK": str(mark), "LFPO_DRILL_STAND_IN": STAND_IN}
    return folder, Child(arguments, variables=variables), mark


def _leaks(drill: Drill) -> Row:
    """In a child process, which is replaced before it holds too much: no reward is lost."""
    row = Row("a reward function leaks memory")
    folder, child, mark = _contained(drill, "leak")
    peak = 0
    while child.process.exitcode is None:
        with contextlib.suppress(psutil.Error):
            peak = max([peak, *(p.memory_info().rss for p in psutil.Process(child.process.pid).children())])
        time.sleep(0.05)
    wrong = child.wrong_end(0)
    pids = [] if wrong else mark.read_text().split()
    row.note = f"{len(pids) * LEAK / 2**30:.1f} GiB leaked by {len(set(pids))} child processes, "
    row.note += f"none held more than {peak / 2**30:.1f}; no reward lost; the same bits"
    if peak > (MEMORY + 0.2) * 2**30 or len(set(pids)) < 2:
        wrong = wrong or row.note
    return row.add(wrong or difference(drill.unbroken, folder))


def _workers_killed() -> Row:
    """SIGKILL to sandbox processes while they work: their verdicts fail, the other verdicts stand."""
    row = Row("sandbox workers killed", no_sandbox())
    if row.note:
        return row
    body = "def f():\n    import time\n    time.sleep(1)\n    return {0}"
    jobs = [Job(body.format(i), tests=[f"assert f() == {i}"]) for i in range(6)]
    killed, started = set[int](), time.monotonic()
    with ThreadPoolExecutor(1) as pool:
        judged = pool.submit(Sandbox(limits=Limits(seconds=60.0), workers=2).run, jobs)
        while not wait([judged], 1.0).done and len(killed) < 3:
            with contextlib.suppress(psutil.Error):
                workers = [p for p in psutil.Process().children() if "inside.start" in " ".join(p.cmdline())]
                if fresh := [worker for worker in workers if worker.pid not in killed]:
                    killed.add(fresh[0].pid)
                    fresh[0].kill()
    verdicts = judged.result()
    passed = sum(verdict.passed for verdict in verdicts)
    right = killed and len(verdicts) == 6 and 6 - len(killed) <= passed < 6 and time.monotonic() - started < 180
    count = f"{len(killed)} killed, {passed} of {len(jobs)} passed"
    row.note = f"their verdicts fail, the other verdicts stand ({count})"
    return row.add("" if right else f"{count}: {[v.reason for v in verdicts]}")


def surroundings(drill: Drill) -> list[Row]:
    """A whole run with /tmp full, home and package read-only and no terminal; a hub id without network."""
    offline = Row("a hub id without network", "one sentence, exit code 2")
    arguments = train_arguments(drill.folder("offline"), model="nobody/no-such-model")
    command = [sys.executable, "-m", "lfpo", *arguments]
    done = subprocess.run(command, env=environment(HF_HUB_OFFLINE="1"), capture_output=True, text=True, check=False)
    clear = done.returncode == 2 and done.stderr.startswith("error: model 'nobody/no-such-model'")
    right = clear and "Traceback" not in done.stderr
    return [_little_to_write(drill), offline.add("" if right else f"{done.returncode}: {done.stderr[-500:]}")]


def _little_to_write(drill: Drill) -> Row:
    row = Row("/tmp full; home and package read-only; no terminal", "ran to its end, the same bits")
    home, tmp = drill.root / "stage" / "home", drill.root / "stage" / "tmp"
    home.mkdir(parents=True)
    tmp.mkdir()
    if reason := not_possible("-rm", f"mount -t tmpfs none '{tmp}'"):
        row.note = f"not tried: {reason}"
        return row
    folder, package = drill.folder("nowhere"), shlex.quote(str(Path(lfpo.__file__).parent))
    script = f"""set -e
mount -t tmpfs -o size=64k none '{tmp}'
head -c 1000000 /dev/zero > '{tmp}/filler' || true
mount -t tmpfs -o ro none '{home}'
mount --bind {package} {package}
mount -o remount,bind,ro {package}
cd /
! touch {package}/x '{home}/x'
exec {shlex.join([sys.executable, "-m", "lfpo", *train_arguments(folder)])} < /dev/null"""
    moved = {"HOME": str(home), "TMPDIR": str(tmp), "PYTHONPATH": environment()["PYTHONPATH"]}
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "XDG_", "TERM", "COLUMNS", "MPLCONFIG"))}
    command = ["unshare", "-rm", "sh", "-c", script]
    done = subprocess.run(command, env={**kept, **moved}, capture_output=True, text=True, check=False)
    said = done.stdout + done.stderr
    failed = done.returncode or "Traceback" in said or "\x1b" in said
    return row.add(f"exit code {done.returncode}: {said[-800:]}" if failed else difference(drill.unbroken, folder))


class _Touch:
    """Unpickling this makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce__(self) -> tuple[object, tuple[str, str]]:
        return open, (self.path, "w")


def planted(drill: Drill) -> list[Row]:
    """Pickles and `trust_remote_code` modules in a model's folder and in a run's: neither is ever run."""
    row = Row("code planted beside weights and in a run", "never run")
    model, folder = drill.folder("model"), drill.folder("planted")
    touched = drill.root / "touched"
    shutil.copytree(EMBEDDED, model)
    for name in ("configuration_evil", "modeling_evil", "tokenization_evil"):
        (model / f"{name}.py").write_text(f"open({str(touched)!r}, 'w')\n")
    for file, entries in (
        ("config.json", {"AutoConfig": "configuration_evil.C", "AutoModelForCausalLM": "modeling_evil.M"}),
        ("tokenizer_config.json", {"AutoTokenizer": ["tokenization_evil.T", "tokenization_evil.T"]}),
    ):
        content = json.loads((model / file).read_text())
        (model / file).write_text(json.dumps({**content, "auto_map": entries}))
    plant_pickles(model, touched)
    wrong = Child(train_arguments(folder, model=model, max_steps=2)).wrong_end(0)
    for place in (folder, folder / "checkpoints" / "step-2", folder / "checkpoints" / "step-2" / "model"):
        plant_pickles(place, touched)
    wrong = wrong or drill.resume(folder, model=model, max_steps=3).wrong_end(0)
    pickled = [p for p in (folder / "checkpoints" / "step-3").rglob("*") if p.suffix in (".bin", ".pt", ".pkl", ".pth")]
    return [row.add(wrong or ("it was run" if touched.exists() else f"wrote {pickled}" if pickled else ""))]


def plant_pickles(folder: Path, touched: Path) -> None:
    for name in ("pytorch_model.bin", "training_args.bin", "optimizer.pt", "rng_state.pth", "state.pkl"):
        (folder / name).write_bytes(pickle.dumps(_Touch(touched)))
