import json
from pathlib import Path

import pytest

from lfpo.config.errors import UserError
from lfpo.prompts.files import load_rows


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "rows.jsonl"


@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
def test_rows_keep_their_columns_and_order_and_only_newlines_end_them(file: Path, end: str) -> None:
    text = "one\u2028two\u2029three\x85four"
    rows = [{"prompt": text, "answer": 1}, {"prompt": [{"role": "user", "content": "b"}], "answer": None}]
    file.write_bytes(("\n".join(json.dumps(r, ensure_ascii=False) for r in rows) + end).encode())
    assert [row for row, _ in load_rows(file)] == rows


GOOD = b'{"prompt": "a", "completion": "b"}\n'


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        (b"\n", ["empty line"]),
        (b"{prompt: 1}\n", ["JSON"]),
        (b'{"prompt": "a"', ["JSON"]),
        (b"[" * 100_000 + b"\n", ["JSON"]),
        (b'["a"]\n', ["list"]),
        (b'{"question": "a"}\n', ["'prompt' is missing", "question"]),
        (b"{}\n", ["'prompt' is missing", "none"]),
        (b'{"prompt": null, "completion": "b"}\n', ["'prompt' is null"]),
        (b'{"prompt": [{"role": "usr", "content": "a"}], "completion": "b"}\n', ["'usr'", "did you mean 'user'"]),
        (b'{"prompt": 3, "completion": "b"}\n', ["'prompt'", "int"]),
        (b'{"prompt": "  ", "completion": "b"}\n', ["empty"]),
        (b'{"prompt": [], "completion": "b"}\n', ["messages"]),
        (b'{"prompt": [{"role": "user"}], "completion": "b"}\n', ["messages"]),
        (
            b'{"prompt": [{"role": "user", "content": [1]}], "completion": "b"}\n',
            ["'content' of a message must be text"],
        ),
        (b'{"prompt": "a"}\n', ["'completion' is missing"]),
        (b'{"prompt": "a", "completion": ["b"]}\n', ["'completion'", "list"]),
    ],
)
def test_errors_name_file_and_line(file: Path, line: bytes, parts: list[str]) -> None:
    file.write_bytes(GOOD + line)
    with pytest.raises(UserError) as caught:
        load_rows(file, required=("prompt", "completion"))
    text = str(caught.value)
    assert text.startswith(f"{file}:2: ")
    assert "\n" not in text
    for part in parts:
        assert part in text, text


def test_files_that_hold_no_rows(file: Path) -> None:
    with pytest.raises(UserError, match="no such file"):
        load_rows(file)
    file.write_bytes(b"")
    with pytest.raises(UserError, match="no rows"):
        load_rows(file)
    file.write_bytes(b"\xff\xfe{}")
    with pytest.raises(UserError, match="UTF-8"):
        load_rows(file)
    with pytest.raises(UserError, match=str(file.parent)):
        load_rows(file.parent)


@pytest.mark.parametrize("prompt", ["a \ud8db b", [{"role": "user", "content": "\udc0f"}]])
def test_a_lone_surrogate_is_an_error_with_its_line(tmp_path: Path, prompt: object):
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps({"prompt": "fine \U0001f0a1"}) + "\n" + json.dumps({"prompt": prompt}) + "\n")
    with pytest.raises(UserError, match=r"rows.jsonl:2: column 'prompt' holds a lone surrogate \('\\u"):
        load_rows(file, required=("prompt",))


def test_a_column_that_an_arrow_file_has_twice_is_an_error(tmp_path: Path):
    pyarrow = pytest.importorskip("pyarrow")
    table = pyarrow.table([["a"], [1], [2]], names=["prompt", "answer", "answer"])
    with (
        pyarrow.OSFile(str(tmp_path / "rows.arrow"), "wb") as file,
        pyarrow.ipc.new_stream(file, table.schema) as writer,
    ):
        writer.write_table(table)
    with pytest.raises(UserError, match=r"rows\.arrow: two columns are named 'answer'"):
        load_rows(tmp_path / "rows.arrow")
