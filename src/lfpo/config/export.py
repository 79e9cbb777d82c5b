"""The configurations of `lfpo export` and `lfpo push`."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from lfpo.config.errors import UserError
from lfpo.config.files import user_path

Layout = Literal["family", "transformers"]
Dtype = Literal["float32", "bfloat16"]


@dataclass
class ExportConfig:
    """Configuration of `lfpo export`."""

    run: str
    """A run's folder (its trained model, or its newest checkpoint while it has none), one of its checkpoints
    (RUN/checkpoints/step-N), or any model that lfpo loads: a folder, a hub id, or "embedded"."""

    layout: Layout = "family"
    """The names of weights. "family": the model family's own names, as lfpo saves them. "transformers": the family's
    class in transformers, which AutoModelForCausalLM loads without lfpo and without remote code."""

    adapter: bool = False
    """Write a LoRA run's adapter in peft's format, for a base of the same layout. Otherwise it is merged."""

    dtype: Dtype | None = None
    """Of the sum of base and adapter (None: the run's dtype). bfloat16 rounds part of what was learned away; a line
    says how much."""

    output: str | None = None
    """Folder to write, new or empty (None: model-family, model-transformers or adapter in the run's folder)."""


def located(name: str) -> tuple[Path, Path | None]:
    """The folder that is meant, a run's or a model's, and the checkpoint in it, if the name is a checkpoint's."""
    path = user_path(name)
    if path.parent.name == "checkpoints" and (path / "manifest.json").exists():
        return path.parent.parent, path
    return path, None


def output_folder(config: ExportConfig) -> Path:
    """The folder to write. Raises UserError where it is taken, or where nothing says where it is."""
    run, _ = located(config.run)
    if config.output is not None:
        folder = user_path(config.output)
    elif (run / "config.yaml").exists():
        folder = run / ("adapter" if config.adapter else f"model-{config.layout}")
    else:
        raise UserError(f"lfpo export: {config.run} is no run, so say where to write: --output FOLDER")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder}: exists already; remove it, or give another --output")
    return folder


@dataclass
class PushConfig:
    """Configuration of `lfpo push RUN USER/NAME`.

    The login is that of `hf auth login`, or the environment variable HF_TOKEN.
    """

    run: str
    """As in lfpo export; for a run the upload also has recipe.yaml, metrics.jsonl and report.html."""

    repo: str
    """The repository on the hub, USER/NAME or ORGANISATION/NAME; it is made if it does not exist."""

    layout: Layout = "transformers"
    """As in lfpo export."""

    adapter: bool = False
    """As in lfpo export."""

    dtype: Dtype | None = None
    """As in lfpo export."""

    private: bool = True
    """Whether a new repository is private. An existing one keeps its setting."""

    report: bool = True
    """Upload report.html, which holds prompts and completions."""

    dry_run: bool = False
    """List the files and sizes and upload nothing."""

    def __post_init__(self) -> None:
        check_repo("repo", self.repo)


def check_repo(key: str, name: str) -> None:
    """Raise ValueError unless the name has the form USER/NAME."""
    if re.fullmatch(r"[\w.-]+/[\w.-]+", name) is None:
        raise ValueError(f"{key!r} {name!r} must have the form USER/NAME")
