"""`lfpo export`: the model of a run, or its LoRA adapter, as a folder that other tools load. `lfpo push` and
`push_to_hub`: that folder on the hub, with the run's recipe, metrics and report."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from huggingface_hub import HfApi, constants
from huggingface_hub.errors import HTTPError  # type: ignore[attr-defined]  # the class depends on the version
from rich.filesize import decimal
from rich.table import Table
from safetensors import SafetensorError, safe_open

from lfpo.base.terminal import Terminal, fitted
from lfpo.config.build import load_yaml, yaml_text
from lfpo.config.errors import UserError, first_line
from lfpo.config.export import ExportConfig, PushConfig, located, output_folder
from lfpo.config.files import new_folder, read_json, user_path, write_json
from lfpo.config.json import Json
from lfpo.models.export import (
    Base,
    export_adapter,
    export_transformers,
    merge_adapter,
    with_saved_adapter,
)
from lfpo.models.loading import load_model, read_config, resolve
from lfpo.models.lora import ADAPTER
from lfpo.models.weights import reading, weight_files
from lfpo.report.data import run_data
from lfpo.report.html import page
from lfpo.runs.card import converted_card, family_use, model_card, published, transformers_use
from lfpo.runs.directory import Run
from lfpo.train.average import Average
from lfpo.train.checkpoint import CARD, latest_checkpoint, numbered, save_policy, step_of, verify

REASON = 160  # most characters of the hub's answer in a message
ADAPTER_USE = """A LoRA adapter for peft, onto {base}:

```python
from peft import PeftModel

model = PeftModel.from_pretrained(base, "PATH_TO_THIS_FOLDER")
```
"""


@dataclass(frozen=True)
class WeightSource:
    """Where exported weights come from.

    weights: a folder with all weights, or with an adapter only. run: the run they belong to, with its configuration.
    step: the iteration of a run's weights; None where no checkpoint says it.
    """

    weights: Path
    run: Run | None = None
    config: Json = field(default_factory=dict)
    step: int | None = None

    @property
    def base_name(self) -> str:
        """The name of the model that training started from."""
        return str(self.config.get("model") or "")

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the weights in training."""
        dtype: torch.dtype = getattr(torch, self.config.get("dtype", "float32"))
        return dtype

    @property
    def base(self) -> Base:
        """The model that training started from, as training held it. Raises UserError where it is gone."""
        return Base(resolve(self.base_name), self.dtype, bool(self.config.get("load_in_4bit")))


def find_source(settings: ExportConfig | PushConfig) -> WeightSource:
    """The weights that a command is to export. Raises UserError where there are none."""
    folder, checkpoint = located(settings.run)
    if checkpoint and (damage := verify(checkpoint)):
        raise UserError(f"checkpoint {checkpoint} is damaged ({damage}); give another one, or the run's folder")
    if not (folder / "config.yaml").exists():
        for key in ("dtype", "adapter"):
            if getattr(settings, key):
                raise UserError(f"{settings.run}: holds no run; --{key} needs the folder of a run with lora")
        return WeightSource(resolve(settings.run))
    run, config = Run(folder), load_yaml(folder / "config.yaml")
    if settings.dtype is not None and (settings.adapter or config.get("lora") is None):
        raise UserError(
            f"{settings.run}: --dtype is that of the sum of base and LoRA adapter, and here nothing is added; leave it "
            "out (an adapter is float32, other weights keep their dtype)"
        )
    final, as_it_is = folder / "model", not settings.adapter and settings.dtype is None
    if checkpoint is None and as_it_is and (final / "config.json").exists():
        saved = numbered(folder / "checkpoints")
        return WeightSource(final, run, config, step_of(saved[-1]) if saved else None)
    checkpoint = checkpoint or latest_checkpoint(folder, print)
    if checkpoint is None:
        raise UserError(f"{folder}: the run has neither a trained model nor a checkpoint yet")
    if settings.adapter and not (checkpoint / "model" / ADAPTER).exists():
        raise UserError(f"{checkpoint}: holds no adapter, since the run has no 'lora'; leave out --adapter")
    return WeightSource(checkpoint / "model", run, config, step_of(checkpoint))


def run_export(config: ExportConfig) -> Path:
    """Write the folder, under a hidden name until it is complete; print and return its path. Raises UserError where it
    is taken or cannot be written."""
    source, folder = find_source(config), output_folder(config)
    try:
        with new_folder(folder) as partial:
            write_export(source, config, partial)
    except (OSError, SafetensorError) as error:
        raise UserError(f"{folder}: could not be written ({error})") from error
    print(folder)
    return folder


def _has_chat_template(folder: Path) -> bool:
    """Whether the tokenizer in a folder has a chat template; False without a tokenizer, as beside an adapter."""
    settings = folder / "tokenizer_config.json"
    own_file = (folder / "chat_template.jinja").exists()
    return own_file or (settings.exists() and bool(read_json(settings).get("chat_template")))


def write_export(source: WeightSource, settings: ExportConfig | PushConfig, folder: Path) -> None:
    """Write the model of `source`, or its adapter, with a card into the existing `folder`."""
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        use = _write_weights(averaged(source, Path(scratch)), settings, folder, Path(scratch))
    library = "peft" if settings.adapter else "lfpo" if settings.layout == "family" else settings.layout
    if source.run is None:
        card = converted_card(source.weights.name, use, library)
    else:
        kind = read_json(source.run.dir / "run.json")["kind"]
        chat = _has_chat_template(folder)
        card = model_card(source.run, source.config, kind, use, step=source.step, library=library, chat=chat)
    (folder / CARD).write_text(card, encoding="utf-8")


def averaged(source: WeightSource, folder: Path) -> WeightSource:
    """The source, or, where a checkpoint holds an average of theta, that average written into `folder`: it is what
    the run evaluates and exports at its end."""
    saved = source.weights.parent / "average"
    if source.step is None or not saved.exists():
        return source
    if (source.weights / ADAPTER).exists():
        model = with_saved_adapter(source.base, source.weights, source.dtype)
    else:
        model = load_model(source.weights, dtype=source.dtype)
    # The decay is not used: the average is read, swapped with the weights, and updated no more.
    average = Average(model.own_parameters(), 0.0)
    average.load(saved)
    average.swap()
    save_policy(model, folder / "average", None)
    return replace(source, weights=folder / "average")


def _write_weights(source: WeightSource, settings: ExportConfig | PushConfig, folder: Path, scratch: Path) -> str:
    """Write weights, config.json and tokenizer; returns how they are used, for the card. scratch: a folder for files
    that are written in between."""
    adapted = (source.weights / ADAPTER).exists()
    family, config = read_config(source.base.folder if adapted else source.weights)
    own_names = settings.layout == "family"
    if settings.adapter:
        base = Path(source.base_name).name if user_path(source.base_name).exists() else source.base_name
        export_adapter(source.weights, family, base, folder, own_names=own_names)
        made = f"`{base}`" if own_names else f"what `lfpo export {base} --layout transformers` writes"
        return ADAPTER_USE.format(base=made)
    dtype = getattr(torch, settings.dtype) if settings.dtype else source.dtype if adapted else None
    if adapted and dtype:
        merged = folder if own_names else scratch / "merged"
        merge_adapter(source.base, source.weights, merged, dtype)
        if not own_names:  # the merged copy goes as it is read, so that the disk holds one model and one file
            export_transformers(merged, folder, consume=True)
    elif own_names:
        for file in weight_files(source.weights):
            with reading(file), safe_open(file, framework="pt"):
                pass  # its header says how long it is
        # Without hidden files, of which `folder` may be one, and without modes: config.json may be read-only.
        ignore = shutil.ignore_patterns(".*")
        shutil.copytree(source.weights, folder, dirs_exist_ok=True, ignore=ignore, copy_function=shutil.copyfile)
        write_json(folder / "config.json", config)  # with the block length that only the folder's name may tell
    else:
        export_transformers(source.weights, folder)
    if own_names:
        return family_use(source.run, source.config)
    blocks = family.block_length(config)
    return transformers_use(family.architecture, family.shift, blocks, causal=family.causal_context)


def run_push(config: PushConfig, api: HfApi | None = None) -> None:
    """Upload, and print the repository's address. Raises UserError where the hub refuses."""
    source = find_source(config)
    beside = source.run.dir if source.run else None  # where there was room for the run; /tmp may be small
    with tempfile.TemporaryDirectory(prefix=".push-", dir=beside) as scratch:
        folder = Path(scratch) / "files"
        folder.mkdir()
        write_export(source, config, folder)
        add_records(source, folder, report=config.report)
        list_files(folder, f"{config.repo} ({'private' if config.private else 'public'} if new)")
        if config.dry_run:
            print("nothing was uploaded (--dry_run)")
            return
        api = api or HfApi()
        with hub_errors(config.repo):
            url = api.create_repo(config.repo, private=config.private, exist_ok=True)
            api.upload_folder(repo_id=config.repo, folder_path=folder, commit_message="Upload by lfpo push")
    print(url)


def make_repository(name: str, *, private: bool) -> None:
    """Make the repository, if there is none, before hours of training. Raises UserError where the hub refuses."""
    with hub_errors(name):
        HfApi().create_repo(name, private=private, exist_ok=True)


@contextmanager
def hub_errors(repo: str) -> Iterator[None]:
    """Turn an error of the hub in the block into a UserError. Of an upload that failed, whatever the cause,
    huggingface_hub and its Xet client raise a RuntimeError."""
    try:
        yield
    except (OSError, ValueError, HTTPError, RuntimeError) as error:
        said = [error] if error.__cause__ is None else [error, error.__cause__]
        reason = ": ".join(first_line(e)[:REASON] for e in said)
        raise UserError(
            f"{repo}: the hub at {constants.ENDPOINT} refused or could not be reached ({reason}); log in with "
            f"`hf auth login` or set HF_TOKEN to a token that may write to {repo.split('/')[0]}"
        ) from error


def add_records(source: WeightSource, folder: Path, *, report: bool) -> None:
    """Add a run's recipe, metrics and report, without folders of this machine."""
    if source.run is None:
        return
    recipe = published(load_yaml(source.run.dir / "config.yaml"))
    (folder / "recipe.yaml").write_text(yaml_text(recipe), encoding="utf-8")
    if source.run.metrics_file.exists():
        shutil.copyfile(source.run.metrics_file, folder / "metrics.jsonl")
        if report and (source.run.dir / "report.html").exists():
            data = {**run_data(source.run), "config": yaml_text(recipe)}
            (folder / "report.html").write_text(page(data), encoding="utf-8")


def list_files(folder: Path, title: str) -> None:
    """Print a folder's files and their sizes."""
    table = Table(title=title, title_justify="left", show_header=False, box=None, padding=(0, 2, 0, 0))
    sizes = {p.relative_to(folder).as_posix(): p.stat().st_size for p in sorted(folder.rglob("*")) if p.is_file()}
    for name, size in {**sizes, "in all": sum(sizes.values())}.items():
        table.add_row(name, decimal(size))
    console = Terminal()
    console.print(fitted(table, console))
