"""A run that older code began resumes.

`data/run-of-7ccad80` was written by the code of commit 7ccad80 on two ranks with `fsdp: true`: its configuration, the
metrics of all three iterations, and the checkpoint of the second (random weights, 2,284 parameters). The model that it
started from is not kept; a resumed run takes from that folder only what the checkpoint's own model has too.
"""

import re
import shutil
from pathlib import Path

import pytest
import torch

from lfpo.config.build import build, load_yaml
from lfpo.config.train import LFPOConfig
from lfpo.runs.directory import Run
from lfpo.train.checkpoint import latest_checkpoint
from lfpo.train.rl import LFPOTrainer
from lfpo.train.run import TrainingRun
from processes import run_lfpo
from small_runs import AS_PUBLISHED
from tiny import read_weights

OLD = Path(__file__).parent / "data" / "run-of-7ccad80"
STEP_2 = OLD / "checkpoints" / "step-2"


@pytest.fixture(autouse=True)
def copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies of the run and of the model that it starts from, in the working directory."""
    assert latest_checkpoint(OLD) == STEP_2  # every file matches its checksum
    shutil.copytree(OLD, tmp_path / "run")
    shutil.copytree(STEP_2 / "model", tmp_path / "start")
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("ranks", "fsdp"), [(1, "false"), (2, "true"), pytest.param(2, "false", marks=pytest.mark.long)]
)
def test_it_resumes_on_one_and_on_two_ranks(ranks: int, fsdp: str):
    """The third iteration samples what the old code sampled; its loss is another, since blocks hold other rollouts."""
    refused = run_lfpo("train", "run/config.yaml", "--resume", "--fsdp", fsdp, code=2)
    assert "the run began when lfpo had other defaults" in refused.stderr
    earlier = re.search(r"add --objective '(.*)'", refused.stderr)
    assert earlier is not None
    ended = run_lfpo("train", "run/config.yaml", "--resume", "--fsdp", fsdp, "--objective", earlier[1], ranks=ranks)
    assert ended.returncode == 0, ended.stderr
    assert "resumed from run/checkpoints/step-2" in ended.stdout
    before, after = (Run(folder).read_metrics() for folder in (OLD, Path("run")))
    assert after[:-1] == before[:-1]
    for name in ("reward", "r", "learning_rate", "nfe", "entropy/rollout", "completions/mean_length"):
        assert after[-1][name] == pytest.approx(before[-1][name], rel=1e-3), name


def test_what_is_loaded_is_what_was_saved():
    """Saved again without a further step, weights, reference and moments are the same bits."""
    values = load_yaml("run/config.yaml")
    values["objective"] |= {k: v for k, v in AS_PUBLISHED.items() if k not in values["objective"]}
    trainer = LFPOTrainer(args=build(LFPOConfig, {**values, "fsdp": False}))
    run = TrainingRun(trainer, resume=True, display=None)
    run.restore()
    run.save()
    for part in ("model", "reference", "optimizer"):
        old, new = read_weights(STEP_2 / part), read_weights(Path("run/checkpoints/step-2") / part)
        assert old.keys() == new.keys()
        assert all(torch.equal(old[name], new[name]) for name in old)
