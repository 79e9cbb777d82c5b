"""`lfpo recipes`: the shipped recipes in tables."""

import re
import textwrap
from pathlib import Path

from rich import box
from rich.table import Table

from lfpo.base.terminal import Terminal, fitted
from lfpo.config.build import RECIPES, command_of, load_yaml, recipe_names

TITLES = {
    "train": "lfpo train NAME: the embedded model, on a CPU",
    "gpu": "lfpo train NAME: 0.6 to 26 B parameters, on GPUs of 80 GiB (first: lfpo plan NAME)",
    "compare": "lfpo compare NAME: several objectives",
    "dpo": "lfpo dpo NAME: preference training",
    "sft": "lfpo sft NAME: how the embedded model was made",
}


def run_recipes() -> None:
    """Print every recipe of a whole run with its model, task and needs, and the names of the parts to include."""
    console, rows = Terminal(), dict[str, list[tuple[str, str, str, str]]]()
    for name in recipe_names():
        rows.setdefault(kind_of(name), []).append(row(name))
    for kind, title in TITLES.items():
        table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", title_style="bold")
        for column in ("name", "model", "task", "needs"):
            table.add_column(column, no_wrap=column == "name", overflow="fold")
        for cells in rows[kind]:
            table.add_row(*cells)
        console.print(fitted(table, console))
    parts = sorted({*recipe_names(parts=True)} - {*recipe_names()})
    console.print("Parts for `include: [...]` in a recipe of your own:", style="bold", highlight=False)
    for folder in dict.fromkeys(name.partition("/")[0] for name in parts):
        text = ", ".join(name for name in parts if name.startswith(f"{folder}/"))
        console.print(wrapped(text, console.width), highlight=False)


def wrapped(text: str, width: int) -> str:
    """Text in indented lines of at most `width` characters, which do not break names."""
    return textwrap.fill(
        text, width, initial_indent="  ", subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    )


def kind_of(name: str) -> str:
    """The key of TITLES that a recipe belongs to. Recipes in a folder are for GPUs."""
    kind = command_of(load_yaml(name))
    return "gpu" if kind == "train" and "/" in name else kind


def row(name: str) -> tuple[str, str, str, str]:
    """A recipe's short name, model, task, and what it needs (from its comment)."""
    values = load_yaml(name)
    needs = re.search(r"^# Needs: (.*)\.$", (RECIPES / f"{name}.yaml").read_text(encoding="utf-8"), re.MULTILINE)
    assert needs is not None, name
    tasks = values.get("tasks") or [values.get("task") or values["recipe"]]
    listed = f"{len(tasks)} tasks" if len(tasks) > 3 else ", ".join(tasks)
    model = values.get("model", "embedded")
    model = "a new one" if "init" in values else model if model.startswith("runs/") else Path(model).name
    return name.rpartition("/")[2], model, listed, needs[1]
