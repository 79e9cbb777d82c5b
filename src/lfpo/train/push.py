"""`lfpo push` and `push_to_hub`: the model of a run on the hub, with its card, recipe, metrics and report."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from huggingface_hub import HfApi, constants
from huggingface_hub.errors import HTTPError  # type: ignore[attr-defined]  # the class depends on the version
from rich.console import Console
from rich.filesize import decimal
from rich.table import Table

from lfpo.base.config import load_yaml, yaml_text
from lfpo.base.errors import UserError
from lfpo.report.data import run_data
from lfpo.report.html import page
from lfpo.runs.card import published
from lfpo.train.export import Source, find_source, write_export
from lfpo.train.export_config import PushConfig

REASON = 160  # most characters of the hub's answer in a message


def run_push(config: PushConfig, api: HfApi | None = None) -> None:
    """Upload, and print the repository's address. Raises UserError where the hub refuses."""
    source = find_source(config.run, adapter=config.adapter)
    beside = source.run.dir if source.run else None  # where there was room for the run; /tmp may be small
    with tempfile.TemporaryDirectory(prefix=".push-", dir=beside) as scratch:
        folder = Path(scratch) / "files"
        folder.mkdir()
        write_export(source, folder, config.layout, adapter=config.adapter)
        add_records(source, folder, report=config.report)
        list_files(folder, f"{config.repo} ({'private' if config.private else 'public'} if new)")
        if config.dry_run:
            print("nothing was uploaded (--dry_run)")
            return
        api = api or HfApi()
        with told(config.repo):
            url = api.create_repo(config.repo, private=config.private, exist_ok=True)
            api.upload_folder(repo_id=config.repo, folder_path=folder, commit_message="Upload by lfpo push")
    print(url)


def make_repository(name: str, *, private: bool) -> None:
    """Make the repository, if there is none, before hours of training. Raises UserError where the hub refuses."""
    with told(name):
        HfApi().create_repo(name, private=private, exist_ok=True)


@contextmanager
def told(repo: str) -> Iterator[None]:
    """Turn an error of the hub in the block into a UserError."""
    try:
        yield
    except (OSError, ValueError, HTTPError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0][:REASON]
        raise UserError(
            f"{repo}: the hub at {constants.ENDPOINT} refused or could not be reached ({reason}); log in with "
            f"`hf auth login` or set HF_TOKEN to a token that may write to {repo.split('/')[0]}"
        ) from error


def add_records(source: Source, folder: Path, *, report: bool) -> None:
    """Add a run's recipe, metrics and report, without folders of this machine."""
    if source.run is None or source.config is None:
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
    Console().print(table)
