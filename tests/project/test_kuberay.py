"""examples/kuberay.yaml against the fields of KubeRay's RayJob, version v1, and against itself."""

import re
import shlex
from pathlib import Path
from typing import Any

import yaml

from lfpo.config.arguments import configure
from lfpo.config.train import LFPOConfig

ROOT = Path(__file__).parents[2]
JOB = yaml.safe_load((ROOT / "examples" / "kuberay.yaml").read_text())
CLUSTER = JOB["spec"]["rayClusterSpec"]
HEAD, (WORKERS,) = CLUSTER["headGroupSpec"], CLUSTER["workerGroupSpecs"]


def container(group: dict[str, Any]) -> dict[str, Any]:
    (found,) = group["template"]["spec"]["containers"]
    return found


def test_it_has_the_fields_that_kuberay_asks_for_and_no_others():
    assert (JOB["apiVersion"], JOB["kind"]) == ("ray.io/v1", "RayJob")
    assert re.fullmatch(r"[a-z0-9-]+", JOB["metadata"]["name"])
    assert JOB["spec"].keys() == {"backoffLimit", "shutdownAfterJobFinishes", "entrypoint", "rayClusterSpec"}
    assert CLUSTER.keys() == {"rayVersion", "headGroupSpec", "workerGroupSpecs"}
    assert HEAD.keys() == {"rayStartParams", "template"}
    assert WORKERS.keys() == {"groupName", "replicas", "minReplicas", "maxReplicas", "rayStartParams", "template"}
    assert WORKERS["minReplicas"] <= WORKERS["replicas"] <= WORKERS["maxReplicas"]
    for group in (HEAD, WORKERS):
        # Kubernetes takes text only.
        assert all(isinstance(value, str) for value in group["rayStartParams"].values())
        its = container(group)
        assert its.keys() == {"name", "image", "env", "resources", "volumeMounts"}
        assert all(isinstance(v, str) for part in its["resources"].values() for v in part.values())
        assert its["resources"]["requests"]["nvidia.com/gpu"] == its["resources"]["limits"]["nvidia.com/gpu"]
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
