"""A restricted machine (only the run's folder is writable, no terminal, no network), and files that carry code."""

from __future__ import annotations

import json
import os
import pickle
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import lfpo
from drill.disk import no_namespace
from drill.harness import Drill, Outcome, Tally, difference, start, train_arguments
from lfpo.models.loading import EMBEDDED
from processes import environment


def surroundings(drill: Drill) -> list[Outcome]:
    """A whole run with /tmp full, home and package read-only and no terminal; a hub id without network."""
    return [_nowhere_to_write(drill), _offline(drill)]


def _nowhere_to_write(drill: Drill) -> Outcome:
    tally = Tally("/tmp full; home and package read-only; no terminal", "ran to its end, the same bits")
    stage = drill.root / "stage"
    for name in ("home", "tmp"):
        (stage / name).mkdir(parents=True, exist_ok=True)
    if reason := no_namespace(stage / "tmp"):
        return Outcome(tally.fault, 0, 0, note=f"not tried: {reason}")
    folder, package = drill.folder("nowhere"), Path(lfpo.__file__).parent
    quoted = {name: shlex.quote(str(stage / name)) for name in ("home", "tmp")}
    train = shlex.join([sys.executable, "-m", "lfpo", *train_arguments(folder)])
    script = f"""set -e
mount -t tmpfs -o size=64k none {quoted["tmp"]}
head -c 1000000 /dev/zero > {quoted["tmp"]}/filler || true
mount -t tmpfs -o ro none {quoted["home"]}
mount --bind {shlex.quote(str(package))} {shlex.quote(str(package))}
mount -o remount,bind,ro {shlex.quote(str(package))}
cd /
! touch {shlex.quote(str(package))}/x {quoted["home"]}/x
exec {train} < /dev/null"""
    moved = {"HOME": str(stage / "home"), "TMPDIR": str(stage / "tmp"), "PYTHONPATH": environment()["PYTHONPATH"]}
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "XDG_", "TERM", "COLUMNS", "MPLCONFIG"))}
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", script], env={**kept, **moved}, capture_output=True, text=True, check=False
    )
    said = done.stdout + done.stderr
    if done.returncode or "Traceback" in said or "\x1b" in said:
        tally.add(f"exit code {done.returncode}: {said[-800:]}")
    else:
        tally.add(difference(drill.unbroken, folder))
    return tally.outcome()


def _offline(drill: Drill) -> Outcome:
    tally = Tally("a hub id without network", "one sentence, exit code 2")
    arguments = train_arguments(drill.folder("offline"), model="nobody/no-such-model")
    command = [sys.executable, "-m", "lfpo", *arguments]
    done = subprocess.run(command, env=environment(HF_HUB_OFFLINE="1"), capture_output=True, text=True, check=False)
    clear = done.returncode == 2 and done.stderr.startswith("error: model 'nobody/no-such-model'")
    tally.add("" if clear and "Traceback" not in done.stderr else f"exit code {done.returncode}: {done.stderr[-500:]}")
    return tally.outcome()


class _Touch:
    """Unpickling this makes a file."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str, str]]:
        return open, (self.path, "w")


def planted(drill: Drill) -> list[Outcome]:
    """Pickles and `trust_remote_code` modules in a model's folder and in a run's: neither is ever run."""
    tally = Tally("code planted beside weights and in a run", "never run")
    model, folder = drill.folder("model"), drill.folder("planted")
    touched = drill.root / "touched"
    shutil.copytree(EMBEDDED, model)
    plant(model, touched)
    code = start(train_arguments(folder, model=model, max_steps=2)).wait()
    for place in (folder, folder / "checkpoints" / "step-2", folder / "checkpoints" / "step-2" / "model"):
        plant_pickles(place, touched)
    resumed = start([*train_arguments(folder, model=model, max_steps=3), "--resume"])
    code = code or resumed.wait()
    pickled = [p for p in (folder / "checkpoints" / "step-3").rglob("*") if p.suffix in (".bin", ".pt", ".pkl", ".pth")]
    if code != 0:
        tally.add(f"exit code {code}: {resumed.said()}")
    else:
        tally.add("it was run" if touched.exists() else f"wrote {pickled}" if pickled else "")
    return [tally.outcome()]


def plant(model: Path, touched: Path) -> None:
    """Make a model's folder ask for its own code, in every way that transformers supports."""
    source = f"open({str(touched)!r}, 'w')\n"
    for name in ("configuration_evil", "modeling_evil", "tokenization_evil"):
        (model / f"{name}.py").write_text(source)
    for file, entries in (
        ("config.json", {"AutoConfig": "configuration_evil.C", "AutoModelForCausalLM": "modeling_evil.M"}),
        ("tokenizer_config.json", {"AutoTokenizer": ["tokenization_evil.T", "tokenization_evil.T"]}),
    ):
        content = json.loads((model / file).read_text())
        (model / file).write_text(json.dumps({**content, "auto_map": entries}))
    plant_pickles(model, touched)


def plant_pickles(folder: Path, touched: Path) -> None:
    for name in ("pytorch_model.bin", "training_args.bin", "optimizer.pt", "rng_state.pth", "state.pkl"):
        (folder / name).write_bytes(pickle.dumps(_Touch(str(touched))))
