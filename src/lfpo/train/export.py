"""`lfpo export`: the model of a run, or its LoRA adapter, as a folder that other tools load."""

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from lfpo.base.config import load_yaml
from lfpo.base.errors import UserError
from lfpo.base.files import read_json
from lfpo.models.export import ADAPTER, export_adapter, export_transformers, merge_adapter
from lfpo.models.family import Family
from lfpo.models.loading import described, resolve
from lfpo.models.tensor_files import FILE_BYTES, check_disk, weight_bytes
from lfpo.models.weights import reading, weight_files
from lfpo.runs.card import FAMILY_USE, converted_card, model_card, transformers_use
from lfpo.runs.directory import Run
from lfpo.train.checkpoint import CARD, latest_checkpoint, verify
from lfpo.train.export_config import ExportConfig, Layout, located, output_folder

ADAPTER_USE = """A LoRA adapter for peft, onto {base}:

```python
from peft import PeftModel

model = PeftModel.from_pretrained(base, "PATH_TO_THIS_FOLDER")
```
"""


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
        return described(resolve(self.base) if (self.weights / ADAPTER).exists() else self.weights)


def find_source(name: str, *, adapter: bool = False) -> Source:
    """The weights that `lfpo export` and `lfpo push` mean by a name. adapter: a checkpoint with a LoRA adapter.

    Raises UserError where there is none.
    """
    folder, checkpoint = located(name)
    if checkpoint and (damage := verify(checkpoint)):
        raise UserError(f"checkpoint {checkpoint} is damaged ({damage}); give another one, or the run's folder")
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
    """Write the folder, under a hidden name until it is complete; print and return its path. Raises UserError where it
    is taken or cannot be written."""
    source, folder = find_source(config.run, adapter=config.adapter), output_folder(config)
    partial = folder.with_name(f".{folder.name}.partial")
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        write_export(source, partial, config.layout, adapter=config.adapter)
        if folder.exists():
            folder.rmdir()
        partial.rename(folder)
    except (OSError, SafetensorError) as error:
        raise UserError(f"{folder}: could not be written ({error})") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    print(folder)
    return folder


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
        merged = (source.weights / ADAPTER).exists()
        dtype = getattr(torch, (source.config or {}).get("dtype", "float32"))
        needed = weight_bytes(resolve(source.base), dtype) if merged else 0
        needed = needed or sum(path.stat().st_size for path in source.weights.glob("*.safetensors"))
        check_disk(folder, needed + (min(needed, FILE_BYTES) if merged and not own_names else 0))
        if not merged and own_names:
            for file in weight_files(source.weights):
                with reading(file), safe_open(file, framework="pt"):
                    pass  # its header says how long it is
            shutil.copytree(source.weights, folder, dirs_exist_ok=True)
        elif not merged:
            export_transformers(source.weights, folder)
        elif own_names:
            merge_adapter(resolve(source.base), source.weights, folder, dtype)
        else:  # the merged copy goes as it is read, so that the disk holds one model and one file
            with tempfile.TemporaryDirectory(dir=folder) as scratch:
                merge_adapter(resolve(source.base), source.weights, Path(scratch), dtype)
                export_transformers(Path(scratch), folder, consume=True)
    library = "peft" if adapter else "lfpo" if own_names else layout
    (folder / CARD).write_text(_card(source, use, library), encoding="utf-8")


def _card(source: Source, use: str, library: str) -> str:
    if source.run is None:
        return converted_card(source.weights.name, use, library)
    kind = read_json(source.run.dir / "run.json")["kind"]
    return model_card(source.run, source.config or {}, kind, use, step=source.step, library=library)
