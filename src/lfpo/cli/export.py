"""`lfpo export`: the model of a run, or its LoRA adapter, as a folder that other tools load."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError

from lfpo.base.config import load_yaml
from lfpo.base.errors import UserError
from lfpo.base.files import read_json
from lfpo.models.export import ADAPTER, export_adapter, export_transformers, merge_adapter
from lfpo.models.family import Family
from lfpo.models.loading import family_of, resolve
from lfpo.runs.card import FAMILY_USE, converted_card, model_card, transformers_use
from lfpo.runs.directory import Run
from lfpo.train.checkpoint import CARD, latest_checkpoint

Layout = Literal["family", "transformers"]
FOLDERS = {"family": "model-family", "transformers": "model-transformers"}

ADAPTER_USE = """A LoRA adapter for peft, onto {base}:

```python
from peft import PeftModel

model = PeftModel.from_pretrained(base, "PATH_TO_THIS_FOLDER")
```
"""


@dataclass
class ExportConfig:
    """Configuration of `lfpo export`.

    run: a run's folder (its trained model, or its newest checkpoint while it has none), one of its checkpoints
        (RUN/checkpoints/step-N), or any model that lfpo loads: a folder, a hub id, or "embedded".
    layout: "family": the model family's own names, as lfpo saves them. "transformers": the family's class in
        transformers, which AutoModelForCausalLM loads without lfpo and without remote code.
    adapter: write a LoRA run's adapter in peft's format, for a base of the same layout. Otherwise it is merged.
    output: folder to write, new or empty (None: model-family, model-transformers or adapter in the run's folder).
    """

    run: str
    layout: Layout = "family"
    adapter: bool = False
    output: str | None = None


@dataclass(frozen=True)
class Source:
    """Where exported weights come from.

    weights: a folder with all weights, or with an adapter only. run: the run they belong to, with its configuration.
    step: the checkpoint's iteration, None for a run's final model.
    """

    weights: Path
    run: Run | None = None
    config: dict[str, Any] | None = None
    step: int | None = None

    @property
    def base(self) -> str:
        """The name of the model that training started from."""
        return str((self.config or {}).get("model") or "")

    def model_config(self) -> tuple[Family, dict[str, Any]]:
        """The model's family and config.json."""
        where = resolve(self.base) if (self.weights / ADAPTER).exists() else self.weights
        config = read_json(where / "config.json")
        return family_of(config, where / "config.json"), config


def find_source(name: str, *, adapter: bool = False) -> Source:
    """The weights that `lfpo export` and `lfpo push` mean by a name. adapter: a checkpoint with a LoRA adapter.

    Raises UserError where there is none.
    """
    path = Path(name).expanduser()
    checkpoint = path if (path / "manifest.json").exists() and path.parent.name == "checkpoints" else None
    folder = path.parent.parent if checkpoint else path
    if not (folder / "config.yaml").exists():
        if adapter:
            raise UserError(f"{name}: holds no run; --adapter needs the folder of a run with lora")
        return Source(resolve(name))
    run, config = Run(folder), load_yaml(folder / "config.yaml")
    if checkpoint is None and not adapter and (folder / "model" / "config.json").exists():
        return Source(folder / "model", run, config)
    checkpoint = checkpoint or latest_checkpoint(folder, print)
    if checkpoint is None:
        raise UserError(f"{folder}: the run has neither a trained model nor a checkpoint yet")
    if adapter and not (checkpoint / "model" / ADAPTER).exists():
        raise UserError(f"{checkpoint}: holds no adapter, since the run has no 'lora'; leave out --adapter")
    if not checkpoint.name.removeprefix("step-").isdecimal():
        raise UserError(f"{checkpoint}: the folder of a checkpoint is named step-NUMBER; rename it")
    return Source(checkpoint / "model", run, config, int(checkpoint.name.removeprefix("step-")))


def run_export(config: ExportConfig) -> Path:
    """Write the folder, print and return its path."""
    source = find_source(config.run, adapter=config.adapter)
    if config.output is None and source.run is None:
        raise UserError(f"lfpo export: {config.run} is no run, so say where to write: --output FOLDER")
    name = "adapter" if config.adapter else FOLDERS[config.layout]
    folder = Path(config.output).expanduser() if config.output else source.run.dir / name  # type: ignore[union-attr]
    with_new_folder(folder, lambda partial: write_export(source, partial, config.layout, adapter=config.adapter))
    print(folder)
    return folder


def with_new_folder(folder: Path, write: Callable[[Path], None]) -> None:
    """Call `write` with a hidden folder beside `folder`, and rename it once it is complete.

    Raises UserError where `folder` is taken or cannot be written.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder}: exists already; remove it, or give another --output")
    partial = folder.with_name(f".{folder.name}.partial")
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        write(partial)
        if folder.exists():
            folder.rmdir()
        partial.rename(folder)
    except (OSError, SafetensorError) as error:
        raise UserError(f"{folder}: could not be written ({error})") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def write_export(source: Source, folder: Path, layout: Layout, *, adapter: bool = False) -> None:
    """Write the model of `source`, or its adapter, with a card into the existing `folder`."""
    family, config = source.model_config()
    own_names = layout == "family"
    use = FAMILY_USE if own_names else transformers_use(family.architecture, family.shift, family.block_length(config))
    if adapter:
        base = Path(source.base).name if Path(source.base).expanduser().exists() else source.base
        export_adapter(source.weights, family, base, folder, own_names=own_names)
        made = f"`{base}`" if own_names else f"what `lfpo export {base} --layout transformers` writes"
        use = ADAPTER_USE.format(base=made)
    else:
        with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
            weights = source.weights
            if (weights / ADAPTER).exists():
                weights = Path(scratch) / "merged"
                dtype = getattr(torch, (source.config or {}).get("dtype", "float32"))
                merge_adapter(resolve(source.base), source.weights, weights, dtype)
            if own_names:
                shutil.copytree(weights, folder, dirs_exist_ok=True)
            else:
                export_transformers(weights, folder)
    (folder / CARD).write_text(_card(source, use, "peft" if adapter else layout), encoding="utf-8")


def _card(source: Source, use: str, layout: str) -> str:
    library = {"family": "lfpo"}.get(layout, layout)
    if source.run is None:
        return converted_card(source.weights.name, use, library)
    kind = read_json(source.run.dir / "run.json")["kind"]
    return model_card(source.run, source.config or {}, kind, use, step=source.step, library=library)
