"""The Ray cluster that workers run in: joined or begun, checked, and watched."""

import importlib.util
import os
import socket
import time
from collections.abc import Sequence
from typing import Any

from lfpo.base.environment import versions
from lfpo.config.engine import EngineSettings
from lfpo.config.errors import ProcessLost, UserError, first_line
from lfpo.core import collectives

START = 1800.0  # seconds for all workers to load what they need
LOOK = 5.0  # seconds between two looks at the head of the cluster, while tasks are waited for
HEAD = 20.0  # seconds without an answer after which the head of the cluster is lost
# Ray ends a process whose cluster's head is gone, after a minute and without saying what to do. `check_head` says it.
VARIABLES = {
    "RAY_gcs_rpc_server_reconnect_timeout_s": str(86_400),
    "RAY_IGNORE_UNHANDLED_ERRORS": "1",  # of several tasks that fail, the first one's error is handled
    "RAY_USAGE_STATS_ENABLED": "0",
}


def import_ray() -> Any:
    """The module. Raises UserError where it is not installed."""
    if importlib.util.find_spec("ray") is None:
        raise UserError("engine ray: Ray is not installed; pip install ray, or leave out engine")
    import ray

    return ray


def connect(settings: EngineSettings, address: str | None = None, auth: str | None = None) -> bool:
    """Join a cluster, or begin a Ray of this machine; returns whether this call did (False: this process had joined).

    address: of the cluster (None: that of the settings, or else $RAY_ADDRESS). auth: its $RAY_AUTH_MODE, which Ray sets
    to "token" in the process that begins a Ray of this machine; the token itself is in a file.
    Raises UserError where there is no cluster at the address, or it has fewer cores or GPUs than the settings ask for.
    """
    if auth:
        os.environ["RAY_AUTH_MODE"] = auth  # read when Ray is imported
    ray, s = import_ray(), settings
    workers = s.workers if s.name == "ray" else 0
    needed = {"CPU": workers * s.cpus_per_worker + s.reward_workers, "GPU": workers * s.gpus_per_worker}
    began = not ray.is_initialized()
    if began:
        address = address or s.address or os.environ.get("RAY_ADDRESS")
        own = {"num_cpus": max(os.cpu_count() or 1, needed["CPU"]), "include_dashboard": False}
        for name, value in VARIABLES.items():
            os.environ.setdefault(name, value)
        place = (address or "").removeprefix("ray://")
        # Ray itself would try for minutes without a word.
        if place.rpartition(":")[2].isdecimal() and (why := silent(place)):
            raise UserError(
                f"engine ray: nothing answers at {address!r} ({why}); give engine.address (or RAY_ADDRESS) the address "
                "of a cluster's head that runs, or leave it out for a Ray of this machine"
            )
        try:
            # "local": Ray alone would join any cluster that runs on this machine.
            ray.init(address=address or "local", log_to_driver=False, logging_level="ERROR", **({} if address else own))
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise UserError(f"engine ray: no cluster at {address!r} ({first_line(error)})") from error
    resources = ray.cluster_resources()
    for kind, count in needed.items():
        if count > resources.get(kind, 0):
            raise UserError(
                f"engine ray: {workers} workers and {s.reward_workers} reward workers need {count:g} {kind}s, and the "
                f"cluster has {resources.get(kind, 0):g}; lower engine.workers or reward_workers, or add machines"
            )
    return began


def leave() -> None:
    """Leave Ray, in the process that joined it. Of several ranks rank 0 stays until its process ends: where it began
    the cluster, the cluster ends with it, and Ray ends every process that is still leaving then."""
    if collectives.rank() or collectives.world() == 1:
        import_ray().shutdown()


def wait_for_start(tasks: Sequence[object]) -> None:
    """Wait until workers have loaded what they need. tasks: Ray's references to what each of them then returns,
    `versions` there. Raises UserError where one cannot start, or has other versions."""
    ray = import_ray()
    try:
        started = ray.get(tasks, timeout=START)
    except ray.exceptions.RayTaskError as error:
        raise cause(error) from error
    except ray.exceptions.RayError as error:
        raise UserError(f"engine ray: a worker did not start ({first_line(error)})") from error
    own_versions = versions()
    for worker_versions in started:
        if worker_versions != own_versions:
            raise UserError(
                f"engine ray: a worker has {worker_versions}, the trainer has {own_versions}; install the same"
            )


def check_head() -> None:
    """Raise ProcessLost where the head of the cluster does not answer for HEAD seconds. To be called before something
    is put into the object store, which without its server ends the process in silence."""
    address = import_ray().get_runtime_context().gcs_address
    if why := silent(address):
        raise ProcessLost(
            f"engine ray: the head of the Ray cluster at {address} does not answer ({why}); checkpoints are intact: "
            "start Ray again, then continue with --resume"
        )


def silent(address: str) -> str:
    """Why nothing listens at host:port, for HEAD seconds; empty where something does."""
    host, _, port = address.rpartition(":")
    until = time.monotonic() + HEAD
    while True:
        try:
            with socket.create_connection((host.strip("[]"), int(port)), timeout=max(0.1, until - time.monotonic())):
                return ""
        except OSError as error:
            if time.monotonic() > until:
                return error.strerror or str(error)
            time.sleep(0.5)


def cause(error: Any) -> BaseException:
    """What a worker raised, as this process raises it: a UserError, or Ray's own error, which names the worker's."""
    return error.cause if isinstance(error.cause, UserError) else error
