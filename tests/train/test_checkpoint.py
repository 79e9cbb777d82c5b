import resource
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from lfpo.config.errors import UserError
from lfpo.models import MaskedDiffusionLM, init_model, load_model, load_tokenizer
from lfpo.train.adamw import build_adamw
from lfpo.train.checkpoint import latest_checkpoint, load_optimizer, load_weights, save_checkpoint, verify
from tiny import LLADA_CONFIG, optimiser_settings, random_ids, write_llada


class Trainee:
    """A model with its optimiser, trained on noise."""

    def __init__(self, folder: Path):
        self.model = load_model(folder)
        self.reference: MaskedDiffusionLM | None = None
        self.parts: dict[str, Any] = {}
        self.tokenizer = load_tokenizer(folder)
        self.optimizer = build_adamw(self.model, optimiser_settings(1e-2, 0.1, 0.98))

    def train(self, step: int) -> None:
        self.model(random_ids(2, 6, seed=step)).square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def save(self, run: Path, step: int, **settings: Any) -> Path:
        trainer: Any = self
        return save_checkpoint(run, step, trainer, state={"rows": step * 2}, **settings)


@pytest.fixture
def trainee(llada: Path) -> Trainee:
    result = Trainee(llada)
    result.train(0)
    return result


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return tmp_path / "run"


def same(a: MaskedDiffusionLM, b: MaskedDiffusionLM) -> bool:
    one, two = a.state_dict(), b.state_dict()
    return one.keys() == two.keys() and all(torch.equal(one[k], two[k]) for k in one)


def names(run: Path) -> list[str]:
    return sorted(p.name for p in (run / "checkpoints").iterdir())


def test_an_optimizer_that_has_not_stepped_yet(llada: Path, run: Path) -> None:
    path = Trainee(llada).save(run, 0)
    other = Trainee(llada)
    load_optimizer(other.optimizer, path)
    other.train(0)


def test_hyperparameters_stay_as_configured(trainee: Trainee, run: Path, llada: Path) -> None:
    path = trainee.save(run, 1)
    model = load_model(llada)
    optimizer = build_adamw(model, optimiser_settings(5e-5, 0.0, 0.999))
    load_optimizer(optimizer, path)
    assert all(g["lr"] == 5e-5 and g["betas"] == (0.9, 0.999) for g in optimizer.param_groups)


def test_a_checkpoint_holds_a_model_and_a_reference_that_load(trainee: Trainee, run: Path) -> None:
    reference = trainee.model.frozen_copy()
    trainee.train(1)
    trainee.reference = reference
    path = trainee.save(run, 3)
    assert same(load_model(path / "model"), trainee.model)
    assert same(load_model(path / "reference"), reference)
    assert load_tokenizer(path / "model").mask_token_id == 259
    assert not same(trainee.model, reference)
    assert {p.suffix for p in path.rglob("*") if p.is_file()} <= {".json", ".safetensors", ".jinja", ".md"}


def test_the_newest_are_kept_and_other_folders_left_alone(trainee: Trainee, run: Path) -> None:
    for name in ("step-best", "step-1-copy"):
        (run / "checkpoints" / name).mkdir(parents=True)
    for step in (8, 9, 10, 100):
        trainee.save(run, step, keep=2)
    assert names(run) == ["step-1-copy", "step-10", "step-100", "step-best"]
    assert latest_checkpoint(run) == run / "checkpoints" / "step-100"


FILES = [
    "model/model.safetensors",
    "model/config.json",
    "model/tokenizer.json",
    "optimizer/optimizer.safetensors",
    "state.json",
    "manifest.json",
]


@pytest.mark.parametrize("damage", ["truncated", "flipped", "other JSON", "missing"])
def test_damage_is_seen_and_the_older_checkpoint_taken(trainee: Trainee, run: Path, damage: str) -> None:
    older, newer = trainee.save(run, 1), trainee.save(run, 2)
    for file in FILES:
        assert latest_checkpoint(run) == newer
        content = (newer / file).read_bytes()
        middle = len(content) // 2
        flipped = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
        (newer / file).write_bytes({"flipped": flipped, "other JSON": b"[]"}.get(damage, content[:middle]))
        if damage == "missing":
            (newer / file).unlink()
        reports: list[str] = []
        assert latest_checkpoint(run, reports.append) == older, file
        assert len(reports) == 1 and "step-2" in reports[0]
        (newer / file).write_bytes(content)


@pytest.mark.parametrize("limit", [100, 3_000, 20_000, 60_000, 200_000, "tokenizer"])
def test_a_full_disk_leaves_the_previous_checkpoint(trainee: Trainee, run: Path, limit: int | str) -> None:
    """A limit on file size makes real writes fail part way, as a full disk does, in every library. "tokenizer":
    the tokenizers library, whose file is the largest here, reports that by an exception of its own."""
    if limit == "tokenizer":
        trainee.tokenizer.add_tokens([f"token{i}" for i in range(3_000)])
    good = trainee.save(run, 1)
    sizes = {p.name: p.stat().st_size for p in good.rglob("*")}
    most = sizes["model.safetensors"] + 1000 if limit == "tokenizer" else int(limit)
    assert most < (sizes["tokenizer.json"] if limit == "tokenizer" else max(sizes.values()))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, hard))
    try:
        with pytest.raises(UserError) as caught:
            trainee.save(run, 2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    text = str(caught.value)
    assert "\n" not in text
    assert "step-2" in text and "step-1 is intact" in text
    assert latest_checkpoint(run) == good
    assert names(run) == ["step-1"]
    assert trainee.save(run, 2).name == "step-2"


def test_a_file_in_place_of_the_folder(trainee: Trainee, run: Path) -> None:
    run.mkdir()
    (run / "checkpoints").write_text("not a folder")
    with pytest.raises(UserError, match="none exists yet"):
        trainee.save(run, 1)


def test_leftovers_of_a_killed_save_are_removed(trainee: Trainee, run: Path) -> None:
    good = trainee.save(run, 1)
    # Killed while preparing, and killed while deleting an old one.
    shutil.copytree(good, run / "checkpoints" / ".step-7.partial")
    (run / "checkpoints" / ".step-7.partial" / "manifest.json").unlink()
    shutil.copytree(good, run / "checkpoints" / ".step-0.partial")
    assert latest_checkpoint(run) == good
    trainee.save(run, 2)
    assert names(run) == ["step-1", "step-2"]


def test_tied_weights_are_restored_tied(tmp_path: Path, run: Path) -> None:
    folder = write_llada(tmp_path / "tied", weight_tying=True)
    trainee, other = Trainee(folder), Trainee(folder)
    trainee.train(0)
    load_weights(other.model, trainee.save(run, 1) / "model")
    assert same(trainee.model, other.model)
    assert other.model.backbone.lm_head.weight is other.model.backbone.model.embed_tokens.weight


def test_a_save_after_passing_over_damaged_ones_keeps_itself(trainee: Trainee, run: Path) -> None:
    for step in (2, 3, 4):
        trainee.save(run, step, keep=3)
    for step in (3, 4):
        (run / "checkpoints" / f"step-{step}" / "state.json").write_text("{}")
    latest = latest_checkpoint(run)
    assert latest is not None and latest.name == "step-2"
    trainee.save(run, 3, keep=1)
    assert names(run) == ["step-3"]
    assert verify(run / "checkpoints" / "step-3") is None


def test_weights_of_another_model_are_refused(trainee: Trainee, run: Path) -> None:
    path = trainee.save(run, 1)
    other = init_model({**LLADA_CONFIG, "mlp_hidden_size": 64}, seed=0)
    with pytest.raises(UserError, match=r"ff_proj.weight has shape"):
        load_weights(other, path / "model")
