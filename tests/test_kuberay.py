"""examples/kuberay.yaml against the fields of KubeRay's RayJob, version v1, and against itself."""

import re
import shlex
from pathlib import Path
from typing import Any

import yaml

from lfpo.base.config import configure
from lfpo.train.config import LFPOConfig

ROOT = Path(__file__).parents[1]
JOB = yaml.safe_load((ROOT / "examples" / "kuberay.yaml").read_text())
CLUSTER = JOB["spec"]["rayClusterSpec"]
HEAD, (WORKERS,) = CLUSTER["headGroupSpec"], CLUSTER["workerGroupSpecs"]


def container(group: dict[str, Any]) -> dict[str, Any]:
    (found,) = group["template"]["spec"]["containers"]
    return found


def test_its_values_have_the_types_that_kubernetes_takes():
    assert (JOB["apiVersion"], JOB["kind"]) == ("ray.io/v1", "RayJob")
    assert re.fullmatch(r"[a-z0-9-]+", JOB["metadata"]["name"])
    for group in (HEAD, WORKERS):
        its = container(group)
        # Text only.
        assert all(
            isinstance(v, str) for part in (group["rayStartParams"], *its["resources"].values()) for v in part.values()
        )
        volumes = {volume["name"] for volume in group["template"]["spec"]["volumes"]}
        assert {mount["name"] for mount in its["volumeMounts"]} == volumes


def test_its_command_fits_its_cluster():
    command, *arguments = shlex.split(JOB["spec"]["entrypoint"])[1:]
    assert command == "train"
    config, flags = configure(LFPOConfig, arguments, takes_file=True, command="train", flags=("resume", "dry_run"))
    assert "resume" in flags  # or KubeRay's second try would be refused
    engine = config.engine
    machines = WORKERS["replicas"]
    limits = container(WORKERS)["resources"]["limits"]
    assert HEAD["rayStartParams"]["num-gpus"] == "0"  # the trainer's own
    assert engine.workers * engine.gpus_per_worker == machines * int(limits["nvidia.com/gpu"])
    assert engine.workers * engine.cpus_per_worker + engine.reward_workers <= machines * int(limits["cpu"])
    # What is written is on the volume that all pods have.
    assert config.output_dir.startswith(container(HEAD)["volumeMounts"][0]["mountPath"])
    assert container(HEAD)["image"] == container(WORKERS)["image"]
    assert f"ray=={CLUSTER['rayVersion']}" in (ROOT / "constraints.txt").read_text()
