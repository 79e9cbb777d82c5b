"""Rows of files: the formats, patterns, folders that `datasets` saved, cells of CSV, and what cannot be read."""

import csv
import gzip
import io
import json
from pathlib import Path
from typing import Any

import pytest

from lfpo import LFPOConfig
from lfpo.config.dpo import DPOConfig
from lfpo.config.errors import UserError
from lfpo.config.sft import SFTConfig
from lfpo.core.encoding import encode_prompt
from lfpo.prompts.dataset import read_rows
from lfpo.prompts.examples import preference, read_examples
from lfpo.prompts.files import load_rows
from lfpo.train.sft import SFTTrainer

ROWS = [{"prompt": "one, two\n", "answer": 3}, {"prompt": 'a "quoted" ü\u2028\n', "answer": 4}]


def jsonl(rows: list[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()


def separated(rows: list[dict[str, Any]], delimiter: str) -> bytes:
    out = io.StringIO()
    writer = csv.DictWriter(out, list(rows[0]), delimiter=delimiter)
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue().encode()


def parquet(rows: list[dict[str, Any]]) -> bytes:
    pyarrow, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    out = pyarrow.BufferOutputStream()
    pq.write_table(pyarrow.Table.from_pylist(rows), out)
    return out.getvalue().to_pybytes()


def arrow(rows: list[dict[str, Any]], kind: str) -> bytes:
    pyarrow = pytest.importorskip("pyarrow")
    table, out = pyarrow.Table.from_pylist(rows), pyarrow.BufferOutputStream()
    with (pyarrow.ipc.new_file if kind == "file" else pyarrow.ipc.new_stream)(out, table.schema) as writer:
        writer.write_table(table)
    return out.getvalue().to_pybytes()


CONTENT = {
    "jsonl": lambda: jsonl(ROWS),
    "jsonl with a byte order mark": lambda: b"\xef\xbb\xbf" + jsonl(ROWS),
    "json list": lambda: json.dumps(ROWS).encode(),
    "indented json list": lambda: json.dumps(ROWS, indent=2).encode(),
    "csv": lambda: separated(ROWS, ","),
    "csv with semicolons": lambda: separated(ROWS, ";"),
    "tsv": lambda: separated(ROWS, "\t"),
    "parquet": lambda: parquet(ROWS),
    "arrow file": lambda: arrow(ROWS, "file"),
    "arrow stream": lambda: arrow(ROWS, "stream"),
}
NAMES = {"jsonl": "jsonl", "json": "json", "csv": "csv", "tsv": "tsv", "parquet": "parquet", "arrow": "arrow"}


@pytest.mark.parametrize("packing", ["", ".gz"])
@pytest.mark.parametrize("kind", CONTENT)
def test_each_format_and_packing_gives_the_same_rows(tmp_path: Path, kind: str, packing: str) -> None:
    ending = next((name for name in NAMES if kind.startswith(name)), "json")
    file = tmp_path / f"rows.{ending}{packing}"
    content = CONTENT[kind]()
    file.write_bytes(gzip.compress(content) if packing else content)
    assert [row.values for row in load_rows(file)] == ROWS


@pytest.mark.parametrize("name", ["rows.json", "rows.txt", "rows"])
def test_every_other_name_is_jsonl_or_a_json_list(tmp_path: Path, name: str) -> None:
    for content in (jsonl(ROWS), json.dumps(ROWS, indent=1).encode()):
        (tmp_path / name).write_bytes(content)
        assert [row.values for row in load_rows(tmp_path / name)] == ROWS


def test_a_folder_that_datasets_saved_gives_its_rows_once(tmp_path: Path) -> None:
    """Its map leaves a file of results beside the data, and a pattern finds both."""
    datasets = pytest.importorskip("datasets")
    datasets.Dataset.from_list(ROWS).save_to_disk(tmp_path / "saved", num_shards=2)
    datasets.load_from_disk(tmp_path / "saved").map(lambda row: {"answer": 0})
    assert len(list((tmp_path / "saved").glob("*.arrow"))) == 3
    for path in (tmp_path / "saved", tmp_path / "saved/*.arrow", tmp_path / "*/*.arrow"):
        assert [row.values for row in load_rows(path)] == ROWS


def test_a_pattern_joins_its_files_in_the_order_of_their_names(tmp_path: Path) -> None:
    for number in (2, 0, 1):
        (tmp_path / f"part-{number}.jsonl").write_bytes(jsonl([{"prompt": str(number), "answer": "x"}]))
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep/part-9.csv").write_bytes(separated([{"prompt": "nine", "answer": "x"}], ","))
    found = load_rows(tmp_path / "part-*.jsonl")
    assert [(row["prompt"], Path(row.where).name) for row in found] == [
        (str(number), f"part-{number}.jsonl:1") for number in range(3)
    ]
    assert {row["prompt"] for row in load_rows(f"{tmp_path}/**/part-*")} == {"0", "1", "2", "nine"}
    (tmp_path / "a[1].jsonl").write_bytes(jsonl(ROWS))  # a name that looks like a pattern
    assert len(load_rows(tmp_path / "a[1].jsonl")) == 2


def test_cells_of_a_csv_are_numbers_where_the_whole_column_is(tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    file.write_text("prompt,whole,part,code,truth,mixed\na,1,0.5,007,true,1\nb,-2,1e3,010,False,x\nc,,2,1,,3\n")
    assert [row.values for row in load_rows(file)] == [
        {"prompt": "a", "whole": 1, "part": 0.5, "code": "007", "truth": True, "mixed": "1"},
        {"prompt": "b", "whole": -2, "part": 1000.0, "code": "010", "truth": False, "mixed": "x"},
        {"prompt": "c", "whole": None, "part": 2.0, "code": "1", "truth": None, "mixed": "3"},
    ]
    assert load_rows(file, typed=False)[0]["whole"] == "1"

    file.write_text('prompt,answer\n"' + "x" * 200_000 + '",1\n')
    assert len(load_rows(file)[0]["prompt"]) == 200_000


@pytest.mark.parametrize(
    ("cells", "values"),
    [
        (["123456789012345", "-1"], [123456789012345, -1]),
        (["1234567890123456", "1"], ["1234567890123456", "1"]),
        (["1.5", "12345678901234567890"], ["1.5", "12345678901234567890"]),
        (["1.5", "450359962737049", ".5"], [1.5, 450359962737049.0, 0.5]),
        (["1e400", "1"], ["1e400", "1"]),
        (["-1e400", "1"], ["-1e400", "1"]),
        (["\u0661\u0662", "1"], ["\u0661\u0662", "1"]),
        (["1.\u0662", "1"], ["1.\u0662", "1"]),
        (["1", "2.5", ""], [1.0, 2.5, None]),
        (["1", "NaN"], ["1", "NaN"]),
        ([" 1", "2 ", "\t3"], [1, 2, 3]),
        ([" true", "False "], [True, False]),
        ([" a", "1"], [" a", "1"]),
        ([" ", "1"], [" ", "1"]),
        (["inf", "1"], ["inf", "1"]),
    ],
)
def test_cells_become_exact_numbers_or_stay_text(tmp_path: Path, cells: list[str], values: list[object]) -> None:
    file = tmp_path / "rows.csv"
    file.write_text("prompt, x\n" + "".join(f"a,{cell}\n" for cell in cells))
    found = [row.values["x"] for row in load_rows(file)]

    assert found == values and list(map(type, found)) == list(map(type, values))


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("rows.csv", b"prompt,answer\na,1\n,2\n", "rows.csv:3: column 'prompt' is null, or an empty cell"),
        ("rows.csv", b"prompt,answer\na,1,2\n", "rows.csv:2: 3 cells, and the header has 2"),
        ("rows.csv", b"prompt,prompt\na,1\n", "rows.csv: two columns are named 'prompt'"),
        ("rows.csv", b"prompt,answer\n", "rows.csv: no rows"),
        ("rows.csv", b"", "rows.csv: no rows"),
        (
            "rows.csv",
            b'prompt,answer\na,1\n"b,2\nc,3\n',
            "rows.csv:4: not readable as CSV (unexpected end of data",
        ),
        ("rows.csv", b"question,answer\na,b\n", "rows.csv:2: column 'prompt' is missing (found: question, answer)"),
        ("rows.csv", b"\xff\xfea,b\n", "rows.csv: not readable as UTF-8 text"),
        ("rows.json", b'[{"prompt": "a"}, 3]', "rows.json: row 2: expected a JSON object, found int"),
        ("rows.json", b'[{"prompt": "a"', "rows.json: not valid JSON"),
        (
            "rows.json",
            b'[{"prompt": [{"role": "user", "content": "a"}], "tools": [{"name": "f"}]}]',
            "row 1: column 'tools' is not given to the chat template, which gets messages alone",
        ),
        (
            "rows.json",
            b'[{"prompt": [{"role": "user", "content": "a"}], "chat_template_kwargs": {"enable_thinking": false}}]',
            "row 1: column 'chat_template_kwargs' is not given to the chat template",
        ),
        ("rows.jsonl", b'{"prompt": "a"}\n["b"]\n', "rows.jsonl:2: expected a JSON object, found list"),
        ("rows.jsonl", b'{"prompt": "a"}\n\n{"prompt": "b"}\n', "rows.jsonl:2: not valid JSON"),
        ("rows.jsonl", b"{}\n", "rows.jsonl:1: column 'prompt' is missing (found: none)"),
        ("rows.jsonl", b'{"prompt": 3}\n', "rows.jsonl:1: column 'prompt' must be text, found int"),
        ("rows.jsonl", b'{"prompt": "  "}\n', "rows.jsonl:1: the prompt is empty"),
        ("rows.jsonl", b'{"prompt": []}\n', "rows.jsonl:1: a prompt list must hold messages"),
        ("rows.jsonl", b"prompt,answer\na,b\n", "rows.jsonl:1: not valid JSON"),
        ("rows.parquet", b"PAR1 and no more", "rows.parquet: not readable as Parquet"),
        ("rows.arrow", b"ARROW1 and no more", "rows.arrow: not readable as Arrow"),
        ("rows.jsonl.gz", b"\x1f\x8b broken", "rows.jsonl.gz: not readable"),
        (
            "rows.jsonl",
            b'{"Question": "a", "Answer": "b"}\n',
            "as in `columns: {Question: prompt}`",
        ),
        ("rows.json", b'[{"prompt": ["a", "b"], "x": 1}]', "row 1: a prompt list must hold messages"),
        ("rows.json", b'[{"prompt": [{"content": "a"}]}]', "a prompt list must hold messages"),
        ("rows.json", b'[{"prompt": [{"role": "user"}]}]', "row 1: message 1, of role 'user', has no content"),
        ("gone.jsonl", None, "gone.jsonl: no such file"),
        ("*.none", None, "*.none: no file matches this pattern"),
        (".", None, "is a folder; give a file of it, a pattern such as"),
    ],
)
def test_what_cannot_be_read_is_one_sentence(tmp_path: Path, name: str, content: bytes | None, said: str) -> None:
    if name.endswith(("parquet", "arrow")):
        pytest.importorskip("pyarrow")
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError) as caught:
        load_rows(tmp_path / name, required=("prompt",))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_every_command_reads_the_same_formats(tmp_path: Path) -> None:
    (tmp_path / "train.tsv").write_bytes(separated(ROWS, "\t"))
    (tmp_path / "held_out.json").write_text(json.dumps(ROWS[:1]))
    args = LFPOConfig("run", data_file=str(tmp_path / "train.tsv"), eval_file=str(tmp_path / "held_out.json"))
    assert [record.values for record in read_rows(args, "train")] == ROWS
    assert [record.where for record in read_rows(args, "eval")] == [f"{tmp_path}/held_out.json: row 1"]
    pairs = [{"prompt": "a", "chosen": "b", "rejected": "c"}]
    (tmp_path / "pairs.csv").write_bytes(separated(pairs, ","))
    found = read_examples(DPOConfig("run", data_file=str(tmp_path / "pairs.csv")), preference)
    assert found["train"] == [("a", "b", "c")]
    (tmp_path / "sft.csv.gz").write_bytes(gzip.compress(separated([{"prompt": "a\n", "completion": "b"}], ",")))
    trainer = SFTTrainer(SFTConfig("run", "embedded", data_file=str(tmp_path / "sft.csv.gz"), gen_length=4, steps=1))
    assert trainer.draw(0)[0] == encode_prompt(trainer.tokenizer, "a\n")


def test_a_column_has_one_type_in_all_files_of_a_pattern_and_texts_stay_text(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("prompt,answer,completion\n1,4,7\n")
    (tmp_path / "b.csv").write_text("prompt,answer,completion\n2,four,8\n")
    assert [row.values for row in load_rows(tmp_path / "*.csv")] == [
        {"prompt": "1", "answer": "4", "completion": "7"},
        {"prompt": "2", "answer": "four", "completion": "8"},
    ]
    assert load_rows(tmp_path / "a.csv")[0].values == {"prompt": "1", "answer": 4, "completion": "7"}


def test_a_file_of_a_pattern_may_lack_a_column_of_numbers(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("prompt,level,right\n1,4,true\n")
    (tmp_path / "b.csv").write_text("prompt,right\n2,false\n")
    (tmp_path / "c.tsv").write_text("prompt\tlevel\n3\t1.5\n")
    assert [row.values for row in load_rows(tmp_path / "*.?sv")] == [
        {"prompt": "1", "level": 4.0, "right": True},
        {"prompt": "2", "right": False},
        {"prompt": "3", "level": 1.5},
    ]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "rows.jsonl"


@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
def test_rows_keep_their_columns_and_order_and_only_newlines_end_them(file: Path, end: str) -> None:
    text = "one\u2028two\u2029three\x85four"
    rows = [{"prompt": text, "answer": 1}, {"prompt": [{"role": "user", "content": "b"}], "answer": None}]
    file.write_bytes(("\n".join(json.dumps(r, ensure_ascii=False) for r in rows) + end).encode())
    assert [row.values for row in load_rows(file)] == rows
