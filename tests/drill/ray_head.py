"""The head of a Ray cluster that is killed during a run, and started again."""

import contextlib
import importlib.util
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil  # type: ignore[import-untyped]

import processes
from drill.harness import ITERATIONS, Child, Drill, Row, expect, reaches, recover, train_arguments
from lfpo.base.errors import LOST

PORT = 26379  # not Ray's own, so that another Ray of this machine is left alone
TOKEN = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(16)}  # of the head and the runs
# From the kill to the end of the run: the head is asked for for 20 seconds (lfpo.train.ray_cluster).
PATIENCE = 90.0


def ray_head(drill: Drill) -> list[Row]:
    """SIGKILL of the head and all that it runs, at random moments: the run ends and says what to do; once the head was
    started again, a resume ends with the bits of the local engine in the same units."""
    row, slowest = Row("Ray's head killed"), 0.0
    if importlib.util.find_spec("ray") is None:
        row.note = "not tried: Ray is not installed"
        return [row]
    expected, child = drill.run("units", engine="{prompts_per_unit: 1}")
    expect(child)
    for _ in range(drill.settings.heads):
        folder, where = drill.folder("head"), Path(tempfile.mkdtemp(prefix="lfpo-ray-"))
        arguments = train_arguments(folder, engine=f"{{name: ray, workers: 1, address: '127.0.0.1:{PORT}'}}")
        try:
            with _head(where):
                child = Child(arguments, variables=TOKEN)
                reaches(folder, drill.rng.randrange(1, ITERATIONS - 1), child)
                time.sleep(drill.rng.random() * 0.3)
            killed = time.monotonic()
            code = child.wait(PATIENCE)
            slowest = max(slowest, time.monotonic() - killed)
            # The last line names the head and what to do.
            last = child.said().strip().splitlines()[-1]
            clear = last.startswith("lost: engine ray: the head of the Ray cluster") and "--resume" in last
            if code != LOST or not clear:
                row.add(f"{folder.name}: ended with {code}: {child.said()}")
                continue
            resume = [*arguments, "--resume"]
            with _head(where):
                row.add("", recover(drill, folder, lambda r=resume: [Child(r, variables=TOKEN)], expected))  # type: ignore[misc]
        finally:
            shutil.rmtree(where, ignore_errors=True)
    row.note = f"the run ended within {slowest:.0f} s and said what to do; the head started again; bit-identical end"
    return [row]


@contextlib.contextmanager
def _head(folder: Path) -> Iterator[None]:
    """A Ray head with two cores, killed at the end with all processes that it started. folder: for its files."""
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", "--disable-usage-stats"]
    command += ["--port", str(PORT), "--num-cpus", "2", "--include-dashboard", "false", "--temp-dir", str(folder)]
    command += ["--ray-client-server-port", str(PORT + 1), "--object-store-memory", str(200 * 2**20)]
    log = folder / "start.log"
    variables = processes.environment(**TOKEN)
    with open(log, "wb") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file, env=variables, start_new_session=True)
    try:
        until = time.monotonic() + 120.0
        while b"Ray runtime started" not in log.read_bytes():
            if process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"Ray's head did not start: {log.read_text()}")
            time.sleep(0.1)
        yield
    finally:
        process.kill()
        for other in psutil.process_iter():  # those that it started have its folder among their arguments
            with contextlib.suppress(psutil.Error):
                if str(folder) in " ".join(other.cmdline()):
                    other.kill()
        process.wait()
