"""Tables of the terminal: names as they are written, and numbers that are never cut."""

import io

import pytest
from rich import box
from rich.table import Column, Table

from lfpo.base.terminal import Terminal, fitted

NAMES = ["[blue]", "lfpo[b=1]", ":smile: [/] a rather long name of four words"]


def table() -> Table:
    columns = Column("GiB", justify="right"), Column("interval", no_wrap=True)
    made = Table("name", *columns, title="[a] title", box=box.SIMPLE)
    for name in NAMES:
        made.add_row(name, "123456.25", "10.5 to 20.25")
    made.add_row("no interval", "1", "")
    return made


def printed(width: int, made: Table) -> list[str]:
    out = io.StringIO()
    console = Terminal(file=out, width=width)
    console.print(fitted(made, console))
    return [line.rstrip() for line in out.getvalue().splitlines()]


@pytest.mark.parametrize("width", [20, 41, 60, 200])
def test_a_table_keeps_all_its_words_at_any_width(width: int):
    lines = printed(width, table())
    text = " ".join(" ".join(lines).split())
    assert "…" not in text and "[a] title" in text
    assert text.count("123456.25 10.5 to 20.25") == 3 and all(word in text for name in NAMES for word in name.split())
    assert all(len(line) <= max(width, 41) for line in lines)


def test_a_column_may_fold():
    made = Table("a", Column("b", overflow="fold"), box=None, padding=0)
    made.add_row("x", "0123456789" * 3)
    assert [line[1:] for line in printed(15, made)] == [*["b", "01234567890123", "45678901234567", "89"]]


def test_output_is_written_whatever_a_script_has_put_into_its_place(monkeypatch: pytest.MonkeyPatch):
    class Written(list[str]):  # as some servers do; without isatty
        write = list.append

        def flush(self) -> None:
            pass

    monkeypatch.setattr("sys.stdout", Written())
    console = Terminal(columns=100)
    console.print("x" * 100)
    assert "".join(console.file).strip() == "x" * 100
    latin = io.TextIOWrapper(io.BytesIO(), encoding="latin-1")
    monkeypatch.setattr("sys.stdout", latin)
    Terminal(columns=100).print("run \u00e9\u6f22")
    latin.flush()
    assert latin.buffer.getvalue() == b"run \xe9\\u6f22\n"
