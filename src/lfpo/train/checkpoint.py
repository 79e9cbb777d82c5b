"""Checkpoints: written atomically, verified by checksum, safetensors and JSON only.

A checkpoint is a folder `checkpoints/step-N` with `model/` (the family's own layout), `reference/` (optional), a folder
for each further part of the trainer, such as `average/`, `optimizer/`, `state.json`, and `manifest.json`, which lists
the SHA-256 of every other file. It is written under a hidden name, the manifest last, and then renamed, so a folder
called `step-N` is complete. All ranks must see the same file system: each writes and hashes its share. The files hold
whole tensors, so any number of ranks can read them.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors import SafetensorError

from lfpo.base import distributed
from lfpo.config.errors import UserError
from lfpo.config.files import read_json, sha256_of, write_json
from lfpo.config.json import Json
from lfpo.core import collectives
from lfpo.models import MaskedDiffusionLM, save_model
from lfpo.models.lora import ADAPTER_CONFIG, load_adapter, save_adapter
from lfpo.models.tensor_files import read_like, tensor_paths, write_shards
from lfpo.models.weights import read_weights
from lfpo.train.trainer import Trainer

CARD = "README.md"
TABLES = ("qmap1", "qmap2")  # bitsandbytes' fields with the values of the 256 codes, equal for all tensors


def save_checkpoint(run_dir: Path, step: int, trainer: Trainer, *, state: Json, card: str = "", keep: int = 2) -> Path:
    """Write `checkpoints/step-N`, remove all but the newest `keep`, and return its path. A collective: every rank calls
    it.

    trainer: its policies, tokenizer, optimiser and parts are saved. state: JSON data of the caller (counters). card:
    text of `model/README.md`.
    Raises UserError where a file cannot be written; the checkpoints before it are not touched.
    """
    root = run_dir / "checkpoints"
    final, partial = root / f"step-{step}", root / f".step-{step}.partial"

    def prepare() -> None:
        root.mkdir(parents=True, exist_ok=True)
        for leftover in root.glob(".*.partial"):  # of interrupted saves
            shutil.rmtree(leftover)
        (partial / "optimizer").mkdir(parents=True)

    try:
        distributed.by_first(prepare)
        for name, part in trainer.parts.items():
            distributed.by_first((partial / name).mkdir)
            part.save(partial / name)
        save_policy(trainer.model, partial / "model", trainer.tokenizer)
        distributed.by_first(lambda: (partial / "model" / CARD).write_text(card, encoding="utf-8"))
        if trainer.reference is not None:
            save_policy(trainer.reference, partial / "reference", trainer.tokenizer)
        _save_optimizer(trainer.optimizer, partial / "optimizer")
        distributed.by_first(lambda: write_json(partial / "state.json", {"step": step, **state}))
        digests = distributed.each_writes(lambda: _sync_and_hash(partial))
        manifest = dict(sorted(pair for part in collectives.gather(digests) for pair in part.items()))
        distributed.by_first(lambda: _publish(root, partial, final, manifest, keep))
    except (OSError, SafetensorError) as error:
        shutil.rmtree(partial, ignore_errors=True)
        good = latest_checkpoint(run_dir)
        raise UserError(
            f"{final}: the checkpoint could not be written ({error}); "
            + (f"{good.name} is intact: " if good else "none exists yet: ")
            + "free disk space or check permissions, then run the same command with --resume"
        ) from error
    return final


def _publish(root: Path, partial: Path, final: Path, manifest: dict[str, str], keep: int) -> None:
    """Write the manifest, rename the checkpoint to its final name, and remove what is older: the trained model of a run
    that has gone on, and checkpoints."""
    write_json(partial / "manifest.json", manifest)
    for path in [partial / "manifest.json", *(p for p in partial.rglob("*") if p.is_dir()), partial]:
        _sync(path)
    if final.exists():  # a resumed run saves the same step again
        shutil.rmtree(final)
    partial.rename(final)
    _sync(root)
    shutil.rmtree(root.parent / "model", ignore_errors=True)  # it would be taken for the newest weights
    # A later step is a damaged checkpoint that the resume skipped.
    steps = numbered(root)
    own = steps.index(final)
    for old in [*steps[: max(0, own + 1 - keep)], *steps[own + 1 :]]:
        # Renamed first, so that an interrupted deletion leaves no incomplete folder under a checkpoint's name.
        hidden = root / f".{old.name}.partial"
        old.rename(hidden)
        shutil.rmtree(hidden)


def export_model(run_dir: Path, model: MaskedDiffusionLM, tokenizer: object, *, card: str = "") -> Path:
    """Write the trained model to `run_dir/model` and return that folder; an earlier model is replaced once the new one
    is complete. A collective: every rank calls it.

    card: text of README.md. Raises UserError where a file cannot be written.
    """
    final, partial = run_dir / "model", run_dir / ".model.partial"

    def publish() -> None:
        (partial / CARD).write_text(card, encoding="utf-8")
        shutil.rmtree(final, ignore_errors=True)
        partial.rename(final)

    try:
        distributed.by_first(lambda: shutil.rmtree(partial, ignore_errors=True))
        save_model(model, partial, tokenizer)
        distributed.by_first(publish)
    except (OSError, SafetensorError) as error:
        good = latest_checkpoint(run_dir)
        fallback = f"{good / 'model'} holds the last saved weights" if good else "no checkpoint was saved"
        raise UserError(f"{final}: the trained model could not be written ({error}); {fallback}") from error
    return final


def latest_checkpoint(run_dir: Path, report: Callable[[str], None] | None = None) -> Path | None:
    """The newest checkpoint whose files match its manifest, or None. report: called with a sentence for each damaged
    checkpoint that is skipped."""
    for path in reversed(numbered(run_dir / "checkpoints")):
        damage = verify(path)
        if damage is None:
            return path
        if report is not None:
            report(f"checkpoint {path} is damaged ({damage}); trying the one before it")
    return None


def verify(path: Path) -> str | None:
    """What is wrong with a checkpoint; None if every file matches its manifest."""
    try:
        manifest = read_json(path / "manifest.json")
    except UserError:
        return "manifest.json is missing or unreadable"
    for name, digest in manifest.items():
        file = path / name
        if not file.is_file():
            return f"{name} is missing"
        if sha256_of(file) != digest:
            return f"{name} does not match its checksum"
    return None


def save_policy(policy: MaskedDiffusionLM, folder: Path, tokenizer: object) -> None:
    """Write all weights, or of a LoRA policy only its adapter, since the base does not change. A collective."""
    if policy.adapter is None:
        save_model(policy, folder, tokenizer)
    else:
        distributed.by_first(lambda: save_adapter(policy, folder))


def load_weights(model: MaskedDiffusionLM, folder: Path) -> None:
    """Copy a saved policy's weights, or its adapter, into `model`, in place: parameters stay the same objects. Raises
    UserError where the folder holds an adapter and the model has none, the reverse, or another model's weights."""
    if (folder / ADAPTER_CONFIG).exists() != (model.adapter is not None):
        saved_kind, has = ("all weights", "has") if model.adapter else ("an adapter", "has no")
        raise UserError(
            f"{folder}: holds {saved_kind}, and the configuration {has} 'lora'; resume with the configuration it "
            "was saved under"
        )
    if model.adapter is not None:
        load_adapter(model, folder)
    else:
        read_weights(model, folder)


def _save_optimizer(optimizer: torch.optim.Optimizer, folder: Path) -> None:
    """Write AdamW's state, torch's or bitsandbytes', of each parameter that has stepped into an existing folder, as
    tensors NUMBER.FIELD; numbers count the parameters over all groups. A collective."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    tensors = {
        f"{number}.{name}": torch.as_tensor(value)
        for number, p in enumerate(parameters)
        for name, value in optimizer.state.get(p, {}).items()
        if name not in TABLES
    }
    write_shards(tensors, folder, "optimizer")


def load_optimizer(optimizer: torch.optim.Optimizer, checkpoint: Path) -> None:
    """Restore the state from a checkpoint; hyperparameters keep their current values. A rank reads only its rows of
    split parameters. Raises UserError for the state of another kind of optimiser."""
    groups = optimizer.param_groups
    places = [(g, i, p) for g, group in enumerate(groups) for i, p in enumerate(group["params"])]
    # Only parameters that have stepped have a state.
    state: dict[int, dict[str, torch.Tensor]] = {}
    another = UserError(
        f"{checkpoint}: holds the moments of another optimiser; resume with the 'optim' it was saved with"
    )
    for name, file in tensor_paths(checkpoint / "optimizer").items():
        number, _, field = name.partition(".")
        state.setdefault(int(number), {})[field] = read_like(file, name, places[int(number)][2])
    if isinstance(optimizer, torch.optim.AdamW):
        if any(fields.keys() != {"step", "exp_avg", "exp_avg_sq"} for fields in state.values()):
            raise another
        optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
        return
    # bitsandbytes' load_state_dict would put paged moments on the GPU, so fill the buffers that init_state makes.
    for index, fields in state.items():
        g, i, p = places[index]
        optimizer.init_state(groups[g], p, g, i)  # type: ignore[attr-defined]
        buffers = optimizer.state[p]
        if fields.keys() != buffers.keys() - set(TABLES):
            raise another
        for name, value in fields.items():
            if name == "step":
                buffers[name] = int(value)
            else:
                buffers[name].copy_(value)


def numbered(root: Path) -> list[Path]:
    """The checkpoints of a folder, oldest first."""
    return sorted((p for p in root.glob("step-*") if p.name.removeprefix("step-").isdecimal()), key=step_of)


def step_of(checkpoint: Path) -> int:
    return int(checkpoint.name.removeprefix("step-"))


def _sync_and_hash(folder: Path) -> dict[str, str]:
    """Flush this rank's share of a folder's files to disk, and return name -> SHA-256."""
    own_files = sorted(p for p in folder.rglob("*") if p.is_file())[collectives.rank() :: collectives.world()]
    for path in own_files:
        _sync(path)
    return {str(p.relative_to(folder)): sha256_of(p) for p in own_files}


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
